"""A bound program and its steps: compile, bind once, run many times, and say what each step did."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict

import torch

from underlap.errors import OptionError
from underlap.layout import Layout
from underlap.model import Model
from underlap.plan import OpKind, Plan
from underlap.run.backend import Backend, of_device
from underlap.run.lanes import StreamLanes
from underlap.run.machine import Closure, Constants, Memory, Rank
from underlap.run.operations import bound
from underlap.run.operations.optimizer import master_of
from underlap.run.program import Program, compiled
from underlap.run.streams import against_capture
from underlap.run.times import Record
from underlap.run.weights import Division, Parameters
from underlap.trial import LeftOut
from underlap.workload import Decode, Train, Workload, micro_batch_size, micro_batches, sequences, tokens


class Engine:
    """One rank of one plan. `groups` are shared by the plans of a comparison, as they lie on one layout."""

    def __init__(
        self,
        plan: Plan,
        job: Inputs,
        rank: int,
        device: torch.device,
        timeout_s: float,
        backend: Backend | None = None,
    ) -> None:
        backend = backend or of_device(device)
        self.program: Program = compiled(plan, job.layout, rank)
        self.job = job
        self.lanes = backend.lanes(self.program)
        self.groups = backend.groups(self.program, timeout_s)
        self.memory = Memory(self.program, device)
        self.rank = _rank(self.program, self.memory, job)
        self.wire = backend.wire(self.rank, self.groups, self.lanes)
        self._load()
        self._fill()
        self.failed: Record | None = None
        self.failed_at = ""
        self.closures = [self.lanes.bound(at, self._bind(at)) for at in range(len(self.program.instructions))]
        self.captured: int | None = None
        """Tokens in the cache for which a graph was made."""

    def _bind(self, at: int) -> Closure:
        instruction = self.program.instructions[at]
        if instruction.kind == OpKind.ISSUE:
            return self.wire.issue(instruction)
        if instruction.kind == OpKind.WAIT:
            return self.wire.wait(instruction)
        return bound(self.rank, instruction)

    def close(self) -> None:
        """Give graphs and process groups back."""
        self.lanes.release()
        self.groups.close()

    # ---- what is there before a step

    def _load(self) -> None:
        """Weights and states, as they are before the first step."""
        division = Division(self.job.model, self.job.layout, self.program.rank, self.job.parameters)
        for (buffer, _, layer), cell in self.memory.persistent.items():
            kind, _, name = buffer.partition(".")
            tensor = self.memory.tensors[cell]
            if tensor is None or kind not in ("weight", "shard", "state"):
                continue
            local = division.local(name, layer)
            index = self._shard_index(name, local.numel(), tensor.shape[0]) if kind != "weight" else 0
            if kind == "weight":
                tensor.copy_(local)
            elif kind == "shard":
                part = local.reshape(-1)[index * tensor.shape[0] : (index + 1) * tensor.shape[0]]
                tensor.zero_()
                tensor[: part.shape[0]].copy_(part)
            else:
                master_of(local.to(self.rank.memory.device), tensor, index)

    def _shard_index(self, name: str, whole: int, part: int) -> int:
        if part >= whole:
            return 0
        group = "expert_fsdp" if name in ("experts.up", "experts.down") else "fsdp"
        return self.program.members[group].index(self.program.rank)

    def _fill(self) -> None:
        """The tokens of this rank's micro-batches, and what follows each."""
        for micro_batch, (source, target) in enumerate(tokens_of(self.job, self.rank)):
            for buffer, value in (("tokens", source), ("targets", target)):
                cell = self.memory.persistent.get((buffer, micro_batch, -1))
                if cell is not None:
                    tensor = self.memory.tensors[cell]
                    assert tensor is not None
                    tensor.copy_(value)

    def feed(self, tokens_in: torch.Tensor) -> None:
        """Decode: the next token of each sequence."""
        for tensor in self.memory.named("tokens").values():
            tensor.copy_(tokens_in)

    # ---- a step

    def step(self) -> None:
        """Run the program once, recording nothing."""
        self._begin()
        if self.captured is None:
            self.wire.watched = self.lanes.watched = False
        with torch.inference_mode():
            self.lanes.step(self._all)

    def _begin(self) -> None:
        self.rank.step += 1
        self.rank.advance()
        if self.captured is not None and self.captured != self.rank.length:
            self.capture()  # another length of cache has other sizes

    def _all(self) -> None:
        for closure in self.closures:
            closure()

    def capture(self) -> None:
        """Make a graph of the step, which is launched from now on. A step has run before, so that all is connected and made.

        Raises OptionError with the reason where there is no stream, or the program has no fixed sizes.
        """
        reason = against_capture(self.program)
        if reason is None and not isinstance(self.lanes, StreamLanes):
            reason = "a graph needs a GPU: leave --graph out"
        if reason is not None:
            raise OptionError(f"graph: {reason}")
        assert isinstance(self.lanes, StreamLanes)
        self.wire.watched = True
        self.wire.by_row = {}
        self.captured = self.rank.length
        with torch.inference_mode():
            self.lanes.capture(lambda: self._noted(self.closures, *self._stamps()))

    def _stamps(self) -> tuple[list[int], list[int]]:
        return [0] * len(self.closures), [0] * len(self.closures)

    def _noted(self, closures: list[Closure], begin: list[int], end: list[int]) -> None:
        """Carry out all, noting on the host's clock when each was called and came back."""
        clock = time.monotonic_ns
        for at, closure in enumerate(closures):
            begin[at] = clock()
            closure()
            end[at] = clock()

    def _without(self, left_out: LeftOut | None) -> list[Closure]:
        """What a step carries out: of some kinds of instructions nothing."""
        kinds = {None: (), "waits": (OpKind.WAIT,), "messages": (OpKind.ISSUE, OpKind.WAIT), "half_transfers": ()}[left_out]
        pairs = zip(self.program.instructions, self.closures, strict=True)
        return [_nothing if instruction.kind in kinds else closure for instruction, closure in pairs]

    def recorded_step(self, left_out: LeftOut | None = None) -> Record:
        """Run it once, and note when each instruction began and ended and each collective was done. With something left out,
        what weights, losses and logits then hold is wrong."""
        self._begin()
        begin, end = self._stamps()
        if self.captured is None:
            self.wire.watched = self.lanes.watched = True
            self.wire.by_row = {}
            self.wire.control.clear()
        closures = self._without(left_out)

        def body() -> None:
            self._noted(closures, begin, end)
            if left_out == "waits":
                self.wire.wait_for_all()

        started = time.monotonic_ns()
        try:
            with torch.inference_mode():
                self.lanes.step(body)
        except RuntimeError:
            # What was recorded so far is kept; the step ends where it failed.
            self.failed = Record(begin, end, self._flights(), started, time.monotonic_ns())
            self.failed_at = self.program.instructions[max(0, sum(map(bool, begin)) - 1)].key
            raise
        return self._recorded(begin, end, started, time.monotonic_ns())

    def _recorded(self, begin: list[int], end: list[int], started: int, ended: int) -> Record:
        times = self.lanes.times()
        if times is None:
            return Record(begin, end, self._flights(), started, ended)
        if times.graph:
            # One launch issued all: its call lasted from the begin of the step to its return.
            begin, end = [times.launched_ns[0]] * len(begin), [times.launched_ns[1]] * len(end)
        begun = times.reference_ns  # before it the host waited for the device, and set the clocks against each other
        return Record(begin, end, self._flights(), begun, max(times.end_ns, default=ended), times)

    def _flights(self) -> dict[int, tuple[int, int, int]]:
        return {row: (flight.begun_ns, flight.done_ns, flight.payload_bytes) for row, flight in self.wire.by_row.items()}

    def counted(self) -> dict[tuple[str, str], int]:
        """Payload bytes of the last recorded step that this rank handed to its process groups, by group and collective."""
        found: dict[tuple[str, str], int] = defaultdict(int)
        for row, flight in self.wire.by_row.items():
            instruction = self.program.instructions[row]
            collective = getattr(instruction.work, "collective", "")
            found[str(instruction.group), collective] += flight.payload_bytes
        return dict(found)

    def control(self) -> dict[tuple[str, str, str], int]:
        """The same of what is no operation of the plan, by group, collective and what it is for."""
        return dict(self.wire.control)

    def loss(self) -> float:
        """Of the last step: this rank's part of the mean over all tokens."""
        return float(sum(float(value) for value in self.rank.losses.values()))

    def tensors(self, kind: str) -> dict[tuple[str, int], torch.Tensor]:
        """Persistent buffers of a kind (weight, gradient, gradient_shard, state, shard), by name and layer."""
        found = {}
        for (buffer, _, layer), cell in self.memory.persistent.items():
            head, _, name = buffer.partition(".")
            tensor = self.memory.tensors[cell]
            if head == kind and tensor is not None:
                found[name, layer] = tensor
        return found

    def last(self, buffer: str) -> list[torch.Tensor]:
        """What the last step left in a buffer that nothing was put over since: the logits."""
        cells = [at for at, cell in enumerate(self.program.cells) if cell.buffer == buffer]
        return [tensor for at in cells if (tensor := self.memory.tensors[at]) is not None]


def _nothing() -> None:
    """In place of what is left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a plan does not say and a rank has to know."""

    model: Model
    layout: Layout
    workload: Workload
    parameters: Parameters
    constants: Constants = Constants()  # noqa: RUF009  # frozen
    seed: int = 0


def _rank(program: Program, memory: Memory, job: Inputs) -> Rank:
    layout = job.layout
    at = layout.coordinates(program.rank)
    return Rank(
        program=program,
        memory=memory,
        model=job.model,
        constants=job.constants,
        positions=positions_of(job.workload, layout, at["cp"]).to(memory.device),
        tokens_per_step=tokens(job.workload),
        vocab_begin=at["tp"] * (job.model.vocab // layout.tp),
        lacking=torch.ones(2, dtype=torch.float64, device=memory.device),
        length=job.workload.context if isinstance(job.workload, Decode) else 0,
        data_index=at["dp"] * layout.fsdp + at["fsdp"],
        tp_index=at["tp"],
        ep_index=at["ep"],
        gathered_index=at["etp"] if layout.sp else 0,
        ring_index=at["cp"],
        zigzag=layout.cp > 1 and layout.context == "ring",
    )


def positions_of(workload: Workload, layout: Layout, index: int) -> torch.Tensor:
    """Of each token row of a micro-batch: its position. With a ring, pieces r and 2 * cp - 1 - r of each sequence."""
    count = micro_batch_size(workload, layout)
    if isinstance(workload, Decode):
        return torch.zeros(count, dtype=torch.int64)
    whole = torch.arange(workload.seq)
    if layout.cp == 1:
        own = whole
    elif layout.context == "ring":
        pieces = whole.chunk(2 * layout.cp)
        own = torch.cat((pieces[index], pieces[2 * layout.cp - 1 - index]))
    else:
        own = whole.chunk(layout.cp)[index]
    return own.repeat(count)


def batch_of(job: Inputs) -> torch.Tensor:
    """The tokens of a step, each sequence one longer than its length: (sequences, length + 1)."""
    length = 1 if isinstance(job.workload, Decode) else job.workload.seq
    generator = torch.Generator().manual_seed(job.seed + 1)
    return torch.randint(job.model.vocab, (sequences(job.workload), length + 1), generator=generator)


def tokens_of(job: Inputs, rank: Rank) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, what follows each) of each of a rank's micro-batches."""
    count, size = micro_batches(job.workload, job.layout), micro_batch_size(job.workload, job.layout)
    batch = batch_of(job)
    first = rank.data_index * count * size
    found = []
    for micro_batch in range(count):
        own = batch[first + micro_batch * size : first + (micro_batch + 1) * size]
        at = rank.positions.cpu().view(size, -1)
        found.append((own.gather(1, at).reshape(-1), own.gather(1, at + 1).reshape(-1)))
    return found


def trains(job: Inputs) -> bool:
    """Whether a step changes weights."""
    return isinstance(job.workload, Train)
