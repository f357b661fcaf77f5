"""Sizes of one micro-batch on one rank: what every block needs to know of model, layout and workload."""

from __future__ import annotations

import dataclasses

from underlap.cost.work import Stream
from underlap.layout import Layout
from underlap.model import Model
from underlap.workload import Decode, Train, Workload

ACTIVATION = "bf16"
"""What the residual stream, and all between the products, is kept in. Products may be narrower (fp8)."""

WIDE = "fp32"
"""Of routing weights, of softmax statistics, and of what the optimizer keeps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """Model, layout and workload, and the sizes that follow."""

    model: Model
    layout: Layout
    workload: Workload

    @property
    def train(self) -> bool:
        return isinstance(self.workload, Train)

    @property
    def activation(self) -> str:
        """Precision of activations."""
        return self.workload.precision if self.workload.precision in ("fp32", "fp16") else ACTIVATION

    @property
    def precision(self) -> str:
        """Of the products."""
        return self.workload.precision

    @property
    def replicas(self) -> int:
        """Ranks that work on different sequences."""
        return self.layout.dp * self.layout.fsdp

    @property
    def sequences(self) -> int:
        """Of one micro-batch on one rank."""
        if isinstance(self.workload, Train):
            return self.workload.mbs
        return self.workload.mbs or max(1, self.workload.batch // self.replicas)

    @property
    def micro_batches(self) -> int:
        """Of one rank in one step."""
        whole = self.workload.gbs if isinstance(self.workload, Train) else self.workload.batch
        return max(1, whole // self.replicas // self.sequences)

    @property
    def query(self) -> int:
        """Positions per sequence that one rank works on."""
        return 1 if isinstance(self.workload, Decode) else self.workload.seq // self.layout.cp

    @property
    def context(self) -> int:
        """Positions per sequence that attention looks at, over all ranks of cp."""
        return self.workload.context + 1 if isinstance(self.workload, Decode) else self.workload.seq

    @property
    def tokens(self) -> int:
        """Of one micro-batch, where tensor-parallel ranks hold all of them."""
        return self.sequences * self.query

    @property
    def rows(self) -> int:
        """Tokens of the residual stream on one rank: with sequence parallelism tp holds parts of them."""
        return self.tokens // self.layout.tp if self.layout.sp else self.tokens

    @property
    def hidden(self) -> int:
        return self.model.hidden

    @property
    def heads(self) -> int:
        """Query heads of one rank."""
        return self.model.heads // self.layout.tp

    @property
    def kv_heads(self) -> int:
        """Key and value heads of one rank; copied where tp exceeds their number."""
        return max(1, self.model.kv_heads // self.layout.tp)

    @property
    def key_width(self) -> int:
        """Keys and values of one token on one rank, in elements."""
        return self.kv_heads * (self.model.head_dim + self.model.value_dim)

    @property
    def qkv_width(self) -> int:
        """Queries, keys and values of one token on one rank, in elements."""
        return self.heads * self.model.head_dim + self.key_width

    @property
    def normed_width(self) -> int:
        """Queries and keys of one token on one rank that have norms of their own, in elements; 0 where none do."""
        if not self.model.qk_norm or self.model.latent is not None:
            return 0
        return (self.heads + self.kv_heads) * self.model.head_dim

    @property
    def context_width(self) -> int:
        """What attention gives for one token on one rank, in elements."""
        return self.heads * self.model.value_dim

    @property
    def etp(self) -> int:
        """Tensor parallelism inside experts."""
        return self.layout.tp if self.layout.etp is None else self.layout.etp

    def stream(self, read: float, write: float, flops: float = 0.0) -> Stream:
        """Memory-bound work on so many elements of the activations' precision."""
        size = 4 if self.activation == "fp32" else 2
        return self.bytes_stream(read * size, write * size, flops)

    def bytes_stream(self, read_bytes: float, write_bytes: float, flops: float = 0.0) -> Stream:
        """Memory-bound work on so many bytes."""
        return Stream(read_bytes=read_bytes, write_bytes=write_bytes, flops=flops)
