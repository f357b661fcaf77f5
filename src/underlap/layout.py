"""`Layout`: how a model is spread over ranks, and which ranks form the groups of each axis.

world = pp * dp * fsdp * cp * tp. Experts live on a second mesh over the ranks of one pipeline stage:
ep * etp * edp = dp * fsdp * cp * tp. Sequence parallelism (sp) is a form of tp and has no ranks of its own.
It does not model layouts that differ between layers, nor pipeline stages of uneven width.
"""

# long because: the record, its rules, the groups of ranks and the text form change together.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from underlap.documents import nearest, require, require_choice, require_counts, shown
from underlap.model import Model
from underlap.text_form import made, pairs, whole

if TYPE_CHECKING:
    import numpy as np

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipev"]
ContextKind = Literal["ring", "ulysses"]
DENSE_AXES = ("tp", "cp", "fsdp", "dp", "pp")
"""The dimensions of the mesh of ranks."""
EXPERT_AXES = ("etp", "ep", "edp")
"""The dimensions of the experts' mesh, innermost first; the stage (pp) is outside of both."""
MOST_RANKS = 2**20


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """How the groups of an axis lie in the machine."""

    axis: str
    dimensions: tuple[str, ...]
    """The mesh dimensions that the axis is made of, innermost first."""
    size: int
    """Ranks per group."""
    ranks_per_domain: int
    """Members in one scale-up domain, at most."""
    domains: int
    """Scale-up domains that one group touches, at most."""
    uniform: bool
    """True where every group lies alike, with the same number of members in each domain it touches."""

    @property
    def span(self) -> tuple[int, int]:
        """(ranks per domain, domains), as a Transfer has it."""
        return self.ranks_per_domain, self.domains


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Degrees of parallelism. Data parallel = dp replicas, each sharded over fsdp ranks (HSDP where both exceed 1)."""

    dp: int = 1
    """Replicas."""
    fsdp: int = 1
    """Ranks that one replica's states are sharded over."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism inside an expert; None: as tp."""
    sp: bool = False
    """Sequence parallelism beside tp: reduce-scatter and all-gather in place of all-reduce."""
    zero: int | None = None
    """What is sharded: 1 optimizer states, 2 and gradients, 3 and parameters. None: 3 where fsdp > 1, else 0. Where fsdp
    is 1 the states are sharded over dp (Megatron's distributed optimizer)."""
    schedule: Schedule = "1f1b"
    virtual: int = 1
    """Model chunks per rank of the interleaved schedule."""
    context: ContextKind = "ring"
    """What cp does."""
    order: tuple[str, ...] | None = None
    """The dimensions of the mesh, innermost first; None: see `axis_order`."""
    split: tuple[int, ...] | None = None
    """Layers of each model chunk, in order of the model; None: equally many."""

    def __post_init__(self) -> None:
        require_counts(self, *DENSE_AXES, "ep", "etp", "virtual", largest=MOST_RANKS)
        require(self.world <= MOST_RANKS, f"{self._product} = {self.world} ranks: more than {MOST_RANKS} are not modeled")
        require(self.tp > 1 or not self.sp, "sp with tp=1: sequence parallelism is a form of tp; raise tp or leave sp out")
        require(self.cp > 1 or self.context == "ring", f"cp=1 with {self.context}: there is no context to divide; raise cp")
        self._check_states()
        self._check_pipeline()
        self._check_experts()
        self._check_order()

    def _check_states(self) -> None:
        require(self.zero is None or 0 <= self.zero <= 3, f"zero={self.zero}: expected 0, 1, 2 or 3")
        require(
            self.fsdp == 1 or self.zero != 0, f"zero=0 with fsdp={self.fsdp}: fsdp shards; use zero=1, 2 or 3, or dp in its place"
        )
        alone = self.dp * self.fsdp * self.cp == 1
        require(
            not (alone and self.zero), f"zero={self.zero} with dp=1 and fsdp=1: there is nothing to shard over; raise one of them"
        )

    def _check_pipeline(self) -> None:
        require_choice(self, "schedule", get_args(Schedule))
        require_choice(self, "context", get_args(ContextKind))
        require(self.pp > 1 or self.schedule == "1f1b", f"schedule={self.schedule} with pp=1: there is no pipeline; raise pp")
        if self.schedule == "interleaved":
            require(self.virtual >= 2, f"schedule=interleaved with virtual={self.virtual}: expected 2 or more, as interleaved:2")
        else:
            require(self.virtual == 1, f"virtual={self.virtual} with schedule={self.schedule}: expected schedule=interleaved")
        chunks = self.pp * self.chunks
        require(chunks <= MOST_RANKS, f"pp={self.pp} times {self.chunks} chunks: more than {MOST_RANKS} are not modeled")
        if self.split is not None:
            text = f"split has {len(self.split)} numbers of layers, but pp={self.pp} with {self.chunks} per rank make {chunks}"
            require(len(self.split) == chunks, f"{text}: give one for each")
            require(all(0 <= layers <= 2**16 for layers in self.split), "split: expected 0 or more layers in each chunk")

    def _check_experts(self) -> None:
        ranks, inner = self.world // self.pp, self.expert_tensor * self.ep
        require(
            self.ep > 1 or self.etp in (None, self.tp), f"etp={self.etp} with ep=1: it is a part of the experts' mesh; raise ep"
        )
        require(
            ranks % inner == 0,
            f"etp * ep = {self.expert_tensor} * {self.ep} = {inner} does not divide dp * fsdp * cp * tp = {ranks}: "
            "the experts' mesh covers the ranks of one stage (etp is as tp unless it is given)",
        )

    def _check_order(self) -> None:
        if self.order is None:
            return
        known = sorted(self.order) == sorted(set(self.order)) and set(self.order) <= set(DENSE_AXES)
        left = [axis for axis in DENSE_AXES if axis not in self.order and getattr(self, axis) > 1]
        require(
            known and not left, f"order={'-'.join(self.order)}: expected each of {', '.join(DENSE_AXES)} once, innermost first"
        )

    @property
    def _product(self) -> str:
        return " * ".join(f"{axis}={getattr(self, axis)}" for axis in ("pp", "dp", "fsdp", "cp", "tp"))

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.pp * self.dp * self.fsdp * self.cp * self.tp

    @property
    def data_parallel(self) -> int:
        """Ranks that work on different sequences: dp * fsdp."""
        return self.dp * self.fsdp

    @property
    def zero_stage(self) -> int:
        """`zero`, or what follows from the degrees."""
        return (3 if self.fsdp > 1 else 0) if self.zero is None else self.zero

    @property
    def chunks(self) -> int:
        """Model chunks per pipeline rank: two in the V of DualPipeV (its fold puts the first and the last on rank 0)."""
        return 2 if self.schedule == "dualpipev" else self.virtual

    @property
    def expert_tensor(self) -> int:
        """Tensor parallelism inside an expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def edp(self) -> int:
        """Replicas of an expert within a stage: dp * fsdp * cp * tp / (ep * etp)."""
        return self.world // self.pp // (self.ep * self.expert_tensor)

    @property
    def axis_order(self) -> tuple[str, ...]:
        """The dimensions of the mesh of ranks, innermost first.

        By default tp, cp, fsdp, pp, dp, as Llama 3 was laid out (arXiv 2407.21783, section 3.3.2). Where the experts need the
        ranks of dp, dp comes before pp, as in Megatron (tp-cp-ep-dp-pp), so that an expert group lies together.
        """
        if self.order is not None:
            return (*self.order, *(axis for axis in DENSE_AXES if axis not in self.order))
        if self.ep > 1 and self.expert_tensor * self.ep > self.tp * self.cp * self.fsdp:
            return ("tp", "cp", "fsdp", "dp", "pp")
        return ("tp", "cp", "fsdp", "pp", "dp")

    @property
    def shard_dimensions(self) -> tuple[str, ...]:
        """What the states are sharded over, innermost first; cp takes part, as it holds the same parameters. Empty: nothing."""
        if self.zero_stage == 0:
            return ()
        return self._wide("cp", "fsdp" if self.fsdp > 1 else "dp")

    @property
    def replica_dimensions(self) -> tuple[str, ...]:
        """What gradients are all-reduced over: dp and cp without sharding, dp in HSDP, nothing else."""
        return self._wide(*(axis for axis in ("cp", "fsdp", "dp") if axis not in self.shard_dimensions))

    def _wide(self, *axes: str) -> tuple[str, ...]:
        return tuple(axis for axis in self.axis_order if axis in axes and getattr(self, axis) > 1)

    def degree(self, axis: str) -> int:
        """Ranks in a group of the axis: one of DENSE_AXES or EXPERT_AXES."""
        return self.expert_tensor if axis == "etp" else int(getattr(self, axis))

    # Ranks. Rank r sits on GPU r: consecutive ranks fill a scale-up domain.

    def groups(self, *dimensions: str) -> np.ndarray:
        """The groups over mesh dimensions (innermost first), int64 of shape (groups, ranks per group), in order of first member.

        Raises OptionError for an unknown dimension, or one of each mesh: a group lies in the dense or in the experts' mesh.
        """
        import numpy as np

        experts = bool(set(dimensions) & set(EXPERT_AXES))
        order = (*EXPERT_AXES, "pp") if experts else self.axis_order
        for axis in dimensions:
            require(axis in order, f"no group over {' x '.join(dimensions)}: expected dimensions among {', '.join(order)}")
        mesh = self._mesh()
        if experts:
            stages = np.moveaxis(mesh, self._position("pp"), 0)
            mesh = stages.reshape(self.pp, self.edp, self.ep, self.expert_tensor)
        outermost_first = order[::-1]
        inside = [outermost_first.index(axis) for axis in dimensions[::-1]]
        outside = [position for position in range(mesh.ndim) if position not in inside]
        size = 1
        for axis in dimensions:
            size *= self.degree(axis)
        found = mesh.transpose(*outside, *inside).reshape(-1, size)
        return found[np.argsort(found[:, 0], kind="stable")]

    def _mesh(self) -> np.ndarray:
        """Ranks by their coordinates, the outermost dimension first."""
        import numpy as np

        return np.arange(self.world, dtype=np.int64).reshape([getattr(self, axis) for axis in self.axis_order[::-1]])

    def _position(self, axis: str) -> int:
        return self.axis_order[::-1].index(axis)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is on both meshes, by dimension. Raises OptionError for a rank outside of the world."""
        require(0 <= rank < self.world, f"rank {rank}: expected 0 to {self.world - 1}")
        found, rest = {}, rank
        for axis in self.axis_order:
            rest, found[axis] = divmod(rest, getattr(self, axis))
        inner = 0
        for axis in reversed([axis for axis in self.axis_order if axis != "pp"]):
            inner = inner * getattr(self, axis) + found[axis]
        for axis in EXPERT_AXES:
            inner, found[axis] = divmod(inner, self.degree(axis))
        return found

    def placement(self, domain: int, *dimensions: str) -> Placement:
        """How the groups over mesh dimensions lie in scale-up domains of `domain` devices."""
        import numpy as np

        require(domain >= 1, f"a domain of {domain} devices: expected 1 or more")
        groups = self.groups(*dimensions)
        count, size = groups.shape
        # One key per (group, domain): how often it occurs is how many members of the group the domain holds.
        keys, members = np.unique(np.arange(count)[:, None] * self.world + groups // domain, return_counts=True)
        touched = np.bincount(keys // self.world, minlength=count)
        return Placement(
            axis=" x ".join(dimensions),
            dimensions=dimensions,
            size=size,
            ranks_per_domain=int(members.max()),
            domains=int(touched.max()),
            uniform=bool(members.min() == members.max() and touched.min() == touched.max()),
        )

    def placements(self, domain: int) -> dict[str, Placement]:
        """How each axis of more than one rank lies in scale-up domains of `domain` devices, by axis."""
        axes = (*DENSE_AXES, *EXPERT_AXES) if self.ep > 1 else DENSE_AXES
        return {axis: self.placement(domain, axis) for axis in axes if self.degree(axis) > 1}

    # What the layout asks of the machine and of the model.

    def check_gpus(self, gpus: int) -> None:
        """Raises OptionError unless the ranks are exactly the GPUs."""
        require(
            self.world == gpus,
            f"layout: {self._product} makes {self.world} ranks, but there are {gpus} GPUs: expected equal numbers",
        )

    def check_model(self, model: Model) -> None:
        """Raises OptionError, with the two numbers, for a degree that does not divide what it has to."""
        at_tp = f"tp={self.tp}"
        self._divides(at_tp, self.tp, "heads", model.heads, model)
        if model.latent is None:
            self._divides(at_tp, self.tp, "kv_heads", model.kv_heads, model)
        if "dense" in model.layer_kinds:
            self._divides(at_tp, self.tp, "intermediate", model.intermediate, model)
        padded = -(-model.vocab // self.tp) * self.tp
        fits = model.vocab % self.tp == 0
        require(
            fits,
            f"layout: {at_tp} does not divide vocab={model.vocab} of {model.name}: pad the vocabulary to {padded} in the model",
        )
        if self.context == "ulysses":
            heads, kv_heads = model.heads // self.tp, model.kv_heads // self.tp
            self._divides(f"cp={self.cp} (ulysses)", self.cp, "heads per tp rank", heads, model)
            self._divides(f"cp={self.cp} (ulysses)", self.cp, "kv_heads per tp rank", kv_heads, model)
        if model.experts is None:
            require(self.ep == 1, f"layout: ep={self.ep}, but {model.name} has no experts: leave ep out")
        else:
            self._divides(f"ep={self.ep}", self.ep, "experts", model.experts.count, model)
            self._divides(
                f"etp={self.expert_tensor}", self.expert_tensor, "expert intermediate", model.experts.intermediate, model
            )
        self.chunk_layers(model)

    def _divides(self, part: str, degree: int, what: str, number: int, model: Model) -> None:
        if number % degree:
            fitting = [d for d in range(1, min(number, 4096) + 1) if number % d == 0]
            near = ", ".join(map(str, fitting if len(fitting) <= 12 else [*fitting[:11], "..."]))
            require(False, f"layout: {part} does not divide {what}={number} of {model.name}: use one of {near}")

    def chunk_layers(self, model: Model) -> tuple[int, ...]:
        """Layers of each model chunk, in order of the model. Raises OptionError where they do not come out even."""
        chunks = self.pp * self.chunks
        if self.split is not None:
            total = sum(self.split)
            text = f"layout: split adds up to {total} layers, but {model.name} has layers={model.layers}"
            require(total == model.layers, f"{text}: expected equal numbers")
            return self.split
        per_rank = f" and {self.chunks} chunks per rank" if self.chunks > 1 else ""
        text = f"layout: pp={self.pp}{per_rank} make {chunks} chunks"
        require(chunks <= model.layers, f"{text}, but {model.name} has layers={model.layers}: lower pp")
        even, rest = divmod(model.layers, chunks)
        if rest:
            # The ends are lighter, as they also hold the embedding and the head: Llama 3 405B has 126 layers on 16 stages so.
            lighter = [chunk for pair in zip(range(chunks), range(chunks - 1, -1, -1), strict=True) for chunk in pair]
            less = set(list(dict.fromkeys(lighter))[: chunks - rest])
            fitting = tuple(even if chunk in less else even + 1 for chunk in range(chunks))
            advice = f"say how many each has, such as split={split_text(fitting)}"
            require(False, f"{text}, which do not divide layers={model.layers} of {model.name}: {advice}")
        return (even,) * chunks


def split_text(split: tuple[int, ...]) -> str:
    """7-8x14-7: seven layers, fourteen times eight, seven."""
    runs: list[list[int]] = []
    for layers in split:
        if runs and runs[-1][0] == layers:
            runs[-1][1] += 1
        else:
            runs.append([layers, 1])
    return "-".join(f"{layers}x{count}" if count > 1 else f"{layers}" for layers, count in runs)


_KEYS = ("tp", "pp", "dp", "fsdp", "cp", "ep", "etp", "sp", "zero", "schedule", "order", "split")
_SCHEDULES = get_args(Schedule)
_CONTEXTS = get_args(ContextKind)


def parse_layout(text: str) -> Layout:
    """The Layout of `tp=8,pp=2,dp=4,schedule=interleaved:2,sp,zero=1`; also cp=4:ulysses, order=tp-cp-fsdp-dp-pp, split=7-8x14-7.

    Raises OptionError that starts with "layout:" and names the part.
    """
    given = pairs(text, "layout", _KEYS, flags=("sp",))
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            fields[key] = True
        elif key == "schedule":
            name, colon, virtual = value.partition(":")
            require(name in _SCHEDULES, f"layout: schedule={shown(name)[1:-1]}: {nearest(name, _SCHEDULES)}")
            fields |= {"schedule": name} | ({"virtual": whole(virtual, "layout", "schedule: virtual")} if colon else {})
        elif key == "cp":
            degree, colon, kind = value.partition(":")
            require(not colon or kind in _CONTEXTS, f"layout: cp={shown(value)[1:-1]}: {nearest(kind, _CONTEXTS)}")
            fields |= {"cp": whole(degree, "layout", "cp")} | ({"context": kind} if colon else {})
        elif key == "order":
            fields["order"] = tuple(value.split("-"))
        elif key == "split":
            fields["split"] = _split(value)
        else:
            fields[key] = whole(value, "layout", key)
    return made("layout", lambda: Layout(**fields))


def _split(text: str) -> tuple[int, ...]:
    layers: list[int] = []
    for run in text.split("-"):
        number, x, count = run.partition("x")
        repeats = whole(count, "layout", "split") if x else 1
        require(len(layers) + repeats <= MOST_RANKS, f"layout: split has more than {MOST_RANKS} chunks")
        layers += [whole(number, "layout", "split")] * repeats
    return tuple(layers)


def layout_text(layout: Layout) -> str:
    """The one-line form of a Layout, without what is as by default; `parse_layout` reverses it."""
    parts = [f"{axis}={getattr(layout, axis)}" for axis in ("tp", "pp", "dp", "fsdp") if getattr(layout, axis) > 1]
    if layout.cp > 1:
        parts.append(f"cp={layout.cp}" + (f":{layout.context}" if layout.context != "ring" else ""))
    parts += [f"ep={layout.ep}"] if layout.ep > 1 else []
    parts += [f"etp={layout.etp}"] if layout.etp is not None else []
    parts += ["sp"] if layout.sp else []
    parts += [f"zero={layout.zero}"] if layout.zero is not None else []
    if layout.schedule != "1f1b":
        parts.append(f"schedule={layout.schedule}" + (f":{layout.virtual}" if layout.virtual > 1 else ""))
    parts += [f"order={'-'.join(layout.order)}"] if layout.order is not None else []
    parts += [f"split={split_text(layout.split)}"] if layout.split is not None else []
    return ",".join(parts)
