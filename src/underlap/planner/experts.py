"""A mixture of experts in place of the MLP: router, dispatch, expert products, combine, shared experts; forward and backward.

Tokens go to experts by an all-to-all over ep (dispatch) and come back by another (combine); backward they go the same ways
(GShard, arXiv 2006.16668; Megatron Core's all-to-all dispatcher). Routing without a capacity limit makes the sizes
expectations: every rank gets `top_k` times its own tokens on average, the busiest `imbalance` times that.

Where tp ranks hold the same tokens (no sequence parallelism) and experts are not divided over tp, each sends its part of
them and the results are gathered.
"""

from __future__ import annotations

from underlap.cost.work import ELEMENT_BYTES
from underlap.model import Experts
from underlap.planner import linear, mlp
from underlap.planner.drafting import Draft
from underlap.planner.shapes import WIDE, Shapes


def experts_of(shapes: Shapes) -> Experts:
    """The model's experts."""
    assert shapes.model.experts is not None
    return shapes.model.experts


def rows_sent(shapes: Shapes) -> int:
    """Tokens that one rank routes: its rows of the residual stream, or its part of them where tp ranks hold the same."""
    return shapes.rows // shapes.layout.tp if _divided(shapes) else shapes.rows


def forward(draft: Draft, shapes: Shapes) -> None:
    """middle -> hidden of the next layer."""
    linear.norm(draft, shapes, "mlp.norm", "middle", "mlp.normed")
    _route(draft, shapes)
    _permute(draft, shapes)
    _move(draft, shapes, "experts.dispatch", "experts.sent", "experts.received")
    _compute(draft, shapes)
    _move(draft, shapes, "experts.combine", "experts.done", "experts.returned")
    _merge(draft, shapes)
    addends = ["experts.merged"]
    if experts_of(shapes).shared:
        addends.append(_shared(draft, shapes))
    size = shapes.rows * shapes.hidden
    count = len(addends)
    work = shapes.stream((count + 1) * size, size, count * size)
    draft.compute("mlp.residual", work, f"middle {' '.join(addends)}", linear.stream_onward(draft, shapes))


def backward(draft: Draft, shapes: Shapes) -> None:
    """Gradient of the next layer's hidden -> gradient of middle."""
    _merge_backward(draft, shapes)
    _move(draft, shapes, "experts.combine", "grad.experts.returned", "grad.experts.done")
    _compute_backward(draft, shapes)
    _move(draft, shapes, "experts.dispatch", "grad.experts.received", "grad.experts.sent")
    _permute_backward(draft, shapes)
    _route_backward(draft, shapes)
    through = "grad.mlp.normed"
    if experts_of(shapes).shared:
        _shared_backward(draft, shapes)
        size = shapes.rows * shapes.hidden
        draft.compute("shared.add", shapes.stream(2 * size, size, size), f"{through} {shared_gradient(shapes)}", through)
    draft.buffer("grad.middle", shapes.rows, shapes.hidden)
    linear.norm_backward(draft, shapes, "mlp.norm", "middle", (through, "grad.hidden+1"), "grad.middle")


# ---- router


def _route(draft: Draft, shapes: Shapes) -> None:
    experts, rows = experts_of(shapes), rows_sent(shapes)
    draft.buffer("router.scores", rows, experts.count, dtype=WIDE)
    linear.forward(draft, shapes, "router.logits", (rows, experts.count, shapes.hidden), "mlp.normed", "router.scores")
    draft.buffer("router.choice", rows, experts.top_k, 2, dtype=WIDE)
    scores, choice = 4.0 * rows * experts.count, 8.0 * rows * experts.top_k
    draft.compute("router.choose", shapes.bytes_stream(scores, choice, 5 * scores), "router.scores", "router.choice")


def _route_backward(draft: Draft, shapes: Shapes) -> None:
    experts, rows = experts_of(shapes), rows_sent(shapes)
    draft.buffer("grad.router.scores", rows, experts.count, dtype=WIDE)
    scores = 4.0 * rows * experts.count
    draft.compute(
        "router.choose",
        shapes.bytes_stream(2 * scores, scores, 5 * scores),
        "router.scores grad.router.choice",
        "grad.router.scores",
    )
    sizes = (rows, experts.count, shapes.hidden)
    # Its gradient joins the one that came back from the experts.
    linear.input_gradient(draft, shapes, "router.logits", sizes, "grad.router.scores grad.mlp.normed", "grad.mlp.normed")
    linear.weight_gradient(draft, shapes, "router.logits", sizes, "mlp.normed", "grad.router.scores")
    # Where etp ranks have partial results of the experts, what comes from the router is partial too.
    _sum_over_experts(draft, shapes, "experts.sum", "grad.mlp.normed")
    _whole_rows(draft, shapes, "router.gather", "grad.mlp.normed")


def _permute(draft: Draft, shapes: Shapes) -> None:
    """Each token once per chosen expert, in the order of experts."""
    sent = _sent(shapes)
    draft.buffer("experts.sent", sent, shapes.hidden)
    size = sent * shapes.hidden
    draft.compute("experts.permute", shapes.stream(size, size), "mlp.normed router.choice", "experts.sent")


def _permute_backward(draft: Draft, shapes: Shapes) -> None:
    sent, rows = _sent(shapes), rows_sent(shapes)
    draft.buffer("grad.mlp.normed", shapes.rows, shapes.hidden)
    draft.compute(
        "experts.permute",
        shapes.stream(sent * shapes.hidden, rows * shapes.hidden, sent * shapes.hidden),
        "grad.experts.sent router.choice",
        "grad.mlp.normed",
    )


def _merge(draft: Draft, shapes: Shapes) -> None:
    """The weighted sum of what a token's experts gave; whole again where tp ranks had parts."""
    sent, rows = _sent(shapes), rows_sent(shapes)
    draft.buffer("experts.merged", shapes.rows, shapes.hidden)
    draft.compute(
        "experts.merge",
        shapes.stream(sent * shapes.hidden, rows * shapes.hidden, 2 * sent * shapes.hidden),
        "experts.returned router.choice",
        "experts.merged",
    )
    _sum_over_experts(draft, shapes, "experts.sum", "experts.merged")
    _whole_rows(draft, shapes, "experts.gather", "experts.merged")


def _merge_backward(draft: Draft, shapes: Shapes) -> None:
    sent = _sent(shapes)
    size = sent * shapes.hidden
    draft.buffer("grad.hidden", shapes.rows, shapes.hidden)
    draft.buffer("grad.experts.returned", sent, shapes.hidden)
    draft.buffer("grad.router.choice", rows_sent(shapes), experts_of(shapes).top_k, 2, dtype=WIDE)
    draft.compute(
        "experts.merge",
        shapes.stream(2 * size, size, 4 * size),
        "grad.hidden+1 experts.returned router.choice",
        "grad.experts.returned grad.router.choice",
    )


# ---- dispatch and combine


def _move(draft: Draft, shapes: Shapes, role: str, source: str, result: str) -> None:
    """An all-to-all over ep, with an all-gather or reduce-scatter over etp where experts are divided over it."""
    sent, received = _sent(shapes), _received(shapes)
    size = shapes.hidden * ELEMENT_BYTES[shapes.activation]
    outward = source.endswith(("sent", "returned"))
    gathered = _gathered(shapes)
    arrived = f"{result}.part" if gathered > 1 else result
    if outward:
        draft.buffer(arrived, received, shapes.hidden, expected=True)
        _all_to_all(draft, shapes, role, sent * size, source, arrived)
        if gathered > 1:
            draft.buffer(result, received * gathered, shapes.hidden, expected=True)
            draft.collective(f"{role}.gather", "etp", "all_gather", received * gathered * size, arrived, result)
        return
    held = source
    if gathered > 1:
        held = draft.buffer(f"{source}.part", received, shapes.hidden, expected=True)
        draft.collective(f"{role}.reduce", "etp", "reduce_scatter", received * gathered * size, source, held)
    draft.buffer(result, sent, shapes.hidden)
    _all_to_all(draft, shapes, role, sent * size, held, result)


def _all_to_all(draft: Draft, shapes: Shapes, role: str, payload: float, source: str, result: str) -> None:
    if draft.groups["ep"].size == 1:
        # The experts are all here: what would have been sent is only renamed, which costs nothing but keeps the order.
        draft.compute(f"{role}.local", shapes.bytes_stream(0.0, 0.0), source, result)
        return
    work = draft.transfer("ep", "all_to_all", payload, uneven=shapes.workload.imbalance)
    draft.issue(role, "ep", work, source, result)
    draft.wait(role)


# ---- expert products


def _sizes(shapes: Shapes) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
    """(rows, outputs, inputs) up and down, and how many experts this rank has."""
    experts = experts_of(shapes)
    inner = experts.intermediate // shapes.etp
    rows = _received(shapes) * _gathered(shapes)
    gates = 2 if shapes.model.gated else 1
    return (rows, gates * inner, shapes.hidden), (rows, shapes.hidden, inner), experts.count // shapes.layout.ep


def _compute(draft: Draft, shapes: Shapes) -> None:
    up, down, local = _sizes(shapes)
    draft.buffer("experts.upped", *up[:2], expected=True)
    linear.forward(draft, shapes, "experts.up", up, "experts.received", "experts.upped", local)
    draft.buffer("experts.activated", down[0], down[2], expected=True)
    mlp.activation(draft, shapes, "experts", up[0] * up[1], down[0] * down[2])
    draft.buffer("experts.done", *down[:2], expected=True)
    linear.forward(draft, shapes, "experts.down", down, "experts.activated", "experts.done", local)


def _compute_backward(draft: Draft, shapes: Shapes) -> None:
    up, down, local = _sizes(shapes)
    draft.buffer("grad.experts.activated", down[0], down[2], expected=True)
    linear.backward(
        draft, shapes, "experts.down", down, "experts.activated", "grad.experts.done", "grad.experts.activated", local
    )
    draft.buffer("grad.experts.upped", *up[:2], expected=True)
    mlp.activation_backward(draft, shapes, "experts", up[0] * up[1], down[0] * down[2])
    draft.buffer("grad.experts.received", up[0], up[2], expected=True)
    linear.backward(draft, shapes, "experts.up", up, "experts.received", "grad.experts.upped", "grad.experts.received", local)


# ---- shared experts: a dense MLP over all tokens, beside the routed ones


def _shared(draft: Draft, shapes: Shapes) -> str:
    source = linear.gather_rows(draft, shapes, "shared.gather", "mlp.normed")
    partial = mlp.feed_forward(draft, shapes, "shared", source, experts_of(shapes).shared_width // shapes.layout.tp)
    return linear.sum_partials(draft, shapes, "shared.reduce", partial)


def _shared_backward(draft: Draft, shapes: Shapes) -> None:
    whole = "grad.hidden+1"
    if shapes.layout.sp:
        whole = draft.buffer("grad.hidden.whole", shapes.tokens, shapes.hidden)
        linear.gather_named(draft, shapes, "shared.reduce", "grad.hidden+1", whole)
    source = linear.gather_rows(draft, shapes, "shared.gather_again", "mlp.normed")
    inner = experts_of(shapes).shared_width // shapes.layout.tp
    partial = mlp.feed_forward_backward(draft, shapes, "shared", source, whole, inner)
    linear.sum_partials(draft, shapes, "shared.gather", partial)


def shared_gradient(shapes: Shapes) -> str:
    """The name of what the shared experts add to the gradient of their source."""
    return "grad.shared.source.sum" if shapes.layout.sp else "grad.shared.source"


# ---- numbers of tokens


def _sent(shapes: Shapes) -> int:
    return rows_sent(shapes) * experts_of(shapes).top_k


def _received(shapes: Shapes) -> int:
    """On average, in all: as many as it sends. The busiest rank's share is in the transfers' and products' work."""
    return max(1, round(_sent(shapes) * shapes.workload.imbalance))


def _gathered(shapes: Shapes) -> int:
    """From how many etp ranks tokens are gathered: with sequence parallelism each has its own, else all have the same."""
    return shapes.etp if shapes.layout.sp else 1


def _sum_over_experts(draft: Draft, shapes: Shapes, role: str, name: str) -> None:
    """Where etp ranks hold the same tokens, each has a partial sum of what the experts give: all-reduce it."""
    if shapes.etp > 1 and not shapes.layout.sp:
        payload = shapes.rows * shapes.hidden * ELEMENT_BYTES[shapes.activation]
        draft.collective(role, "etp", "all_reduce", payload, name, name)


def _divided(shapes: Shapes) -> bool:
    """Whether tp ranks that hold the same tokens each route a part of them."""
    return shapes.layout.tp > 1 and not shapes.layout.sp and shapes.etp == 1


def _whole_rows(draft: Draft, shapes: Shapes, role: str, name: str) -> None:
    """Where tp ranks have each made a part of the rows: gather them."""
    if _divided(shapes):
        payload = shapes.rows * shapes.hidden * ELEMENT_BYTES[shapes.activation]
        draft.collective(role, "tp", "all_gather", payload, name, name)
