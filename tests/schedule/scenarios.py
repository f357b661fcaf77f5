"""Small layouts and workloads for which every pass has something to do, drawn at random."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from underlap.layout import Layout
from underlap.model import Experts, Model
from underlap.plan import Plan
from underlap.planner import plan
from underlap.planner.pipeline import SPLIT_BACKWARD
from underlap.workload import Decode, Prefill, Train, Workload

_PIPELINES = (
    ("1f1b", 1, 1),
    ("1f1b", 2, 1),
    ("gpipe", 2, 1),
    ("interleaved", 2, 2),
    ("zb-h1", 2, 1),
    ("dualpipev", 2, 1),
)

DENSE = Model(
    name="small", hidden=64, layers=4, heads=8, kv_heads=4, head_dim=8, intermediate=128, vocab=256, source="made for tests"
)


def mixture(*, shared: int, dense_layers: int) -> Model:
    """Experts in the last layers."""
    experts = Experts(count=8, top_k=2, intermediate=32, shared=shared, dense_layers=dense_layers)
    return Model(
        name="small-experts",
        hidden=64,
        layers=4,
        heads=8,
        kv_heads=4,
        head_dim=8,
        intermediate=128,
        vocab=256,
        experts=experts,
        source="made for tests",
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    if draw(st.booleans()):
        return DENSE
    return mixture(shared=draw(st.integers(0, 1)), dense_layers=draw(st.integers(0, 1)))


@st.composite
def layouts(draw: st.DrawFn, model: Model) -> Layout:
    tp = draw(st.sampled_from((1, 2)))
    cp = draw(st.sampled_from((1, 1, 2)))
    sharded = draw(st.booleans())
    dp, fsdp = (draw(st.sampled_from((1, 2))), 2) if sharded else (draw(st.sampled_from((1, 2))), 1)
    schedule, pp, virtual = draw(st.sampled_from(_PIPELINES))
    several = dp * fsdp * cp > 1
    zero = draw(st.sampled_from((1, 2, 3))) if several and draw(st.booleans()) else None
    if schedule in SPLIT_BACKWARD and (fsdp > 1 or (zero or 0) >= 2):
        zero = 1  # they refuse to reduce gradients in every micro-batch
    stage = tp * cp * dp * fsdp
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if stage % n == 0])) if model.experts else 1
    etp = 1 if ep > 1 and (draw(st.booleans()) or stage % (ep * tp)) else None
    return Layout(
        dp=dp,
        fsdp=fsdp,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=ep,
        etp=etp,
        sp=tp > 1 and draw(st.booleans()),
        zero=zero,
        schedule=schedule,  # type: ignore[arg-type]  # one of its names
        virtual=virtual,
        context="ulysses" if cp > 1 and draw(st.booleans()) else "ring",
    )


@st.composite
def workloads(draw: st.DrawFn, layout: Layout) -> Workload:
    replicas = layout.dp * layout.fsdp
    mbs, count = draw(st.sampled_from((1, 2))), draw(st.sampled_from((2, 4)))
    if layout.schedule == "dualpipev":
        count = 4
    # A cache divided over ranks is not modeled.
    kind = draw(st.sampled_from(("train", "train", "train", "prefill", "decode" if layout.cp == 1 else "prefill")))
    if kind == "train":
        return Train(
            gbs=replicas * mbs * count,
            mbs=mbs,
            seq=64,
            recompute=draw(st.sampled_from(("none", "selective", "full"))),
            attention="fused" if layout.cp > 1 else draw(st.sampled_from(("fused", "fused", "unfused"))),
        )
    if kind == "prefill":
        return Prefill(batch=replicas * mbs * count, mbs=mbs, seq=64)
    mbs = 2 if layout.sp else mbs  # one token each, which tp divides
    return Decode(batch=replicas * mbs * count, mbs=mbs, context=64)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What a plan is made of."""

    model: Model
    layout: Layout
    workload: Workload

    def plan(self) -> Plan:
        """In domains of four devices."""
        return plan(self.model, self.layout, self.workload, domain=4)


@st.composite
def scenarios(draw: st.DrawFn) -> Drawn:
    model = draw(models())
    layout = draw(layouts(model))
    return Drawn(model, layout, draw(workloads(layout)))
