"""Inputs drawn at random: any valid Layout, Workload and Policy; and documents and texts that are anything."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from underlap.errors import UnderlapError
from underlap.layout import DENSE_AXES, Layout
from underlap.policy import PASSES, POLICY_AXES, RESOURCES, AxisPolicy, Known, Pass, Policy, Resource
from underlap.workload import Decode, Prefill, Train


def refusal(call: Callable[..., object], *given: object) -> str | None:
    """The one line of error with which a call refuses what it was given; None where it took it."""
    try:
        call(*given)
    except UnderlapError as error:
        return str(error)
    return None


def is_one_line(message: str | None, *starts: str) -> bool:
    return message is None or ("\n" not in message and message.startswith(starts or ("",)))


small = st.integers(1, 4)
counts = st.integers(1, 10**9)
precisions = st.sampled_from(["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"])
imbalances = st.floats(1.0, 1000.0)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dp, fsdp, tp, pp, cp = (draw(small) for _ in range(5))
    ranks = dp * fsdp * cp * tp
    etp = draw(st.sampled_from([d for d in range(1, tp + 1) if tp % d == 0]))
    ep = draw(st.sampled_from([d for d in range(1, ranks // etp + 1) if ranks // etp % d == 0]))
    schedules = ["1f1b"] if pp == 1 else ["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipev"]
    schedule = draw(st.sampled_from(schedules))
    virtual = draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    chunks = pp * (2 if schedule == "dualpipev" else virtual)
    stages = [None] if fsdp > 1 else [None, 0]
    return Layout(
        dp=dp,
        fsdp=fsdp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp if ep > 1 else None,
        sp=tp > 1 and draw(st.booleans()),
        zero=draw(st.sampled_from(stages + ([1, 2, 3] if dp * fsdp * cp > 1 else []))),
        schedule=schedule,
        virtual=virtual,
        context=draw(st.sampled_from(["ring", "ulysses"])) if cp > 1 else "ring",
        order=draw(st.none() | st.permutations(DENSE_AXES).map(tuple)),
        split=draw(st.none() | st.lists(st.integers(0, 9), min_size=chunks, max_size=chunks).map(tuple)),
    )


trainings = st.builds(
    Train,
    gbs=counts,
    mbs=counts,
    seq=counts,
    recompute=st.sampled_from(["none", "selective", "full"]),
    precision=precisions,
    gradients=st.sampled_from(["fp32", "bf16", "fp16"]),
    attention=st.sampled_from(["fused", "unfused"]),
    imbalance=imbalances,
)
prefills = st.builds(Prefill, batch=counts, mbs=st.none() | counts, seq=counts, precision=precisions, imbalance=imbalances)
decodes = st.builds(Decode, batch=counts, mbs=st.none() | counts, context=counts, precision=precisions, imbalance=imbalances)
workloads = trainings | prefills | decodes


def parameters(known: Known) -> st.SearchStrategy[int | None]:
    if known.parameter is None:
        return st.none()
    given_count = st.integers(known.least, 2**40)
    return given_count if known.required else st.none() | given_count


@st.composite
def axis_policies(draw: st.DrawFn, axis: str) -> AxisPolicy:
    def drawn(table: dict[str, Known]) -> list[tuple[str, int | None]]:
        fitting = [name for name, known in table.items() if axis in known.axes]
        names = draw(st.lists(st.sampled_from(fitting), unique=True))
        return [(name, draw(parameters(table[name]))) for name in names]

    passes = tuple(Pass(name, parameter) for name, parameter in drawn(PASSES))
    return AxisPolicy(passes=passes, resources=tuple(Resource(name, parameter) for name, parameter in drawn(RESOURCES)))


policies = st.builds(Policy, **{axis: axis_policies(axis) for axis in POLICY_AXES})

# Texts close to the grammar find more than any text at all does.
GRAMMAR = """
tp pp dp fsdp cp ep etp sp zero schedule order split train prefill decode gbs mbs seq batch context recompute precision
imbalance interleaved 1f1b dualpipev ring ulysses bucket prefetch split_batch ctas copy_engine full bf16 25MB 4Gb nan inf
8 -1 0 3 1e9 99999999999999999999 0x8 7x3 = , : + - x
"""
words = st.sampled_from(GRAMMAR.split())
texts = st.lists(words, max_size=12).map("".join) | st.text(max_size=40)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=8)
keys = words | st.sampled_from(
    ["name", "hidden", "layers", "from", "gpus", "processor", "scale_up", "scale_out", "kind", "value"]
)
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
