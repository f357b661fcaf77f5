"""A made-up testbed whose figures are known: what tests of fits, prices and simulations compare with."""

from __future__ import annotations

import msgspec

from underlap.cluster import MEASURED
from underlap.cost.testbed import Testbed

START_US, COPY, WIRE, BURST = 200.0, 0.5, 16.0, 100_000.0
RATE = 62.5e6


def value(number, spread=0.0):
    return {"value": number, "low": number * (1 - spread), "high": number * (1 + spread)}


def point(us, **size):
    return {"us": us, "low_us": 0.95 * us, "high_us": 1.05 * us, "repetitions": 9, **size}


def transfer_us(nbytes):
    """Of what the made-up link takes for bytes on the wire, after a pause."""
    return START_US + max(COPY * nbytes, WIRE * (nbytes - BURST)) / 1e3


def product_us(m, n, k):
    return 10.0 + 2.0 * m * n * k / 100e3


def stream_us(nbytes):
    return 5.0 + nbytes / 5e3


SHAPES = [(64, 64, 64), (128, 128, 64), (256, 256, 64), (256, 512, 256), (512, 512, 512), (512, 1024, 512), (1024, 1024, 1024)]
STREAMS = ["forward/mlp.activation", "backward/mlp.activation", "forward/attention.norm", "backward/attention.norm"]


def transfers():
    return {
        "start_us": value(START_US, 0.1),
        "copy_ns_per_byte": value(COPY, 0.1),
        "wire_ns_per_byte": value(WIRE, 0.01),
        "burst_bytes": value(BURST, 0.05),
        "cpu_start_us": value(100.0),
        "cpu_ns_per_byte": value(1.0),
        "first_of_two": value(0.5),
        "residual": 0.01,
        "points": [point(transfer_us(2**power), bytes=2.0**power) for power in range(12, 24)],
    }


def section():
    """The `measured` section, as YAML has it."""
    products = [point(product_us(*shape), **dict(zip("mnk", shape, strict=True))) for shape in SHAPES]
    cores = [
        point(20.0 + 8 * heads * query * query / 1e3, batch=1, heads=heads, query=query, context=query, head_dim=32)
        for heads in (2, 4, 8)
        for query in (64, 256)
    ]
    return {
        "library": "gloo",
        "source": "made up",
        "ranks": 2,
        "precision": "fp32",
        "fabric": "500mbit",
        "fabric_bytes_per_s": RATE,
        "priority": "communication",
        "compute": {
            "products": dict.fromkeys(("forward", "backward", "weight_grad"), products),
            "attention": dict.fromkeys(("forward", "backward"), cores),
            "streams": {name: [point(stream_us(4.0**power), bytes=4.0**power) for power in range(6, 13)] for name in STREAMS},
            "between_us": value(1.0),
        },
        "transfers": {name: transfers() for name in ("all_reduce", "all_gather", "all_to_all", "send")},
        "host": {
            name: {
                "pack_us": value(10.0),
                "pack_ns_per_byte": value(0.1),
                "call_us": value(50.0),
                "finish_us": value(20.0),
                "finish_ns_per_byte": value(0.2),
            }
            for name in (
                "all_reduce/weights",
                "all_reduce/rows",
                "all_gather/weights",
                "reduce_scatter/weights",
                "all_to_all/rows",
            )
        },
        "beside": {"compute_stretch": value(1.08, 0.01), "transfer_stretch": value(1.0), "cpu_share": value(0.07, 0.01)},
    }


def testbed(**changed):
    return msgspec.convert({**section(), **changed}, Testbed)


testbed.__test__ = False


def document(**changed):
    """A cluster's YAML with it."""
    return {
        "name": "two cores",
        "gpus": 2,
        "domain": 2,
        "processor": {
            "name": "one core",
            "architecture": "cpu",
            "sms": None,
            "peak_flops": {"fp32": "100 GFLOP/s"},
            "memory": "8 GiB",
            "memory_bandwidth": "20 GB/s",
            "copy_engines": 0,
            "launch": "1 us",
        },
        "scale_up": {"name": "500mbit", "bandwidth": "500 Mbit/s", "latency": "200 us", "switched": True},
        MEASURED: section(),
        **changed,
    }
