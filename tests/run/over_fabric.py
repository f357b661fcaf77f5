"""What ranks do to be counted: one collective at a time between two readings. An entry that started processes can import."""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from underlap.run.communication import _reduce_scatter
from underlap.run.exchange import Exchange
from underlap.run.fabric import INTERFACE
from underlap.run.meter import Meter
from underlap.run.priority import THREADS, gloo_threads, scheduled
from underlap.run.session import Session

KIB, MIB = 2**10, 2**20
REPETITIONS = 5
SIZES = (256 * KIB, MIB, 4 * MIB)


def collectives(size: int, rank: int, exchange: Exchange) -> dict[str, tuple[float, Callable[[], object]]]:
    """Of payloads of `size` bytes between two ranks: (bytes that leave a rank, by the formulas of the ledger; the call)."""
    ranks = dist.get_world_size(exchange.group)
    others = (ranks - 1) / ranks
    whole, parts = torch.ones(size // 4), torch.ones(ranks, size // 4 // ranks)
    other = (rank + 1) % ranks, (rank - 1) % ranks

    def done(works: list[Any]) -> None:
        for work in works:
            work.wait()

    def scatter() -> None:
        works, add_up = _reduce_scatter(torch.empty_like(parts[0]), parts, exchange)
        done(works)
        add_up()

    def ring() -> None:
        coming = dist.irecv(torch.empty_like(whole), src=other[1])
        going = dist.isend(whole, dst=other[0])
        coming.wait()
        going.wait()

    return {
        "all_reduce": (2 * others * size, lambda: dist.all_reduce(whole)),
        "all_gather": (others * size, lambda: done(exchange.all_gather(whole.view(ranks, -1), parts[0]))),
        "reduce_scatter": (others * size, scatter),
        "all_to_all": (others * size, lambda: done(exchange.all_to_all(torch.empty_like(parts), parts))),
        "send": (size, ring),
    }


def counted(session: Session, out: Path) -> None:
    """Rank 0 writes, by collective and size, [planned bytes per rank, sent over planned, received over planned, seconds]."""
    with session.connected():
        meter = Meter(INTERFACE)
        meter.learn_idle()
        ranks = list(range(session.world))
        exchange = Exchange(dist.new_group(ranks), (dist.new_group(ranks), dist.new_group(ranks)))
        rows: dict[str, Any] = {}
        for size in SIZES:
            for name, (planned, call) in collectives(size, session.rank, exchange).items():
                call()
                seen = []
                for _ in range(REPETITIONS):
                    meter.begin()
                    begun = time.monotonic()
                    call()
                    seconds = time.monotonic() - begun
                    meter.end(name)
                    passed = meter.passed.pop(name)[0] - meter.idle
                    each = session.gathered((passed.sent_payload, passed.received_payload, seconds))
                    seen.append((sum(one[0] for one in each), sum(one[1] for one in each), max(one[2] for one in each)))
                # A neighbor that takes the core lets TCP send again: the median of a few.
                sent, received, slowest = (statistics.median(values) for values in zip(*seen, strict=True))
                rows[f"{name} {size}"] = [
                    planned,
                    sent / planned / session.world,
                    received / planned / session.world,
                    slowest,
                ]
        left = _threads_of_a_group_that_only_garbage_refers_to()
        found = session.gathered(
            {**_priorities(), "left": left, "cores": sorted(os.sched_getaffinity(0)), "torch": torch.get_num_threads()}
        )
        if session.rank == 0:
            out.write_text(json.dumps({"rows": rows, "ranks": found, "idle": meter.idle.sent_payload}))
        session.gathered(None)


def _priorities() -> dict[str, Any]:
    """What each of gloo's threads and this one has, by priority asked for."""
    found: dict[str, Any] = {}
    for priority in ("default", "communication", "compute", "equal"):
        with scheduled(priority):
            found[priority] = [[os.sched_getscheduler(t), os.sched_getparam(t).sched_priority] for t in (*gloo_threads()[:1], 0)]
    with scheduled("default"):
        found["after"] = [[os.sched_getscheduler(t), os.sched_getparam(t).sched_priority] for t in (*gloo_threads(), 0)]
    names = {Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in gloo_threads()}
    assert names == set(THREADS)
    return found


def _threads_of_a_group_that_only_garbage_refers_to() -> list[int]:
    """How many threads gloo has before threads are given a priority, and inside."""
    gc.disable()
    try:
        group = dist.new_group(list(range(dist.get_world_size())))
        cycle = [group]
        cycle.append(cycle)
        dist.destroy_process_group(group)
        del group, cycle
        before = len(gloo_threads())
        with scheduled("communication"):
            return [before, len(gloo_threads())]
    finally:
        gc.enable()
