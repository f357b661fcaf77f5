"""Record four small traces: data-parallel training on two local processes, with one gradient bucket and with several.

    make record            (or: python examples/record_ddp.py --out FOLDER)

Both runs train the same model on the same data with the same bytes on the wire. Only the bucket size differs:

    ddp_one_bucket       the all-reduce starts when the last gradient is ready, so when the backward is over
    ddp_small_buckets    all-reduces start while the backward still computes the gradients of earlier layers

Needs PyTorch (the `run` extra) and Linux. The processes talk over loopback with gloo; no GPU and no network is used. What it does
not show: a real link. Over loopback a transfer is a copy by the CPU, so it takes the cores that compute needs.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import re
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WORLD_SIZE = 2
LAYERS = 8
WIDTH = 512  # the gradient of a layer is 1 MiB
BATCH = 384
WARM_STEPS = 3  # DDP sorts its buckets anew after the first step
RECORDED_STEPS = 3
BUCKET_MB = {"ddp_one_bucket": 1000.0, "ddp_small_buckets": 2.0}
RENDEZVOUS_TIMEOUT = datetime.timedelta(seconds=60)
RUN_TIMEOUT_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "traces", help="folder to write to")
    out: Path = parser.parse_args().out
    for run, bucket_mb in BUCKET_MB.items():
        (out / run).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            record(Path(scratch), bucket_mb)
            for rank in range(WORLD_SIZE):
                target = out / run / f"rank{rank}.json.gz"
                target.write_bytes(compress(anonymous((Path(scratch) / f"rank{rank}.json").read_text())))
                print(f"Wrote {target} ({target.stat().st_size / 1000:.0f} kB)")


def record(scratch: Path, bucket_mb: float) -> None:
    """Train on WORLD_SIZE processes; each writes its trace into the folder. Ends its own processes when they hang."""
    context = torch.multiprocessing.spawn(train, args=(scratch, bucket_mb), nprocs=WORLD_SIZE, join=False)
    deadline = time.monotonic() + RUN_TIMEOUT_S
    # join() returns as soon as one process has ended: False while others still run. It raises what a process raised.
    while not context.join(timeout=5.0):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise SystemExit(f"the {WORLD_SIZE} processes did not finish within {RUN_TIMEOUT_S:.0f} s: ended them, wrote nothing")


def train(rank: int, scratch: Path, bucket_mb: float) -> None:
    """One rank: a few steps of a multilayer perceptron, the last ones under the profiler."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=WORLD_SIZE, timeout=RENDEZVOUS_TIMEOUT
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(perceptron(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1 + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    targets = torch.randn(BATCH, WIDTH, generator=generator)
    recorded_steps = schedule(wait=1, warmup=WARM_STEPS - 1, active=RECORDED_STEPS, repeat=1)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], schedule=recorded_steps, record_shapes=True) as profiler:
        for _ in range(WARM_STEPS + RECORDED_STEPS):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(scratch / f"rank{rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


def perceptron() -> nn.Module:
    """LAYERS equal layers, so that every bucket is followed by equal work until the first layer is reached."""
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def anonymous(trace: str) -> str:
    """The trace without the host's name, the user's name and the path it was written to. Nothing else changes."""
    trace = re.sub(r'\s*"(host_name|hostname|user_name|username)": "[^"]*",', "", trace)
    trace = re.sub(r'("traceName": ")[^"]*/', r"\1", trace)
    json.loads(trace)
    for word in (f'"{os.uname().nodename}"', tempfile.gettempdir() + "/", str(Path.home()) + "/"):
        assert word not in trace, f"{word} would have been published"
    return trace


def compress(trace: str) -> bytes:
    """gzip without a time stamp, so that equal traces give equal files."""
    return gzip.compress(trace.encode(), compresslevel=9, mtime=0)


if __name__ == "__main__":
    main()
