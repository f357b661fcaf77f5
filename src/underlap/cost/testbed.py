"""`Testbed`: what ranks on the cores of one machine were measured to take, and prices of works from it.

`underlap calibrate` writes it into the `measured` section of a cluster's YAML. Computation has points per operation, as the
engine carries each out by kernels of its own. A transfer of w bytes on the wire of one rank takes

    start + max(copy x w, wire x (w - burst))

as a link that is held to a rate lets a burst pass that has gathered while it was idle. Times are in us, as their names say; each
is the median of its repetitions, with the order statistics that hold the median with 95 % beside it.

What it does not know: other machines, ranks that share a core, other libraries than the one it names.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar, get_args

import msgspec

from underlap.documents import require, require_counts

Priority = Literal["default", "communication", "equal", "compute"]

FORWARD_PHASES = ("recompute", "prefill", "decode")
"""Whose operations are those of the forward pass."""

WEIGHT_GROUPS = frozenset({"fsdp", "dp", "expert_fsdp", "expert_dp"})
"""Groups that move weights and gradients, of which several go together; the others move rows of tokens. What the host does for a
transfer is measured and priced apart for the two (`Testbed.host`)."""


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number with the range that holds it; its unit is in the name of the field that it stands in."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.value) and math.isfinite(self.high), f"value is {self.value}: expected a finite number")
        require(
            0 <= self.low <= self.value <= self.high, f"{self.low} <= {self.value} <= {self.high}: expected low <= value <= high"
        )


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured time. Subclasses say of what."""

    us: float
    low_us: float
    high_us: float
    repetitions: int

    def __post_init__(self) -> None:
        require(0 < self.low_us <= self.us <= self.high_us < math.inf, f"us is {self.us}: expected 0 < low_us <= us <= high_us")
        require_counts(self, "repetitions")


class ProductPoint(Point, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A product (m, k) x (k, n), `groups` experts of together so many rows."""

    m: int
    n: int
    k: int
    groups: int = 1

    def __post_init__(self) -> None:
        Point.__post_init__(self)
        require_counts(self, "m", "n", "k", "groups")


class AttentionPoint(Point, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The core of attention: the engine computes all query x context scores, masked ones too."""

    batch: int
    heads: int
    query: int
    context: int
    head_dim: int

    def __post_init__(self) -> None:
        Point.__post_init__(self)
        require_counts(self, "batch", "heads", "query", "context", "head_dim")


class StreamPoint(Point, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work that memory bounds, by the bytes that the plan says it reads and writes."""

    bytes: float

    def __post_init__(self) -> None:
        Point.__post_init__(self)
        require(0 <= self.bytes < math.inf, f"bytes is {self.bytes}: expected 0 or more")


class TransferPoint(Point, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transfer alone, after a pause, by the bytes that each rank puts on the wire."""

    bytes: float

    def __post_init__(self) -> None:
        Point.__post_init__(self)
        require(0 < self.bytes < math.inf, f"bytes is {self.bytes}: expected more than 0")


class Compute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of operations while all ranks compute and nothing is sent."""

    products: dict[str, list[ProductPoint]]
    """forward, backward (of the input), weight_grad; with `experts.` before it, of grouped products."""
    attention: dict[str, list[AttentionPoint]]
    """forward, backward."""
    streams: dict[str, list[StreamPoint]]
    """By phase/role, such as backward/mlp.activation."""
    between_us: Value
    """From the end of one operation to the begin of the next."""
    residuals: dict[str, float] = {}
    """Share by which fitted times miss the points, root mean square: products, attention, streams."""

    def __post_init__(self) -> None:
        for name in ("products", "attention", "streams"):
            table = getattr(self, name)
            require(bool(table) and all(table.values()), f"{name}: expected points of at least one operation")


class Transfers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of transfer, per byte that a rank puts on the wire."""

    start_us: Value
    copy_ns_per_byte: Value
    """While a burst passes: what the cores need to copy."""
    wire_ns_per_byte: Value
    """On a link that is busy."""
    burst_bytes: Value
    cpu_start_us: Value
    """CPU time of the library's threads, per transfer and per byte."""
    cpu_ns_per_byte: Value
    first_of_two: Value
    """Of two that are issued at once: when the first was done, over when both were. About a half: one after the other."""
    residual: float
    """Share by which the fit misses the points, root mean square."""
    points: list[TransferPoint]


class HostCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the thread that computes does for a transfer, once and per byte of its payload."""

    pack_us: Value
    """Before the library is called."""
    pack_ns_per_byte: Value
    call_us: Value
    """In the call: the transfer may begin meanwhile."""
    finish_us: Value
    """Behind the wait, until what came is where it belongs."""
    finish_ns_per_byte: Value


class Beside(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What compute and transfers cost each other."""

    compute_stretch: Value
    """How many times longer computation takes beside a large transfer."""
    transfer_stretch: Value
    cpu_share: Value
    """Of a core, by the library's threads during that transfer alone."""

    def __post_init__(self) -> None:
        require(0 <= self.cpu_share.value < 1, f"cpu_share is {self.cpu_share.value}: expected 0 or more and less than 1")


class Testbed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `measured` section of a cluster."""

    __test__ = False  # pytest: it is no test

    library: Literal["gloo"]
    source: str
    """What measured it, when, with which versions."""
    ranks: int
    """That took part in each transfer, each on a core of its own."""
    precision: str
    fabric: str | None
    """As `--fabric` names it; null: plain loopback."""
    fabric_bytes_per_s: float | None
    """Of the link on the wire, headers included; null where nothing holds it to a rate."""
    priority: Priority
    """Whose threads came first on a core."""
    compute: Compute
    transfers: dict[str, Transfers]
    host: dict[str, HostCosts]
    """By collective and what it moves: all_gather/weights, all_gather/rows."""
    beside: Beside

    def __post_init__(self) -> None:
        require_counts(self, "ranks", largest=2**10)
        rate = self.fabric_bytes_per_s
        require(rate is None or 0 < rate < math.inf, f"fabric_bytes_per_s is {rate}: expected more than 0")
        known = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
        strange = [name for name in self.transfers if name not in known]
        require(not strange, f"transfers: {strange[:1]}: expected {', '.join(known)}")
        require(bool(self.transfers), f"transfers: expected at least one of {', '.join(known)}")

    @property
    def link_bytes_per_s(self) -> float:
        """Of the link that it was measured on; where nothing held that to a rate, what the largest transfers reached."""
        if self.fabric_bytes_per_s is not None:
            return self.fabric_bytes_per_s
        return max(1e9 / max(1e-3, one.wire_ns_per_byte.value) for one in self.transfers.values())

    def at_end(self, end: End) -> Testbed:
        """Every figure at this end of its range at once: what lies between the two holds whatever the ranges hold."""
        return _at_end(self, end)


End = Literal["quick", "slow"]
ENDS: tuple[End, ...] = get_args(End)
_MORE_IS_QUICKER = ("burst_bytes",)
"""Values of which the larger ones make a step shorter."""
_T = TypeVar("_T")


def _at_end(found: _T, end: End, *, more_is_quicker: bool = False) -> _T:
    """With every range in it, however deep, at one end."""
    if isinstance(found, Value):
        low = (end == "quick") != more_is_quicker
        return msgspec.structs.replace(found, value=found.low if low else found.high)
    if isinstance(found, Point):
        return msgspec.structs.replace(found, us=found.low_us if end == "quick" else found.high_us)
    if isinstance(found, msgspec.Struct):
        changed = {
            name: _at_end(getattr(found, name), end, more_is_quicker=name in _MORE_IS_QUICKER) for name in found.__struct_fields__
        }
        return msgspec.structs.replace(found, **changed)
    if isinstance(found, dict):
        return {name: _at_end(each, end) for name, each in found.items()}  # type: ignore[return-value]  # as it was
    return [_at_end(each, end) for each in found] if isinstance(found, list) else found  # type: ignore[return-value]  # as it was
