"""Timelines of two ranks into which causes are planted, with what each adds to the truth.

A block occupies both ranks from the end of the block before. It says what of the exposed time it makes has which cause, by
construction: who started when, and what was submitted when. Nothing of the analyzer is used here.

    compute  lane 7     talk  lane 20     times in ns, launches long ago unless a block is about the host
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

from tests.timelines import COMMUNICATION, COMPUTE, COPY, Call, Host, Op, build, group, info
from underlap.timeline import HostKind, Timeline

EARLY = -1
US = 1_000
GROUPS = ("mesh_dp", "mesh_pp", "mesh_ep", "mesh_tp")
RANKS = (0, 1)


@dataclasses.dataclass
class Plan:
    """Rows of two ranks, in order of time."""

    at: int = 0
    ops: list[Op] = dataclasses.field(default_factory=list)
    host: list[Host] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    truth: Counter[str] = dataclasses.field(default_factory=Counter)
    computed: int = 0
    """Per rank."""
    transferred: int = 0
    numbers: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)

    def compute(self, start: int, end: int, launch: int | None = EARLY, ranks: tuple[int, ...] = RANKS) -> None:
        for rank in ranks:
            self.ops.append(Op(COMPUTE, start, end, launch=launch, rank=rank))
        self.computed += end - start

    def copy(self, start: int, end: int) -> None:
        for rank in RANKS:
            self.ops.append(Op(COPY, start, end, launch=EARLY, rank=rank, name="Memcpy DtoD (Device -> Device)"))

    def talk(
        self,
        start: int,
        end: int,
        *,
        launch: int | None = None,
        late: int = 0,
        mesh: str = "mesh_dp",
        lane: str = "20",
        payload: int = 8,
        names: tuple[str, str] = ("all_reduce", "all_reduce"),
    ) -> None:
        """One collective; rank 1 comes `late`."""
        for rank in RANKS:
            begin = start + late * rank
            number = self.numbers[mesh, rank]
            self.numbers[mesh, rank] += 1
            peer = None if names[rank] == "all_reduce" else 1 - rank
            own = min(start, begin) if launch is None else launch
            self.ops.append(Op(COMMUNICATION, begin, end, len(self.calls), own, rank=rank, lane=lane))
            self.calls.append(Call(names[rank], payload, GROUPS.index(mesh), number, rank=rank, peer=peer))
        self.transferred += end - start - late

    def blocked(self, name: str, start: int, end: int, kind: HostKind = HostKind.SYNC) -> None:
        self.host += [Host(name, start, end, kind, rank=rank) for rank in RANKS]

    def add(self, cause: str, amount: int, ranks: int = 2) -> None:
        self.truth[cause] += amount * ranks

    def timeline(self) -> Timeline:
        groups = [group(*RANKS, description=mesh, name=str(at)) for at, mesh in enumerate(GROUPS)]
        return build(self.ops, calls=self.calls, host=self.host, groups=groups, ranks=[info(rank, world=2) for rank in RANKS])


def window_entry(plan: Plan, amount: int) -> None:
    """Only as the first block: rank 1 has no event before."""
    start = plan.at
    plan.ops.append(Op(COMPUTE, start, start + US, launch=EARLY, rank=0))
    begin = start + US
    plan.ops.append(Op(COMPUTE, begin + amount - US, begin + amount, launch=begin + amount - US, rank=1))
    end = begin + amount + US
    plan.talk(begin, end, late=amount)
    plan.compute(end, end + US)
    plan.add("window_entry", amount, 1)
    plan.add("dependent", US)
    plan.at = end + US


def late_peer(plan: Plan, amount: int) -> None:
    _meet(plan)
    end = plan.at + amount + US
    plan.talk(plan.at, end, late=amount)
    plan.compute(end, end + US)
    plan.add("late_peer", amount, 1)
    plan.add("dependent", US)
    plan.at = end + US


def bubble(plan: Plan, amount: int) -> None:
    _meet(plan)
    end = plan.at + amount + US
    plan.talk(plan.at, end, late=amount, mesh="mesh_pp", names=("recv", "send"))
    plan.compute(end, end + US)
    plan.add("bubble", amount, 1)
    plan.add("dependent", US)
    plan.at = end + US


def _meet(plan: Plan) -> None:
    """A hidden meeting, so that nothing later can be an entry into the window."""
    plan.compute(plan.at, plan.at + US)
    plan.talk(plan.at, plan.at + US)
    plan.at += US


def queued_behind(plan: Plan, amount: int) -> None:
    """The first collective is hidden by compute that was launched after the second, so the second did not need it."""
    start, border = plan.at, plan.at + amount + US
    plan.compute(start, border, launch=start - 1)
    plan.talk(start, border)
    plan.talk(border, border + amount, launch=start - 2)
    plan.compute(border + amount, border + amount + US)
    plan.add("queued_behind", amount)
    plan.at = border + amount + US


def late_launch(plan: Plan, amount: int) -> None:
    end = plan.at + amount
    plan.talk(plan.at, end)
    plan.compute(end, end + US, launch=end)
    plan.add("late_launch", amount)
    plan.at = end + US


def throttled(plan: Plan, amount: int) -> None:
    plan.blocked("cudaStreamSynchronize", plan.at, plan.at + amount)
    late_launch(plan, amount)
    plan.truth["late_launch"] -= 2 * amount
    plan.add("throttled", amount)


def serialized(plan: Plan, amount: int) -> None:
    end = plan.at + amount
    plan.talk(plan.at, end + US)
    plan.copy(plan.at, end)
    plan.compute(end, end + US)
    plan.add("serialized", amount)
    plan.at = end + US


def serialized_or_dependent(plan: Plan, amount: int) -> None:
    end = plan.at + amount
    plan.talk(plan.at, end, lane="7")
    plan.compute(end, end + US)
    plan.add("serialized_or_dependent", amount)
    plan.at = end + US


def dependent(plan: Plan, amount: int) -> None:
    end = plan.at + amount
    plan.talk(plan.at, end)
    plan.compute(end + 15, end + 15 + US)
    plan.add("dependent", amount)
    plan.at = end + 15 + US


def too_little_compute(plan: Plan, amount: int) -> None:
    beside = plan.at + amount // 2
    plan.compute(plan.at, beside)
    plan.talk(plan.at, beside + amount)
    plan.compute(beside + amount, beside + amount + US)
    plan.add("too_little_compute", amount)
    plan.at = beside + amount + US


# B beside compute, A alone; some alone calls stand together, which gives the placebo its two sides.
SIDES = "BBBABBAABBBBABBAABBBABBAABBBABBB" * 2


def stretched(plan: Plan, amount: int, *, factor: float = 1.6, alone_factor: float = 1.0) -> None:
    """Calls that compute of just their length would hide, were they not longer by `factor` beside it; others alone.

    With `alone_factor` the calls alone beside hidden ones are longer as well: then it is not the compute.
    """
    beside = SIDES.count("B")
    length = round(amount / (beside * (factor - 1)))
    for at, side in enumerate(SIDES):
        if side == "B":
            long = round(length * factor)
            plan.compute(plan.at, plan.at + length)
            plan.talk(plan.at, plan.at + long, payload=4096)
            plan.add("stretched", long - length)
        else:
            near = SIDES[at - 1] == "B" and SIDES[(at + 1) % len(SIDES)] == "B"
            long = round(length * (alone_factor if near else 1))
            plan.talk(plan.at, plan.at + long, payload=4096)
            plan.add("dependent", long)
        plan.compute(plan.at + long, plan.at + long + US)
        # The two of a pair are nearer to each other than to anything else.
        pair = side == "A" and SIDES[(at + 1) % len(SIDES)] == "A"
        plan.at += long + US
        if not pair:
            plan.compute(plan.at, plan.at + 20 * US)
            plan.at += 20 * US


def latency_bound(plan: Plan, amount: int, *, sizes: tuple[int, ...] = (1, 2, 64, 256), exponent: float = 1.0) -> None:
    """Messages of several sizes whose time is a line; the small ones are exposed, the large ones hidden."""
    kib = 1024
    latency = amount // 6
    for size in sizes:
        long = round(latency * (1 + (size / 32) ** exponent))
        small = size < 32
        for _ in range(3):
            if not small:
                plan.compute(plan.at, plan.at + long)
            plan.talk(plan.at, plan.at + long, mesh="mesh_tp", payload=size * kib)
            plan.at += long
            plan.compute(plan.at, plan.at + US)
            plan.at += US
            if small:
                plan.add("latency_bound", long)


def fabric_bound(plan: Plan, amount: int) -> None:
    """Only as the last block: one transfer on a link of its own, longer by `amount` than all compute of the plan."""
    beside, after = amount // 10, US
    end = plan.at + plan.computed + beside + after + amount
    plan.compute(plan.at, plan.at + beside)
    plan.talk(plan.at, end, mesh="mesh_ep")
    plan.add("too_little_compute", end - plan.at - beside - amount)
    plan.add("fabric_bound", amount)
    plan.compute(end, end + after)
    plan.at = end + after


PLANTS: dict[str, Callable[[Plan, int], None]] = {
    plant.__name__: plant
    for plant in (
        *(window_entry, late_peer, bubble, queued_behind, late_launch, throttled, serialized, serialized_or_dependent),
        *(dependent, stretched, latency_bound, fabric_bound, too_little_compute),
    )
}


def planted(blocks: list[tuple[str, int]]) -> Plan:
    """The plan with these (cause, amount), and enough compute at its end that no link but that of fabric_bound is too slow."""
    plan = Plan()
    place = {"window_entry": 0, "fabric_bound": 2}
    for cause, amount in sorted(blocks, key=lambda block: place.get(block[0], 1)):
        if cause == "fabric_bound":
            _enough_compute(plan)
        PLANTS[cause](plan, amount)
        plan.compute(plan.at, plan.at + US)
        plan.at += US
    if "fabric_bound" not in dict(blocks):
        _enough_compute(plan)
    return plan


def _enough_compute(plan: Plan) -> None:
    plan.compute(plan.at, plan.at + plan.transferred + US)
    plan.at += plan.transferred + US


class IdlePlan:
    """One rank with steps, and a second one where a pipeline needs it; gaps whose cause is planted."""

    def __init__(self) -> None:
        self.at = 0
        self.begun = 0
        self.steps = 0
        self.ops: list[Op] = []
        self.host: list[Host] = []
        self.calls: list[Call] = []
        self.truth: Counter[str] = Counter()

    def kernel(self, launch: int | None = None) -> None:
        """Ten microseconds of compute."""
        self.ops.append(Op(COMPUTE, self.at, self.at + 10 * US, launch=self.at if launch is None else launch))
        self.at += 10 * US

    def gap(self, cause: str, amount: int) -> None:
        self.kernel()
        GAPS[cause](self, amount)
        self.truth[cause] += amount

    def close_step(self) -> None:
        self.host.append(Host(f"ProfilerStep#{self.steps}", self.begun, self.at))
        self.steps += 1
        self.begun = self.at

    def timeline(self) -> Timeline:
        self.kernel()
        self.close_step()
        ranks = [info(rank, world=2) for rank in RANKS]
        groups = [group(*RANKS, description="mesh_pp")]
        return build(self.ops, calls=self.calls, host=self.host, groups=groups, ranks=ranks)


def idle_host_busy(plan: IdlePlan, amount: int) -> None:
    plan.at += amount
    plan.kernel()


def idle_host_blocked(plan: IdlePlan, amount: int) -> None:
    plan.host.append(Host("cudaStreamSynchronize", plan.at, plan.at + amount, HostKind.SYNC))
    idle_host_busy(plan, amount)


def idle_input(plan: IdlePlan, amount: int) -> None:
    """Half in the data loader, half in the call that copies the batch to the device."""
    half = amount // 2
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    plan.host.append(Host(name, plan.at, plan.at + half))
    plan.host.append(Host("cudaMemcpyAsync", plan.at + half, plan.at + amount, HostKind.LAUNCH))
    plan.at += amount
    plan.ops.append(
        Op(COPY, plan.at, plan.at + US, launch=plan.at - (amount - half), name="Memcpy HtoD (Pageable -> Device)", lane="8")
    )
    plan.at += US


def idle_end_of_step(plan: IdlePlan, amount: int) -> None:
    plan.at += amount
    plan.close_step()
    plan.kernel()


def idle_bubble(plan: IdlePlan, amount: int) -> None:
    """The stage posts its receive when the other stage sends; before that there was nothing to receive."""
    begin = plan.at + amount
    for rank, name in enumerate(("recv", "send")):
        plan.ops.append(Op(COMMUNICATION, begin, begin + US, len(plan.calls), begin, rank=rank, lane="20"))
        plan.calls.append(Call(name, 8, 0, len(plan.calls) // 2, rank=rank, peer=1 - rank))
    plan.at = begin + US
    plan.kernel()


def idle_unknown(plan: IdlePlan, amount: int) -> None:
    """Submitted long ago, and yet it does not start."""
    plan.at += amount
    plan.kernel(launch=plan.at - amount - 5 * US)


GAPS: dict[str, Callable[[IdlePlan, int], None]] = {
    gap.__name__.removeprefix("idle_"): gap
    for gap in (idle_host_busy, idle_host_blocked, idle_bubble, idle_input, idle_end_of_step, idle_unknown)
}
