"""Record a profile and, beside it, an execution trace: two gloo processes with an asynchronous all-reduce.

    python examples/record_data_edges.py FOLDER          (needs torch)

Per step the all-reduce of `gradient` runs beside a matrix product that does not need it; then the gradient is scaled. From the
execution trace underlap knows which of the two has to wait: `Timeline.dependences`. See docs/verdicts.md, "Grades".
"""

from __future__ import annotations

import datetime
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

RANKS = 2
STEPS = 5


def run(rank: int, folder: str, meeting: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60)
    )
    torch.set_num_threads(1)
    left, right, gradient = torch.randn(256, 256), torch.randn(256, 256), torch.randn(1 << 18)
    profile_file, execution_file = (f"{folder}/rank{rank}{ending}.json" for ending in ("", "_et"))
    observer = ExecutionTraceObserver().register_callback(execution_file)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS - 2),
        execution_trace_observer=observer,
        record_shapes=True,
        on_trace_ready=lambda done: done.export_chrome_trace(profile_file),
    ) as recording:
        for _ in range(STEPS):
            work = dist.all_reduce(gradient, async_op=True)
            torch.relu(left @ right)
            work.wait()
            gradient = gradient * 0.5
            recording.step()
    dist.barrier()
    dist.destroy_process_group()
    for file in (profile_file, execution_file):
        content = json.loads(Path(file).read_text())
        content.pop("host_name", None)
        content["traceName"] = Path(file).name
        with gzip.open(f"{file}.gz", "wt", compresslevel=9) as packed:
            json.dump(content, packed)
        Path(file).unlink()


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(run, args=(sys.argv[1], f"{scratch}/meeting"), nprocs=RANKS)
