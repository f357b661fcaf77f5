"""What each operation of a Plan computes. One file per group; `bound` finds the function by role and phase."""

from __future__ import annotations

from collections.abc import Callable

from underlap.errors import PlanError
from underlap.run.machine import Closure, Rank, Site
from underlap.run.operations import activation, attention, ends, experts, norm, optimizer, products, ring
from underlap.run.program import Instruction

Binder = Callable[[Site], Closure]

_FORWARD = frozenset({"forward", "recompute", "prefill", "decode"})

_BOUND: dict[str, tuple[Binder | None, Binder | None]] = {
    # role: (forward, backward)
    "attention.norm": (norm.forward, norm.backward),
    "mlp.norm": (norm.forward, norm.backward),
    "head.norm": (norm.forward, norm.backward),
    "attention.qk_norm": (norm.of_heads, norm.of_heads_backward),
    "attention.rotary": (attention.rotary, attention.rotary_backward),
    "attention.core": (attention.core, attention.core_backward),
    "attention.append": (attention.append, None),
    "attention.pack": (ring.pack, None),
    "attention.merge": (ring.merge, None),
    "attention.unpack": (None, ring.unpack),
    "attention.residual": (norm.add_up, None),
    "mlp.residual": (norm.add_up, None),
    "shared.add": (None, norm.add_up),
    "mlp.activation": (activation.forward, activation.backward),
    "shared.activation": (activation.forward, activation.backward),
    "experts.activation": (activation.forward, activation.backward),
    "experts.up": (experts.product, experts.input_gradient),
    "experts.down": (experts.product, experts.input_gradient),
    "router.choose": (experts.choose, experts.choose_backward),
    "router.logits": (products.forward, products.input_gradient),
    "experts.permute": (experts.permute, experts.permute_backward),
    "experts.merge": (experts.merge, experts.merge_backward),
    "experts.dispatch.local": (experts.local, experts.local),
    "experts.combine.local": (experts.local, experts.local),
    "embedding.look_up": (ends.look_up, None),
    "embedding.place": (norm.copy, None),
    "head.maximum": (ends.maximum, None),
    "head.loss": (ends.loss, ends.loss_backward),
    "tie.add": (None, norm.add_up),
    "head.logits": (ends.logits, products.input_gradient),
    **dict.fromkeys(
        ("attention.qkv", "attention.output", "mlp.up", "mlp.down", "shared.up", "shared.down"),
        (products.forward, products.input_gradient),
    ),
}

_WEIGHT_GRADIENTS: dict[str, Binder] = {
    "embedding.look_up": ends.look_up_gradient,
    "experts.up": experts.weight_gradient,
    "experts.down": experts.weight_gradient,
}


def bound(rank: Rank, instruction: Instruction) -> Closure:
    """The closure that carries out a computing instruction. Raises PlanError for one that the engine does not know."""
    site = Site(rank, instruction)
    role = instruction.role
    if instruction.phase == "weight_grad":
        return _WEIGHT_GRADIENTS.get(role, products.weight_gradient)(site)
    if instruction.phase == "optimizer" and "optimizer.step." in role:
        return optimizer.step(site)
    forward, backward = _BOUND.get(role, (None, None))
    binder = forward if instruction.phase in _FORWARD else backward
    if binder is None:
        raise PlanError(f"{instruction.key}: the engine does not know how to compute this: expected one of {', '.join(_BOUND)}")
    return binder(site)
