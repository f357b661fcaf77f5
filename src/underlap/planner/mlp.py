"""The dense MLP of a layer, forward and backward."""

from __future__ import annotations

from underlap.planner import linear
from underlap.planner.drafting import Draft
from underlap.planner.shapes import Shapes


def forward(draft: Draft, shapes: Shapes) -> None:
    """middle -> hidden of the next layer."""
    linear.norm(draft, shapes, "mlp.norm", "middle", "mlp.normed")
    source = linear.gather_rows(draft, shapes, "mlp.gather", "mlp.normed")
    partial = feed_forward(draft, shapes, "mlp", source, shapes.model.intermediate // shapes.layout.tp)
    total = linear.sum_partials(draft, shapes, "mlp.reduce", partial)
    linear.residual(draft, shapes, "mlp.residual", "middle", total, linear.stream_onward(draft, shapes))


def backward(draft: Draft, shapes: Shapes) -> None:
    """Gradient of the next layer's hidden -> gradient of middle."""
    draft.buffer("grad.hidden", shapes.rows, shapes.hidden)
    if shapes.layout.sp:
        whole = draft.buffer("grad.hidden.whole", shapes.tokens, shapes.hidden)
        linear.gather_named(draft, shapes, "mlp.reduce", "grad.hidden+1", whole)
    else:
        whole = "grad.hidden+1"
    source = linear.gather_rows(draft, shapes, "mlp.gather_again", "mlp.normed")
    inner = shapes.model.intermediate // shapes.layout.tp
    partial = feed_forward_backward(draft, shapes, "mlp", source, whole, inner)
    total = linear.sum_partials(draft, shapes, "mlp.gather", partial)
    draft.buffer("grad.middle", shapes.rows, shapes.hidden)
    linear.norm_backward(draft, shapes, "mlp.norm", "middle", (total, "grad.hidden+1"), "grad.middle")


def feed_forward(draft: Draft, shapes: Shapes, name: str, source: str, inner: int) -> str:
    """Up, activation, down. Returns the name of the result, a partial sum over tp."""
    up, down = _sizes(shapes, inner)
    draft.buffer(f"{name}.upped", shapes.tokens, up[1])
    linear.forward(draft, shapes, f"{name}.up", up, source, f"{name}.upped")
    draft.buffer(f"{name}.activated", shapes.tokens, inner)
    activation(draft, shapes, name, shapes.tokens * up[1], shapes.tokens * inner)
    partial = draft.buffer(f"{name}.partial", shapes.tokens, shapes.hidden)
    linear.forward(draft, shapes, f"{name}.down", down, f"{name}.activated", partial)
    return partial


def feed_forward_backward(draft: Draft, shapes: Shapes, name: str, source: str, gradient: str, inner: int) -> str:
    """The same backward, from the gradient of its result. Returns the name of the gradient of its source, a partial sum."""
    up, down = _sizes(shapes, inner)
    draft.buffer(f"grad.{name}.activated", shapes.tokens, inner)
    linear.backward(draft, shapes, f"{name}.down", down, f"{name}.activated", gradient, f"grad.{name}.activated")
    draft.buffer(f"grad.{name}.upped", shapes.tokens, up[1])
    activation_backward(draft, shapes, name, shapes.tokens * up[1], shapes.tokens * inner)
    partial = draft.buffer(f"grad.{name}.source", shapes.tokens, shapes.hidden)
    linear.backward(draft, shapes, f"{name}.up", up, source, f"grad.{name}.upped", partial)
    return partial


def activation(draft: Draft, shapes: Shapes, name: str, read: int, write: int) -> None:
    """SwiGLU or GELU on so many elements."""
    draft.compute(f"{name}.activation", shapes.stream(read, write, 4 * write), f"{name}.upped", f"{name}.activated")


def activation_backward(draft: Draft, shapes: Shapes, name: str, read: int, write: int) -> None:
    """Its gradient: reads its input and the gradient of its result."""
    draft.compute(
        f"{name}.activation",
        shapes.stream(read + write, read, 8 * write),
        f"{name}.upped grad.{name}.activated",
        f"grad.{name}.upped",
    )


def _sizes(shapes: Shapes, inner: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(rows, outputs, inputs) of the way up and of the way down."""
    gates = 2 if shapes.model.gated else 1
    return (shapes.tokens, gates * inner, shapes.hidden), (shapes.tokens, shapes.hidden, inner)
