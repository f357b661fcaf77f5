"""Cases from public issue trackers of the kind "schedule": which operation blocks which, and what the host was blocked in."""

from __future__ import annotations

import pytest

from tests.cases.given import CASES, MS, US, causes, explained, family, screen, sync, usual_launches, whole
from tests.timelines import COMMUNICATION, COMPUTE, Call, Host, Op, build, group, info
from underlap.report import Report
from underlap.timeline import HostKind


def blocked_exchanges(micro_batches: int, receive: int, exchange: int) -> Report:
    """Per micro-batch the receive for the next stage is posted first, and the exchange of this stage stands behind it."""
    _, _, blocked = CASES["I01"]["edge"]
    ops, calls, now = usual_launches(), [], 0
    for _ in range(micro_batches):
        ops.append(Op(COMMUNICATION, now, now + receive, len(calls), now - 5 * US, name="ncclDevKernel_SendRecv", lane="20"))
        calls.append(Call("recv", 1 << 20, 0))
        begin = now + receive
        ops.append(Op(COMMUNICATION, begin, begin + exchange, len(calls), now - 4 * US, name=blocked, lane="20"))
        calls.append(Call("all_to_all", 1 << 20, 0))
        ops.append(Op(COMPUTE, begin + exchange + 2 * US, begin + exchange + MS, launch=now - 3 * US))
        now = begin + exchange + MS + 10 * US
    return whole(build(ops, calls=calls, groups=[group(*range(4), description="mesh_pp")]))


def test_an_exchange_behind_an_early_receive_names_the_receive_and_the_time_lost() -> None:
    case = CASES["I01"]
    assert case["edge"][1] == "blocks"
    # What the deferral of the receive won is what it had blocked: a share of the micro-batch.
    slow, quick = case["tok_s"]
    exchange, micro_batches = 400 * US, 6
    receive = round((quick / slow - 1) * (exchange + MS))
    report = blocked_exchanges(micro_batches, receive, exchange)
    row = family(report, "all_to_all")
    held = [entry for entry in report.instances if entry.collective == "all_to_all"]

    assert causes(row)["queued_behind"] == micro_batches * min(receive, exchange)
    assert [entry.behind for entry in held] == ["ncclDevKernel_SendRecv"] * micro_batches
    assert all(abs((entry.held_ns or 0) - receive) <= 5 * US for entry in held)
    assert row.issue is not None
    assert row.issue.behind == {"ncclDevKernel_SendRecv": micro_batches}
    assert "queued_behind" in screen(report)
    assert "a communicator of its own, another order of issue" in screen(report)
    assert "last to end before: ncclDevKernel_SendRecv (6)" in explained(report)


def test_waiting_between_stages_is_the_schedule_s_and_slow_transfer_is_not() -> None:
    """The schedule or the network: receives that wait are bubble, and what is left of them is transfer."""
    stages = CASES["I02"]["pp"]
    wire, late = 50 * US, 400 * US
    ops, calls = [Op(COMPUTE, 0, US, launch=-US, rank=rank) for rank in range(stages)], []
    for micro in range(8):
        now = 10 * US + micro * MS
        for stage in range(1, stages):
            for rank, kind, start in ((stage, "recv", now), (stage - 1, "send", now + late)):
                lane = "20" if kind == "send" else "21"
                ops.append(Op(COMMUNICATION, start, now + late + wire, len(calls), start - US, rank=rank, lane=lane))
                calls.append(Call(kind, 1 << 20, 0, rank=rank, peer=stage - 1 if kind == "recv" else stage))
        begin = now + late + wire + 5 * US
        ops += [Op(COMPUTE, begin, now + 900 * US, launch=now, rank=rank) for rank in range(stages)]
    ranks = [info(rank, world=stages) for rank in range(stages)]
    report = whole(build(ops, calls=calls, groups=[group(*range(stages), description="mesh_pp")], ranks=ranks))
    row = family(report, "recv")

    assert causes(row)["bubble"] == (stages - 1) * 8 * late
    assert row.exposed_transfer_ns == (stages - 1) * 8 * wire
    assert "Mostly pipeline bubble" in screen(report)
    assert [entry for entry in report.late if entry.straggler] == []


def layers_with_sync(name: str | None, *, count: int = 6) -> Report:
    """Layers of FSDP and EP: dispatch, a host call, then the next layer's gather, which nothing is left to hide."""
    ops, calls, hosts, now = usual_launches(), [], [], 0
    for _ in range(count):
        ops.append(Op(COMPUTE, now, now + 300 * US, launch=now - 5 * US))
        ops.append(Op(COMMUNICATION, now + 300 * US, now + 400 * US, len(calls), now - 4 * US, name="dispatch", lane="21"))
        calls.append(Call("all_to_all", 1 << 20, 0))
        gather = now + 420 * US
        if name is not None:
            hosts.append(sync(name, now - 3 * US, gather - 10 * US))
        ops.append(Op(COMMUNICATION, gather, gather + 200 * US, len(calls), gather - 5 * US, name="gather", lane="20"))
        calls.append(Call("all_gather", 1 << 20, 1))
        now = gather + 210 * US
    ops.append(Op(COMPUTE, now, now + 300 * US, launch=now - 5 * US))
    groups = [group(*range(4), description="mesh_ep", name="ep"), group(*range(8), description="mesh_fsdp", name="fsdp")]
    return whole(build(ops, calls=calls, host=hosts, groups=groups))


def test_a_late_gather_names_the_host_call_that_came_before_it() -> None:
    case = CASES["I04"]
    name = case["pattern"].partition(" ")[0]
    assert case["expect"] == "late_launch_host_sync"
    report = layers_with_sync(name)
    gather = family(report, "all_gather")

    assert gather.issue is not None
    assert (gather.issue.no_lead, gather.issue.held) == (6, 0)
    assert gather.issue.blocked_in == {name: 6 * 413 * US}
    assert f"host blocked before those, no lead    {name} 2.478 ms" in explained(report)
    assert causes(family(report, "all_to_all")) == {"throttled": 6 * 100 * US}
    assert "throttled" in screen(report)
    assert "take the blocking call off the path" in screen(report)


def test_a_late_gather_without_a_blocking_call_names_none() -> None:
    gather = family(layers_with_sync(None), "all_gather")

    assert gather.issue is not None
    assert (gather.issue.no_lead, gather.issue.blocked_in) == (6, {})


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree"])
def test_the_allocator_blocks_a_launch_like_a_synchronization(name: str) -> None:
    hosts = [Host(name, 10 * US, 90 * US, HostKind.RUNTIME)]
    ops = [*usual_launches(), Op(COMPUTE, 0, 50 * US, launch=-5 * US)]
    ops += [Op(COMMUNICATION, 100 * US, 150 * US, 0, 95 * US, lane="20"), Op(COMPUTE, 160 * US, 200 * US, launch=155 * US)]
    gather = family(whole(build(ops, calls=[Call("all_gather")], host=hosts)), "all_gather")

    assert gather.issue is not None
    assert gather.issue.blocked_in == {name: 80 * US}
