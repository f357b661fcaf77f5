"""A machine with round numbers, and plans of two lanes whose times can be said beforehand."""

from __future__ import annotations

from underlap.cost import collectives, compute
from underlap.cost.hardware import Link, Processor, Topology
from underlap.cost.work import Stream, Transfer, Work
from underlap.plan import Access, Block, Buffer, Group, Operation, OpKind, Place, Plan, Role, Scope, Step

PROCESSOR = Processor(
    name="round",
    architecture="hopper",
    sms=100,
    peak_flops={"bf16": 1e15, "fp32": 1e14},
    memory_bytes=80 * 2**30,
    memory_bytes_per_s=1e12,
    copy_engines=2,
    launch_ns=0,
    source="made for tests",
)
LINK = Link(name="up", bytes_per_s=100e9, latency_ns=1000, switched=True, source="made for tests")
MACHINE = Topology(processor=PROCESSOR, domain=8, scale_up=LINK, scale_out=None)


def stream(milliseconds: float) -> Stream:
    """Memory-bound work of so many milliseconds, start included."""
    nanoseconds = milliseconds * 1e6 - compute.START_NS
    return Stream(read_bytes=nanoseconds * compute.MEMORY_SHARE * PROCESSOR.memory_bytes_per_s / 1e9, write_bytes=0)


ALL_REDUCE = Transfer(collective="all_reduce", payload_bytes=2**28, ranks=2)


def transfer_ns() -> int:
    """What the transfer of these plans takes alone."""
    return round(collectives.price(ALL_REDUCE, MACHINE).time_ns)


def beside(first: Work, second: Work, *, waited_first: bool, transfer: Transfer = ALL_REDUCE) -> Plan:
    """Compute that makes what an all-reduce sends, the all-reduce, and compute that does not need it; then compute that does.

    `waited_first`: the wait stands before the independent compute, so that nothing overlaps.
    """
    buffers = [Buffer(name=name, shape=(8,), dtype="fp32", scope=Scope.MICRO_BATCH) for name in ("made", "other", "result")]

    def computed(role: str, work: Work, reads: tuple[str, ...], writes: tuple[str, ...]) -> Operation:
        return Operation(
            role=role, phase="forward", work=work, reads=tuple(map(Access, reads)), writes=tuple(map(Access, writes))
        )

    issue = Operation(
        role="reduce",
        phase="forward",
        kind=OpKind.ISSUE,
        group="tp",
        work=transfer,
        reads=(Access("made"),),
        writes=(Access("made"),),
    )
    wait = Operation(role="reduce", phase="forward", kind=OpKind.WAIT)
    independent = computed("independent", second, (), ("other",))
    middle = (wait, independent) if waited_first else (independent, wait)
    block = Block(
        name="all",
        operations=(
            computed("first", first, (), ("made",)),
            issue,
            *middle,
            computed("last", first, ("made", "other"), ("result",)),
        ),
    )
    return Plan(
        title="by hand",
        roles=(
            Role(
                name="all",
                stage=0,
                ranks=(0, 1),
                program=(Step("all", Place(0, -1)),),
                chunks=(range(1),),
                members={"tp": (0, 1)},
            ),
        ),
        blocks={"all": block},
        buffers={buffer.name: buffer for buffer in buffers},
        groups={"tp": Group(name="tp", axis=("tp",), size=2, ranks_per_domain=2, domains=1)},
        world=2,
    )
