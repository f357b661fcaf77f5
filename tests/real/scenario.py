"""The program of the real runs: each scenario with its planted cause, and with that cause removed, in turns.

    python -m tests.real.scenario OUT --scenarios sleeping_rank,dependent --turns 4

It starts a process for each of two ranks, which talk over gloo, and ends them when it is told to end. A turn is a block of steps
under torch.profiler, with or without the cause; the order within a pair of turns alternates. For each block the rank writes its
trace, and what its own clock saw: the length of each step, and of what was planted. The clock knows nothing of the trace, nor the
analyzer of the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

RENDEZVOUS_TIMEOUT = datetime.timedelta(seconds=40)
STEPS = 4
"""Per block. One more runs before them, outside the trace."""
SIZE = 288
"""Of the square matrices: a product takes about 0.7 ms, long against what the profiler costs per operator."""
SHORT, LONG = 1 << 18, 1 << 20
"""Bytes of a short and of a long all-reduce: about 5 and 20 ms on a link of 1 Gbit/s for both directions together."""


@dataclass
class Rank:
    """What a step works with. `planted_ns` is what its clock saw of the planted cause, per step; what it also sees of it in the
    steps without the cause, such as a short wait, is no part of it."""

    rank: int
    unit_ns: int = 0
    """Median length of one product."""
    planted_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.rank)
        self.left = torch.randn(SIZE, SIZE, generator=generator)
        self.right = torch.randn(SIZE, SIZE, generator=generator)
        self.out = torch.empty(SIZE, SIZE)
        self.beside = dist.new_group()

    def compute(self, ms: float) -> None:
        """So many products as take `ms` when the machine is as it was at the start: fixed work, not fixed time."""
        for _ in range(max(round(ms * 1e6 / self.unit_ns), 1)):
            torch.mm(self.left, self.right, out=self.out)

    def reduce(self, nbytes: int, group: dist.ProcessGroup | None = None) -> dist.Work:
        """An all-reduce of a buffer of its own, begun."""
        return dist.all_reduce(torch.ones(nbytes // 4), group=group, async_op=True)

    def plant(self, act: Callable[[], object]) -> None:
        """Do it, and note how long it took."""
        begin = time.perf_counter_ns()
        act()
        self.planted_ns.append(time.perf_counter_ns() - begin)


def host_work(ms: float) -> None:
    """Python that calls no operator, for so much time of this thread on a core."""
    until = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < until:
        sum(range(200))


def sleeping_rank(me: Rank, *, planted: bool) -> None:
    """Rank 1 sleeps before the all-reduce."""
    if planted and me.rank == 1:
        me.plant(lambda: time.sleep(0.02))
    me.compute(10)
    me.reduce(SHORT).wait()


def extra_compute(me: Rank, *, planted: bool) -> None:
    """Rank 1 computes more before the all-reduce."""
    if planted and me.rank == 1:
        me.plant(lambda: me.compute(20))
    me.compute(10)
    me.reduce(SHORT).wait()


def late_launch(me: Rank, *, planted: bool) -> None:
    """Rank 1 is busy in Python before it calls the all-reduce, beside which both then compute."""
    if planted and me.rank == 1:
        me.plant(lambda: host_work(20))
    work = me.reduce(SHORT)
    me.compute(15)
    work.wait()


def late_submission(me: Rank, *, planted: bool) -> None:
    """Both ranks are busy in Python while the all-reduce runs, and only then submit the compute beside it."""
    dist.barrier()  # the step ends with compute, so the ranks would drift apart
    work = me.reduce(2 * LONG)
    if planted:
        me.plant(lambda: host_work(15))
    me.compute(45)
    work.wait()


def dependent(me: Rank, *, planted: bool) -> None:
    """The result is waited for at once; without the cause it is waited for at the end of the step."""
    me.compute(5)
    work = me.reduce(LONG)
    if planted:
        me.plant(work.wait)
    me.compute(30)
    work.wait()


def serialized(me: Rank, *, planted: bool) -> None:
    """The compute after it needs nothing of it, but the all-reduce is called synchronously."""
    me.compute(5)
    sent = torch.ones(LONG // 4)  # no part of what is planted: its pages may take milliseconds
    if planted:
        me.plant(lambda: dist.all_reduce(sent))
        me.compute(30)
    else:
        work = dist.all_reduce(sent, async_op=True)
        me.compute(30)
        work.wait()


def too_short(me: Rank, *, planted: bool) -> None:
    """Too little compute beside a long all-reduce; without the cause next to nothing is sent."""
    work = me.reduce(2 * LONG if planted else 1024)
    me.compute(8)
    me.plant(work.wait)


def queued(me: Rank, *, planted: bool) -> None:
    """A short all-reduce that is needed soon stands behind two long ones, as gloo runs two of a group at once; without the
    cause it has a group of its own."""
    long = [me.reduce(LONG), me.reduce(LONG)]
    short = me.reduce(SHORT, None if planted else me.beside)
    me.plant(short.wait)
    me.compute(40)
    for work in long:
        work.wait()


def mixture(me: Rank, *, planted: bool) -> None:
    """Rank 1 sleeps, and the result of an all-reduce is needed at once. The sleep is longer, and is removed."""
    if planted and me.rank == 1:
        me.plant(lambda: time.sleep(0.03))
    me.compute(5)
    me.reduce(LONG // 2).wait()
    me.compute(15)


SCENARIOS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        sleeping_rank,
        extra_compute,
        late_launch,
        late_submission,
        dependent,
        serialized,
        too_short,
        queued,
        mixture,
    )
}


def block(me: Rank, step: Callable[..., None], trace: Path, *, planted: bool) -> dict[str, list[int]]:
    """STEPS steps under the profiler; what the clock saw of them, in ns."""
    before_others(COMPUTE_PRIORITY)
    step(me, planted=planted)
    dist.barrier()
    me.planted_ns.clear()
    lengths = []
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.barrier()
        for number in range(STEPS):
            begin = time.perf_counter_ns()
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step(me, planted=planted)
            lengths.append(time.perf_counter_ns() - begin)
    before_others(0)
    profiler.export_chrome_trace(str(trace))
    return {"steps_ns": lengths, "planted_ns": list(me.planted_ns)}


def unit_ns(me: Rank) -> int:
    """The median length of a product, the longer of both ranks, so that both do as many."""
    lengths = []
    for _ in range(60):
        begin = time.perf_counter_ns()
        torch.mm(me.left, me.right, out=me.out)
        lengths.append(time.perf_counter_ns() - begin)
    longest = torch.tensor([sorted(lengths)[30]])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest.item())


COMMUNICATION_PRIORITY, COMPUTE_PRIORITY = 20, 10
"""Real-time priorities: of communication, and of compute. The other way around nothing would be hidden."""


def own_core(rank: int) -> None:
    """A core for each rank: unpinned, both compute on one core for whole blocks while the other is idle."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def before_others(priority: int) -> None:
    """This thread, and those that it starts, run before everything else on the machine; 0 for as usual. Without the right to
    do so nothing changes, and neighbors show in the spread."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO if priority else os.SCHED_OTHER, os.sched_param(priority))


def run(out: Path, rank: int, names: list[str], turns: int) -> None:
    """All scenarios, `turns` pairs of blocks each."""
    torch.set_num_threads(1)
    own_core(rank)
    before_others(COMMUNICATION_PRIORITY)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2, timeout=RENDEZVOUS_TIMEOUT)
    me = Rank(rank)
    before_others(COMPUTE_PRIORITY)
    me.unit_ns = unit_ns(me)
    for name in names:
        seen: dict[str, list[dict[str, list[int]]]] = {"planted": [], "removed": []}
        for turn in range(turns):
            pair = ("planted", "removed") if turn % 2 == 0 else ("removed", "planted")
            for variant in pair:
                trace = out / f"{name}_{variant}_{turn}" / f"rank{rank}.json"
                trace.parent.mkdir(exist_ok=True)
                seen[variant].append(block(me, SCENARIOS[name], trace, planted=variant == "planted"))
        (out / f"{name}_rank{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, should that be killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this rank is gone")


def both_ranks(arguments: argparse.Namespace) -> int:
    """Start both, wait for both; the code of the first that fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    common = [sys.executable, "-m", "tests.real.scenario", str(arguments.out), "--scenarios", arguments.scenarios]
    common += ["--turns", str(arguments.turns), "--parent", str(os.getpid())]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        ranks.extend(subprocess.Popen([*common, "--rank", str(rank)]) for rank in (0, 1))
        while True:
            codes = [process.poll() for process in ranks]
            failed = [code for code in codes if code]
            if failed or None not in codes:
                return failed[0] if failed else 0
            time.sleep(0.05)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.wait()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Real runs of planted causes.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rank", type=int, help="this rank alone")
    parser.add_argument("--parent", type=int, help="the process to end with")
    arguments = parser.parse_args()
    if arguments.rank is None:
        return both_ranks(arguments)
    if arguments.parent is not None:
        die_with(arguments.parent)
    run(arguments.out, arguments.rank, arguments.scenarios.split(","), arguments.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
