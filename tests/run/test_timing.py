"""How long transfers took, with and without waiting for the last rank. Needs no torch."""

from __future__ import annotations

from underlap import inputs
from underlap.plan import OpKind
from underlap.planner import plan as planned
from underlap.run.program import Program, compiled
from underlap.run.times import Record
from underlap.run.timing import Account, arrivals, begins, times, typical

STEP_NS = 1000


def program(rank: int) -> Program:
    layout = inputs.layout("tp=2")
    plan = planned(inputs.model("tiny-dense"), layout, inputs.workload("prefill,batch=2,seq=8"), domain=2)
    return compiled(plan, layout, rank)


def record(of: Program, late_ns: int) -> Record:
    """One instruction after the other; every transfer is called `late_ns` late and lasts until 900 ns after its turn began."""
    begin = [STEP_NS * at for at in range(len(of.instructions))]
    flights = {
        one.row: (begin[at] + late_ns, begin[at] + 900, 8) for at, one in enumerate(of.instructions) if one.kind == OpKind.ISSUE
    }
    return Record(begin, [at + 100 for at in begin], flights, 0, STEP_NS * len(begin))


def account(own_late_ns: int, other_late_ns: int) -> tuple[Account, int]:
    """(of rank 0, number of its transfers), where both ranks come to each transfer with a delay."""
    ranks = [program(0), program(1)]
    records = [record(ranks[0], own_late_ns), record(ranks[1], other_late_ns)]
    came = [begins(of, [one]) for of, one in zip(ranks, records, strict=True)]
    found = times(ranks[0], [records[0]], arrivals(ranks[0], came), each=False)
    return found.accounts[0], len(records[0].flights)


def test_without_a_late_rank_all_of_communication_is_transfer() -> None:
    found, count = account(0, 0)

    assert found.communication_ns == found.transfer_ns == 900 * count


def test_what_precedes_the_last_arrival_is_waiting() -> None:
    found, count = account(0, 300)

    assert found.communication_ns == 900 * count
    assert found.transfer_ns == 600 * count


def test_a_rank_does_not_wait_for_one_that_came_before() -> None:
    found, count = account(300, 0)

    assert found.communication_ns == found.transfer_ns == 600 * count


def test_without_a_common_clock_transfer_is_unknown() -> None:
    of = program(0)

    assert times(of, [record(of, 0)], each=False).accounts[0].transfer_ns is None


def test_the_typical_repetition_is_near_the_medians_of_all_parts_and_not_of_the_step_alone() -> None:
    def account(compute: int) -> Account:
        rest = {
            "transfer_ns": None,
            "hidden_ns": 0,
            "exposed_ns": 0,
            "library_cpu_ns": 0,
            "core_ns": None,
            "stolen_ns": None,
            "others_ns": None,
        }
        return Account(compute_ns=compute, communication_ns=500, **rest)

    # The step of the median took half as long again to compute, which communication covered.
    steps = [990, 1000, 1004, 1010, 1020]
    computes = [[400, 600, 400, 410, 400], [400, 600, 402, 410, 400]]

    assert typical(steps, [[account(each) for each in rank] for rank in computes]) == 2
    assert typical([5], [[account(1)]]) == 0
