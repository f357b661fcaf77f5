"""Pipeline schedules: in which order each rank works on micro-batches and model chunks.

gpipe         all forwards, then all backwards (GPipe, arXiv 1811.06965)
1f1b          forward and backward in turn once the pipeline is full (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473)
interleaved   1f1b over several model chunks per rank (the same, section 2.2)
zb-h1         1f1b with weight gradients put off into the gaps (Qi et al. 2023, Zero Bubble, arXiv 2401.10241, H1: no more memory)
dualpipev     two chunks per rank in a V, forward of one beside backward of the other (DeepSeek's DualPipe, cut in half)
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from underlap.errors import OptionError
from underlap.layout import Layout

Direction = Literal["forward", "backward", "weight_grad"]


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
    raise OptionError(f"layout: schedule={layout.schedule} cannot be planned yet: use gpipe, 1f1b or interleaved")


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
