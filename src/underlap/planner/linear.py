"""Products with a weight, their gradients, and how tensor parallelism divides them (Megatron, arXiv 1909.08053, 2205.05198).

A column-parallel product needs the whole of its input and gives a part of its output; a row-parallel one gives a partial
sum. Without sequence parallelism the sum is all-reduced, and so is the gradient of the input of the column-parallel one.
With it the residual stream is divided along tokens: all-gather before, reduce-scatter behind, and the other way backward.
Then only the divided input of a column-parallel product is kept, and the backward gathers it again (section 4.2.2 of the
second): two all-gathers per layer beyond the four all-reduces' worth of bytes (`formulas.sequence_parallel_regather_bytes`).
"""

from __future__ import annotations

from underlap.cost.work import ELEMENT_BYTES, Gemm
from underlap.planner.drafting import Draft
from underlap.planner.shapes import Shapes


def forward(
    draft: Draft,
    shapes: Shapes,
    role: str,
    sizes: tuple[int, int, int],
    source: str,
    result: str,
    groups: int = 1,
    weight: str | None = None,
) -> None:
    """result = source x weight; sizes are (rows, outputs, inputs), with groups one weight for each group of rows.

    The weight is called as the role, unless it is given.
    """
    rows, outputs, inputs = sizes
    work = Gemm(m=rows, n=outputs, k=inputs, precision=shapes.precision, groups=groups)
    draft.compute(role, work, f"{source} weight.{weight or role}", result)


def backward(
    draft: Draft,
    shapes: Shapes,
    role: str,
    sizes: tuple[int, int, int],
    source: str,
    gradient: str,
    result: str,
    groups: int = 1,
) -> None:
    """result = gradient x weight^T, then gradient.weight += source^T x gradient; sizes as forward."""
    input_gradient(draft, shapes, role, sizes, gradient, result, groups)
    weight_gradient(draft, shapes, role, sizes, source, gradient, groups)


def input_gradient(
    draft: Draft,
    shapes: Shapes,
    role: str,
    sizes: tuple[int, int, int],
    gradient: str,
    result: str,
    groups: int = 1,
    weight: str | None = None,
) -> None:
    """The first half of `backward`."""
    rows, outputs, inputs = sizes
    work = Gemm(m=rows, n=inputs, k=outputs, precision=shapes.precision, groups=groups)
    draft.compute(role, work, f"{gradient} weight.{weight or role}", result)


def weight_gradient(
    draft: Draft,
    shapes: Shapes,
    role: str,
    sizes: tuple[int, int, int],
    source: str,
    gradient: str,
    groups: int = 1,
    weight: str | None = None,
) -> None:
    """The second half of `backward`: nothing but the optimizer needs its result."""
    rows, outputs, inputs = sizes
    wide = getattr(shapes.workload, "gradients", None)
    # From ZeRO-2 on each micro-batch's gradient is reduced on its own; before, it is added to what lies there.
    name = weight or role
    accumulate = not _reduced_each_time(draft, name)
    work = Gemm(
        m=inputs,
        n=outputs,
        k=rows,
        precision=shapes.precision,
        groups=groups,
        groups_along="k",
        output=wide,
        accumulate=accumulate,
    )
    kept = f" gradient.{name}" if accumulate else ""
    draft.compute(role, work, f"{source} {gradient}{kept}", f"gradient.{name}", phase="weight_grad")


def _reduced_each_time(draft: Draft, role: str) -> bool:
    return not draft.buffers[f"gradient.{role}"].persistent


def gather_rows(draft: Draft, shapes: Shapes, role: str, source: str) -> str:
    """With sequence parallelism: all-gather along tokens. Returns the name of what has all of them."""
    if not shapes.layout.sp:
        return source
    whole = draft.buffer(f"{source}.whole", shapes.tokens, shapes.hidden)
    gather_named(draft, shapes, role, source, whole)
    return whole


def gather_named(draft: Draft, shapes: Shapes, role: str, source: str, whole: str) -> None:
    """All-gather rows of the residual stream along tokens, over tp."""
    draft.collective(role, "tp", "all_gather", _payload(shapes), source, whole)


def sum_partials(draft: Draft, shapes: Shapes, role: str, partial: str) -> str:
    """Add up partial sums over tp: all-reduce in place, or with sequence parallelism reduce-scatter. Returns the sum's name."""
    if not shapes.layout.sp:
        draft.collective(role, "tp", "all_reduce", _payload(shapes), partial, partial)
        return partial
    total = draft.buffer(f"{partial}.sum", shapes.rows, shapes.hidden)
    draft.collective(role, "tp", "reduce_scatter", _payload(shapes), partial, total)
    return total


def norm(draft: Draft, shapes: Shapes, role: str, source: str, result: str) -> None:
    """A norm of the residual stream."""
    size = shapes.rows * shapes.hidden
    draft.compute(
        role, shapes.stream(size, size, 4 * size), f"{source} weight.{role}", draft.buffer(result, shapes.rows, shapes.hidden)
    )


def norm_backward(draft: Draft, shapes: Shapes, role: str, source: str, gradients: tuple[str, str], result: str) -> None:
    """Gradient through a norm, added to the gradient that went past it: gradients are (of the norm's output, of the stream)."""
    size = shapes.rows * shapes.hidden
    kept = "" if _reduced_each_time(draft, role) else f" gradient.{role}"
    draft.compute(
        role,
        shapes.stream(3 * size, size, 8 * size),
        f"{source} {gradients[0]} {gradients[1]} weight.{role}{kept}",
        f"{result} gradient.{role}",
    )


def residual(draft: Draft, shapes: Shapes, role: str, stream: str, addend: str, result: str) -> None:
    """result = stream + addend."""
    size = shapes.rows * shapes.hidden
    draft.compute(role, shapes.stream(2 * size, size, size), f"{stream} {addend}", result)


def stream_onward(draft: Draft, shapes: Shapes) -> str:
    """The name of what a layer gives. Recomputed, it is made again beside what was sent on or kept, and not used."""
    draft.buffer("hidden", shapes.rows, shapes.hidden)
    return draft.buffer("hidden.again", shapes.rows, shapes.hidden) if draft.phase == "recompute" else "hidden+1"


def _payload(shapes: Shapes) -> float:
    return shapes.tokens * shapes.hidden * ELEMENT_BYTES[shapes.activation]
