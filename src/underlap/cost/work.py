"""The vocabulary of work: what one operation of a plan has to get done, with its exact floating-point operations and bytes.

Plan, simulate, analyze and lint all speak it. Does not know how long anything takes (compute.py, collectives.py) nor what an
algorithm adds on top: bytes here are the least that has to move, each operand once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from underlap.errors import OptionError

ELEMENT_BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp6": 0.75,
    "fp4": 0.5,
}
"""Of one element; scale factors of block formats are not counted (1 byte per 16 or 32 elements)."""

REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})

COLLECTIVES = REDUCTIONS | {"all_gather", "all_to_all", "broadcast", "send", "dispatch", "combine"}
"""What a Transfer can be. `send` is one message between two ranks; dispatch and combine are those of mixtures of experts."""


def element_bytes(precision: str) -> float:
    """Bytes of one element. Raises OptionError for a precision that has no known size."""
    size = ELEMENT_BYTES.get(precision)
    if size is None:
        raise OptionError(f"Unknown precision {precision!r}: expected one of {', '.join(ELEMENT_BYTES)}")
    return size


def _positive(record: msgspec.Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(record, field)
        if value < 1:
            raise OptionError(f"{type(record).__name__}.{field} is {value}: expected 1 or more")


def _not_negative(record: msgspec.Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(record, field)
        if value < 0:
            raise OptionError(f"{type(record).__name__}.{field} is {value}: expected 0 or more")


class Gemm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gemm", tag_field="kind"):
    """A matrix product (m, k) x (k, n) -> (m, n), `batch` times; or, with groups, one product per expert in one kernel.

    With groups along m (forward, input gradient) the m rows are divided among the groups, each with its own (k, n).
    With groups along k (weight gradient) the k rows are, each group with its own result (m, n).
    """

    m: int
    n: int
    k: int
    batch: int = 1
    precision: str = "bf16"
    """Of the operands."""
    groups: int | tuple[int, ...] = 1
    """How many equal groups, or the rows of each group (they add up to m, or to k); a group may be empty."""
    groups_along: Literal["m", "k"] = "m"
    output: str | None = None
    """Precision of the result; None: that of the operands, but at least 16 bits."""
    accumulate: bool = False
    """The result is added to what lies there (gradient accumulation), so it is read as well."""

    def __post_init__(self) -> None:
        element_bytes(self.precision)
        if self.output is not None:
            element_bytes(self.output)
        _not_negative(self, "m", "k")  # an expert without tokens has no rows
        _positive(self, "n", "batch")
        rows = self.m if self.groups_along == "m" else self.k
        if isinstance(self.groups, int):
            if self.groups < 1:
                raise OptionError(f"Gemm.groups is {self.groups}: expected 1 or more, or the rows of each group")
        elif not self.groups or min(self.groups) < 0 or sum(self.groups) != rows:
            raise OptionError(
                f"Gemm.groups has {len(self.groups)} groups with {sum(self.groups)} rows in all: "
                f"expected rows of 0 or more that add up to {self.groups_along} = {rows}"
            )

    @property
    def group_count(self) -> int:
        return self.groups if isinstance(self.groups, int) else len(self.groups)

    @property
    def group_rows(self) -> tuple[float, ...]:
        """Rows of each group along m or k; equal groups have the mean, which need not be whole."""
        if isinstance(self.groups, int):
            return ((self.m if self.groups_along == "m" else self.k) / self.groups,) * self.groups
        return tuple(float(rows) for rows in self.groups)

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def output_bytes_per_element(self) -> float:
        return max(2.0, element_bytes(self.precision)) if self.output is None else element_bytes(self.output)

    @property
    def _output_bytes(self) -> float:
        results = self.group_count if self.groups_along == "k" else 1
        return self.batch * results * self.m * self.n * self.output_bytes_per_element

    @property
    def read_bytes(self) -> float:
        """Both operands once, weights of groups without rows not at all, and the result where it is accumulated into."""
        used = self.group_count if isinstance(self.groups, int) else sum(rows > 0 for rows in self.groups)
        weights = self.n * self.k * (used if self.groups_along == "m" else 1)
        operands = self.batch * (self.m * self.k + weights) * element_bytes(self.precision)
        return operands + (self._output_bytes if self.accumulate else 0.0)

    @property
    def write_bytes(self) -> float:
        return self._output_bytes


class Attention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="attention", tag_field="kind"):
    """Attention in one fused kernel that never writes the scores (FlashAttention), forward or backward."""

    batch: int
    heads: int
    kv_heads: int
    query: int
    """Query positions per sequence."""
    context: int
    """Key positions per sequence; with causal masking the queries are the last of them."""
    head_dim: int
    """Of queries and keys."""
    value_dim: int | None = None
    """Of values and the result; None: as head_dim."""
    causal: bool = True
    window: int | None = None
    """Keys that a query sees at most, its own included (sliding window); causal only."""
    shared_values: bool = False
    """Values are part of the keys and are read with them (multi-head latent attention, absorbed form)."""
    backward: bool = False
    precision: str = "bf16"

    def __post_init__(self) -> None:
        element_bytes(self.precision)
        _positive(self, "batch", "heads", "kv_heads", "query", "context", "head_dim")
        if self.value_dim is not None:
            _positive(self, "value_dim")
        if self.heads % self.kv_heads:
            raise OptionError(f"Attention.heads is {self.heads}: expected a multiple of kv_heads = {self.kv_heads}")
        if self.window is not None:
            _positive(self, "window")
            if not self.causal:
                raise OptionError("Attention.window is set without causal: expected a causal mask")

    @property
    def value_width(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def pairs(self) -> int:
        """(query, key) pairs of one head of one sequence that the mask leaves."""
        if not self.causal:
            return self.query * self.context
        seen = min(self.window or self.context, self.context)
        # Query j of the last `query` positions sees min(seen, context - query + j + 1) keys, none where that is below 1.
        first = max(self.context - self.query, 0) + 1
        rising = max(seen - first, 0)
        queries = self.context - first + 1
        return rising * first + rising * (rising - 1) // 2 + (queries - rising) * seen

    @property
    def flops(self) -> float:
        """Forward: scores and result. Backward: scores again, and the gradients of values, probabilities, queries and keys.

        FlashAttention-2, arXiv 2307.08691, section 3.1: two products forward, five backward.
        """
        products = 3 * self.head_dim + 2 * self.value_width if self.backward else self.head_dim + self.value_width
        return 2.0 * self.batch * self.heads * self.pairs * products

    @property
    def _sizes(self) -> tuple[float, float, float, float, float]:
        """Bytes of queries, keys, values, result and the fp32 log-sum-exp of each row."""
        size = element_bytes(self.precision)
        rows, keys = self.batch * self.query, self.batch * self.context
        if self.window is not None:
            keys = self.batch * min(self.context, self.query + self.window - 1)
        return (
            rows * self.heads * self.head_dim * size,
            keys * self.kv_heads * self.head_dim * size,
            0.0 if self.shared_values else keys * self.kv_heads * self.value_width * size,
            rows * self.heads * self.value_width * max(size, 2.0),
            rows * self.heads * 4.0,
        )

    @property
    def read_bytes(self) -> float:
        """Backward also reads the result, its gradient, and two fp32 numbers per row."""
        queries, keys, values, result, rows = self._sizes
        return queries + keys + values + (2 * result + 2 * rows if self.backward else 0.0)

    @property
    def write_bytes(self) -> float:
        """Backward writes the gradients of queries, keys and values; its fp32 partial sums stay in the cache."""
        queries, keys, values, result, rows = self._sizes
        return queries + keys + values if self.backward else result + rows


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stream", tag_field="kind"):
    """Work that memory bounds: norms, activations, rotary embedding, residual, router, optimizer, casts."""

    read_bytes: float
    write_bytes: float
    flops: float = 0.0
    """On vectors, in fp32."""

    def __post_init__(self) -> None:
        _not_negative(self, "read_bytes", "write_bytes", "flops")


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the tokens of a mixture of experts go, as far as the transfer has to know."""

    topk: int
    experts: int
    domains_per_token: int | None = None
    """At most so many scale-up domains per token (node-limited routing); None: no limit."""

    def __post_init__(self) -> None:
        _positive(self, "topk", "experts")
        if self.topk > self.experts:
            raise OptionError(f"Routing.topk is {self.topk}: expected at most experts = {self.experts}")
        if self.domains_per_token is not None:
            _positive(self, "domains_per_token")


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="transfer", tag_field="kind"):
    """One rank's part in a collective or message.

    Payload: all-reduce input, all-gather output, reduce-scatter input, all-to-all sent (self included), broadcast, reduce and
    send the message; dispatch and combine the rank's own tokens, each once, whatever number of ranks it goes to.
    """

    collective: str
    payload_bytes: float
    ranks: int
    span: tuple[int, int] | None = None
    """(ranks per scale-up domain, domains), how the group lies in the machine; None: all ranks in one domain."""
    uneven: float = 1.0
    """The largest rank's share over the mean (all-to-all, dispatch, combine)."""
    routing: Routing | None = None
    """Of dispatch and combine."""
    algorithm: str | None = None
    """None: the tuner chooses."""
    protocol: str | None = None
    """None: the tuner chooses."""
    ctas: int | None = None
    """Thread blocks given to it, each on an SM of its own; None: what the library takes. 0 only by copy engines."""
    gathered: int = 1
    """Of a send: so many ranks of one domain send a part each of what they all hold; the receivers gather it among themselves."""

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise OptionError(f"Unknown collective {self.collective!r}: expected one of {', '.join(sorted(COLLECTIVES))}")
        _not_negative(self, "payload_bytes")
        _positive(self, "ranks", "uneven")
        if self.span is not None and (min(self.span) < 1 or self.span[0] * self.span[1] != self.ranks):
            raise OptionError(
                f"Transfer.span is {self.span[0]} x {self.span[1]}: expected ranks per domain and domains, "
                f"with a product of ranks = {self.ranks}"
            )
        if (self.routing is not None) != (self.collective in {"dispatch", "combine"}):
            raise OptionError(f"Transfer.routing goes with dispatch and combine only: the collective is {self.collective}")
        if self.ctas is not None:
            _not_negative(self, "ctas")
        _positive(self, "gathered")
        if self.gathered > 1 and self.collective != "send":
            raise OptionError(f"Transfer.gathered goes with send only: the collective is {self.collective}")

    @property
    def placed(self) -> tuple[int, int]:
        """(ranks per scale-up domain, domains)."""
        return (self.ranks, 1) if self.span is None else self.span


class Copy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="copy", tag_field="kind"):
    """A copy by the copy engines: offload, prefetch, or within the device."""

    bytes: float
    direction: Literal["host_to_device", "device_to_host", "device_to_device"]

    def __post_init__(self) -> None:
        _not_negative(self, "bytes")

    @property
    def flops(self) -> float:
        return 0.0

    @property
    def read_bytes(self) -> float:
        """From the device's memory."""
        return 0.0 if self.direction == "host_to_device" else self.bytes

    @property
    def write_bytes(self) -> float:
        """To the device's memory."""
        return 0.0 if self.direction == "device_to_host" else self.bytes


ComputeWork = Gemm | Attention | Stream
Work = Gemm | Attention | Stream | Transfer | Copy
