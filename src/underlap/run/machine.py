"""One rank's program bound to memory: tensors for cells, and a closure for each instruction. Nothing is decided here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from underlap.cost.work import Attention, Gemm, Work
from underlap.model import Model
from underlap.run.pages import pieces
from underlap.run.program import Instruction, Operand, Program

Closure = Callable[[], None]

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a model's figures do not say and its computation needs."""

    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    optimizer_epsilon: float = 1e-8


class Memory:
    """Tensors for the cells of a program. Those whose size routing decides are there only while the program runs."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program = program
        self.device = device
        on_host = device.type == "cpu"
        slots = pieces(program.slots) if on_host else [_zeros(size, device) for size in program.slots]
        self.tensors: list[torch.Tensor | None] = []
        for cell in program.cells:
            if cell.slot < 0:
                self.tensors.append(None)
                continue
            self.tensors.append(slots[cell.slot].view(DTYPES[cell.dtype]).view(cell.shape))
        self.persistent = {
            (cell.buffer, cell.micro_batch, cell.layer): number for number, cell in enumerate(program.cells) if cell.persistent
        }

    def view(self, operand: Operand) -> torch.Tensor:
        """The rows that an operand names; of a size that routing decides, what is there now."""
        tensor = self.tensors[operand.cell]
        assert tensor is not None, f"{operand.name} has not been made yet"
        if self.program.cells[operand.cell].slot < 0 or tensor.dim() == 0:
            return tensor
        return tensor[operand.begin : operand.begin + operand.rows]

    def named(self, buffer: str) -> dict[int, torch.Tensor]:
        """The persistent tensors of a buffer, by layer (by micro-batch where it has no layer)."""
        found = {}
        for (name, micro_batch, layer), number in self.persistent.items():
            tensor = self.tensors[number]
            if name == buffer and tensor is not None:
                found[layer if layer >= 0 or micro_batch < 0 else micro_batch] = tensor
        return found


def _zeros(size: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=device)


@dataclasses.dataclass(slots=True, kw_only=True)
class Rank:
    """What operations may ask of the rank that they run on."""

    program: Program
    memory: Memory
    model: Model
    constants: Constants
    positions: torch.Tensor
    """Of each token row of a micro-batch: its position in its sequence. int64, shape (tokens,)."""
    tokens_per_step: int
    """Over all ranks: what the loss is divided by."""
    vocab_begin: int
    """First token of this rank's part of the vocabulary."""
    data_index: int
    tp_index: int
    ep_index: int
    gathered_index: int
    """Among the ranks of etp where they gather each other's rows; else 0."""
    ring_index: int
    zigzag: bool
    exchange_counts: Callable[[torch.Tensor, str], Callable[[], torch.Tensor]] | None = None
    """Tells the other ranks of ep how many rows they will get. Gives what `Route.arriving` is."""
    step: int = 0
    """Optimizer steps begun."""
    lacking: torch.Tensor
    """1 - beta^step for each of Adam's two betas, fp64, shape (2,): what a running mean that began at 0 lacks. On the device, so
    that a graph of a step reads it anew each time."""
    length: int = 0
    """Decode: tokens in the cache before this step."""
    losses: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    """By micro-batch: the sum of its tokens' losses over `tokens_per_step`."""
    routes: dict[tuple[int, int, int, int], Route] = dataclasses.field(default_factory=dict)
    """By micro-batch, layer and part: where the tokens went."""

    def advance(self) -> None:
        """What changes from step to step, for the step that begins."""
        self.lacking.copy_(torch.tensor([1 - beta**self.step for beta in self.constants.betas], dtype=torch.float64))


@dataclasses.dataclass(slots=True)
class Route:
    """Where the rows of a part of a micro-batch go, in order of experts, and how many come."""

    order: torch.Tensor
    """Of the sent rows: index into (token, choice) pairs."""
    sent: torch.Tensor
    """Rows per expert."""
    arriving: Callable[[], torch.Tensor]
    """Rows that come, per rank whose rows are gathered here, source rank and local expert. Waits for the others' numbers."""
    own: int = 0
    """Which of the ranks whose rows are gathered this one is: where experts are divided and tokens too, those of etp."""
    arrived: list[list[list[int]]] | None = None

    def tables(self) -> list[list[list[int]]]:
        """Rows of each of the ranks whose rows are gathered here, per source rank and local expert."""
        if self.arrived is None:
            self.arrived = self.arriving().tolist()
        return self.arrived

    def table(self) -> list[list[int]]:
        """Rows that come to this rank, per source rank and local expert."""
        return self.tables()[self.own]


class Site:
    """One instruction's operands as tensors, for the function that binds it."""

    def __init__(self, rank: Rank, instruction: Instruction) -> None:
        self.rank, self.instruction = rank, instruction
        self.model = rank.model

    def read(self, at: int) -> torch.Tensor:
        """The at-th read."""
        return self.rank.memory.view(self.instruction.reads[at])

    def write(self, at: int) -> torch.Tensor:
        """The at-th write."""
        return self.rank.memory.view(self.instruction.writes[at])

    def reads(self, name: str) -> list[torch.Tensor]:
        """All reads of a buffer: one, or its parts."""
        return [self.rank.memory.view(o) for o in self.instruction.reads if o.name == name]

    def the(self, name: str) -> torch.Tensor:
        """The only read of a buffer."""
        (found,) = self.reads(name)
        return found

    def written(self, name: str) -> list[Operand]:
        """The operands of all writes of a buffer."""
        return [operand for operand in self.instruction.writes if operand.name == name]

    def into(self, operand: Operand) -> Callable[[torch.Tensor], None]:
        """A function that puts a result where an operand says: over what is there, or added to it."""
        memory = self.rank.memory
        if memory.program.cells[operand.cell].slot < 0:
            dtype = DTYPES[memory.program.cells[operand.cell].dtype]

            def place(value: torch.Tensor) -> None:
                value = value.to(dtype)
                before = memory.tensors[operand.cell]
                memory.tensors[operand.cell] = value if not operand.add or before is None else before + value

            return place
        target = memory.view(operand)
        if operand.add:
            return lambda value: void(target.add_(value.view(target.shape)))
        return lambda value: void(target.copy_(value.view(target.shape)))

    @property
    def work(self) -> Work:
        """What the plan says it has to do."""
        assert self.instruction.work is not None
        return self.instruction.work

    @property
    def attention(self) -> Attention:
        """The work of attention."""
        assert isinstance(self.work, Attention)
        return self.work

    @property
    def product(self) -> Gemm:
        """The work of a product."""
        assert isinstance(self.work, Gemm)
        return self.work

    def own_rows(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        """The rows that this rank routes: all of them, or its part where tp ranks hold the same and share the work."""
        if tensor.shape[0] == rows:
            return tensor
        return tensor[self.rank.tp_index * rows : (self.rank.tp_index + 1) * rows]

    @property
    def route_key(self) -> tuple[int, int, int, int]:
        """What the operations on one part of routed rows share."""
        instruction = self.instruction
        return instruction.micro_batch, instruction.layer, *instruction.part


def void(_: object) -> None:
    """Drop a result."""
