"""How fast the event kernel is: `python -m bench.replay [operations]`.

Prints plain Python, numba (where installed) and the ratio. A generated network: two lanes per device, half of the operations
with an edge to a later one. Preparation is included,
compiling is not.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from underlap import replay
from underlap.event_kernel import Engine, compiled, plain

DEVICES = (8, 64, 1024)


def generated(operations: int, devices: int) -> replay.Network:
    """The same network for the same numbers."""
    random = np.random.default_rng(7)
    lane = (np.arange(operations) % (2 * devices)).astype(np.int32)
    source = np.flatnonzero(random.random(operations) < 0.5)
    target = source + random.integers(1, 4 * devices, len(source))
    inside = target < operations
    lag = random.integers(0, 1000, len(source))
    edges = (source[inside], target[inside], lag[inside])
    return replay.network(lane, random.integers(1, 100_000, operations), edges=edges)


def shared(plan: replay.Network, devices: int) -> replay.SharedRates:
    """Compute on even lanes, communication on odd ones; one link for every eight devices."""
    communication = plan.lane % 2 == 1
    return replay.SharedRates(
        kind=np.where(communication, replay.COMMUNICATION, replay.COMPUTE).astype(np.int8),
        device=plan.lane // 2,
        units=np.ones(len(plan), dtype=np.int32),
        curve=communication.astype(np.int32),
        curves=np.array([[1.0, 1.1], [1.0, 1.3]]),
        late=np.zeros(len(plan), dtype=np.int8),
        memory=np.where(communication, 0.2, 0.5),
        link=np.where(communication, plan.lane // 16, -1).astype(np.int32),
        demand=np.full(len(plan), 0.4),
        links=devices // 8,
        devices=devices,
    )


def seconds(plan: replay.Network, rates: replay.SharedRates | None, engine: Engine) -> float:
    """Wall time of one replay."""
    begun = time.perf_counter()
    replay.run(plan, rates, engine)
    return time.perf_counter() - begun


def main() -> None:
    """Print one line per size and provider."""
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    fast = compiled()
    if fast is not None:
        replay.run(generated(16, 8), None, fast)
    else:
        print("numba is not installed: pip install underlap[fast]")
    for devices in DEVICES:
        plan = generated(operations, devices)
        for name, rates in (("given durations", None), ("shared rates", shared(plan, devices))):
            slow = seconds(plan, rates, plain)
            line = f"{operations} operations, {devices:4} devices, {name:15}: plain {operations / slow / 1e6:.2f} Mops/s"
            if fast is not None:
                quick = min(seconds(plan, rates, fast) for _ in range(3))
                line += f", numba {operations / quick / 1e6:.2f} Mops/s, ratio {slow / quick:.1f}"
            print(line)


if __name__ == "__main__":
    main()
