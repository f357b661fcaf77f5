"""Pipeline schedules: in which order each rank works on micro-batches and model chunks.

gpipe         all forwards, then all backwards (GPipe, arXiv 1811.06965)
1f1b          forward and backward in turn once the pipeline is full (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473)
interleaved   1f1b over several model chunks per rank (the same, section 2.2)
zb-h1         1f1b with weight gradients put off into the gaps (Qi et al. 2023, Zero Bubble, arXiv 2401.10241, H1: no more memory)
dualpipev     two chunks per rank in a V, forward of one beside backward of the other (DeepSeek's DualPipe, cut in half:
              deepseek-ai/DualPipe, dualpipev.py, after Qi et al. 2024, Controllable Memory, arXiv 2405.15362)

Pairs of dualpipev are planned one after the other, forward first; `pair_forward_backward` puts them beside each other.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from underlap.errors import OptionError
from underlap.layout import Layout

Direction = Literal["forward", "backward", "backward_input", "weight_grad"]
"""A backward is whole, or it is gradients of inputs alone, with those of weights as a task of their own."""

SPLIT_BACKWARD = frozenset({"zb-h1", "dualpipev"})
"""Schedules in which weight gradients are tasks of their own, always or at times."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One micro-batch through one model chunk of a rank, in one direction."""

    direction: Direction
    micro_batch: int
    chunk: int
    """Of the rank, from 0. Chunk c of rank r is stage `stage_of`."""


def stage_of(layout: Layout, rank: int, chunk: int) -> int:
    """Where a rank's chunk comes in the model: round and round, or in the V of dualpipev down and up again."""
    if layout.schedule == "dualpipev":
        return rank if chunk == 0 else 2 * layout.pp - 1 - rank
    return chunk * layout.pp + rank


def owner_of(layout: Layout, stage: int) -> tuple[int, int]:
    """(rank, chunk) of a stage of the model."""
    if layout.schedule == "dualpipev":
        return (stage, 0) if stage < layout.pp else (2 * layout.pp - 1 - stage, 1)
    return stage % layout.pp, stage // layout.pp


def tasks(layout: Layout, rank: int, micro_batches: int) -> list[Task]:
    """What a pipeline rank works on, in order. Raises OptionError where the schedule cannot be made of so many micro-batches."""
    if layout.schedule == "gpipe":
        forward = [Task("forward", index, 0) for index in range(micro_batches)]
        return forward + [Task("backward", index, 0) for index in range(micro_batches)]
    if layout.schedule == "1f1b":
        return _one_forward_one_backward(layout.pp, rank, micro_batches)
    if layout.schedule == "interleaved":
        return _interleaved(layout, rank, micro_batches)
    if layout.schedule == "zb-h1":
        return _zero_bubble(layout.pp, rank, micro_batches)
    return _V(layout.pp, rank, micro_batches).tasks()


def forward_only(layout: Layout, rank: int, micro_batches: int) -> list[Task]:
    """Prefill and decode: every micro-batch through every chunk, in groups of as many as there are ranks.

    A larger group would have its first results wait for its last member to enter, while nobody takes them.
    """
    order = [chunk for _, chunk in sorted((stage_of(layout, rank, chunk), chunk) for chunk in range(layout.chunks))]
    groups = [range(first, min(first + layout.pp, micro_batches)) for first in range(0, micro_batches, layout.pp)]
    return [Task("forward", index, chunk) for group in groups for chunk in order for index in group]


def _one_forward_one_backward(pp: int, rank: int, micro_batches: int) -> list[Task]:
    ahead = min(pp - rank - 1, micro_batches)
    made = [Task("forward", index, 0) for index in range(ahead)]
    for index in range(micro_batches):
        if ahead + index < micro_batches:
            made.append(Task("forward", ahead + index, 0))
        made.append(Task("backward", index, 0))
    return made


def _interleaved(layout: Layout, rank: int, micro_batches: int) -> list[Task]:
    pp, chunks = layout.pp, layout.virtual
    if micro_batches % pp:
        raise OptionError(
            f"workload: {micro_batches} micro-batches per rank with pp={pp} interleaved: expected a multiple of pp, "
            "as micro-batches go through the chunks in groups of pp"
        )
    total = micro_batches * chunks
    ahead = min((pp - rank - 1) * 2 + (chunks - 1) * pp, total)

    def at(index: int, direction: Direction) -> Task:
        round_, inside = divmod(index, pp * chunks)
        chunk, within = divmod(inside, pp)
        return Task(direction, round_ * pp + within, chunk if direction == "forward" else chunks - 1 - chunk)

    made = [at(index, "forward") for index in range(ahead)]
    for index in range(total):
        if ahead + index < total:
            made.append(at(ahead + index, "forward"))
        made.append(at(index, "backward"))
    return made


def _zero_bubble(pp: int, rank: int, micro_batches: int) -> list[Task]:
    """1f1b whose rank r puts each weight gradient off by r micro-batches, so that the next backward leaves earlier.

    Rank r then keeps pp - r micro-batches in flight, as in 1f1b, and r more for their weight gradients: pp, what 1f1b keeps
    on rank 0 (section 2.3). What is left at the end fills the gaps between the last backwards.
    """
    ahead = min(pp - rank - 1, micro_batches)
    made = [Task("forward", index, 0) for index in range(ahead)]
    for index in range(micro_batches):
        if ahead + index < micro_batches:
            made.append(Task("forward", ahead + index, 0))
        made.append(Task("backward_input", index, 0))
        if index >= rank:
            made.append(Task("weight_grad", index - rank, 0))
    late = range(max(0, micro_batches - rank), micro_batches)
    return made + [Task("weight_grad", index, 0) for index in late]


class _V:
    """The eight phases of deepseek-ai/DualPipe, dualpipev.py, `step`: counts of what has begun, and weight gradients put off."""

    def __init__(self, pp: int, rank: int, micro_batches: int) -> None:
        if micro_batches < 2 * pp:
            raise OptionError(
                f"workload: {micro_batches} micro-batches per rank with pp={pp} and dualpipev: expected 2 * pp = {2 * pp} "
                "or more, as fewer do not fill both arms of the V"
            )
        self.pp, self.rank, self.micro_batches = pp, rank, micro_batches
        self.made: list[Task] = []
        self.begun = {("forward", 0): 0, ("forward", 1): 0, ("backward", 0): 0, ("backward", 1): 0}
        self.late: list[Task] = []

    def tasks(self) -> list[Task]:
        """All tasks of the rank, in order."""
        pp, rank = self.pp, self.rank
        for _ in range(2 * (pp - rank - 1)):
            self._forward(0)
        for _ in range(rank + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(pp - rank - 1):
            self._backward(1, split=True)
            self._weights()
            self._forward(1)
        for _ in range(self.micro_batches - 2 * pp + rank + 1):
            # The two pairs of the steady state.
            self._forward(0)
            self._backward(1)
            self._forward(1)
            self._backward(0)
        for _ in range(pp - rank - 1):
            self._backward(1)
            self._forward(1)
            self._backward(0)
        split = False
        for index in range(rank + 1):
            # Half way through, weight gradients start to be put off: on odd ranks before chunk 1, on even ones behind it.
            half = index == (rank + 1) // 2
            split = split or (half and rank % 2 == 1)
            self._backward(1, split=split)
            split = split or (half and rank % 2 == 0)
            self._backward(0, split=split)
        for _ in range(pp - rank - 1):
            self._weights()
            self._backward(0, split=True)
        while self.late:
            self._weights()
        return self.made

    def _forward(self, chunk: int) -> None:
        self.made.append(Task("forward", self._next("forward", chunk), chunk))

    def _backward(self, chunk: int, *, split: bool = False) -> None:
        index = self._next("backward", chunk)
        self.made.append(Task("backward_input" if split else "backward", index, chunk))
        if split:
            self.late.append(Task("weight_grad", index, chunk))

    def _weights(self) -> None:
        self.made.append(self.late.pop(0))

    def _next(self, direction: str, chunk: int) -> int:
        index = self.begun[direction, chunk]
        self.begun[direction, chunk] = index + 1
        return index
