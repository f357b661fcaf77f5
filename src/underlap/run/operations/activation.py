"""What lies between the two products of an MLP: SwiGLU, or GELU where there is no gate."""

from __future__ import annotations

import torch
from torch.nn import functional

from underlap.run.machine import Closure, Site


def forward(site: Site) -> Closure:
    """result = silu(gate) * up, of one buffer that holds gate and up side by side; or gelu(up)."""
    memory, reads = site.rank.memory, site.instruction.reads
    put, gated = site.into(site.instruction.writes[0]), site.model.gated

    def run() -> None:
        upped = memory.view(reads[0])
        if not gated:
            put(functional.gelu(upped))
            return
        gate, up = upped.chunk(2, dim=-1)
        put(functional.silu(gate) * up)

    return run


def backward(site: Site) -> Closure:
    """Gradient of upped from that of the result."""
    memory, reads = site.rank.memory, site.instruction.reads
    put, gated = site.into(site.instruction.writes[0]), site.model.gated

    def run() -> None:
        upped, gradient = memory.view(reads[0]).float(), memory.view(reads[1]).float()
        if not gated:
            put(torch.ops.aten.gelu_backward(gradient, upped))
            return
        gate, up = upped.chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        through_gate = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
        put(torch.cat((through_gate, gradient * gate * sigmoid), dim=-1))

    return run
