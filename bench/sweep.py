"""What a point of a sweep costs, folded and in full: the ratio says what folding saves, whatever the machine.

    python -m bench.sweep              a 70B model on 512 GPUs: some points both ways, then a sweep over the grid
    python -m bench.sweep --quick      two points: shows that it works, says nothing

The sweep's points per second are of this machine; the ratio is of CPU time, both ways in one process.
"""

from __future__ import annotations

import argparse
import os
import time

from underlap.flows import simulate as flow
from underlap.flows.quick import Quick
from underlap.flows.sweep import scenarios, sweep
from underlap.planner import plan as planned
from underlap.policy import Policy
from underlap.schedule import apply
from underlap.simulate import Known, fold, simulate

LAYOUTS = ("tp=8,pp=4,dp=16,sp", "tp=8,pp=8,dp=8,sp", "tp=8,pp=2,dp=32,sp,zero=1", "tp=8,fsdp=64,sp")
COMPARE = "none,split_batch,decompose:4,delay_wgrad"
WORKLOAD = "train,gbs=128,mbs=1,seq=4096"


def scenario(layout: str) -> flow.Scenario:
    return flow.scenario(model="llama3-70b", cluster="dgx-h100", layout=layout, workload=WORKLOAD)


def both_ways(layout: str, policy: Policy) -> tuple[float, float, int]:
    """(CPU seconds folded with nothing known before, CPU seconds in full, difference of the two step times in ns)."""
    asked = scenario(layout)
    plan = apply(planned(asked.model, asked.layout, asked.workload, domain=asked.cluster.topology.domain), policy).plan
    machine = flow.machine(asked)
    began = time.process_time()
    folded = fold(plan, Known(machine)).step_ns
    between = time.process_time()
    full = simulate(plan, machine, bounds=False).step_ns
    return between - began, time.process_time() - between, abs(folded - full)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a point of a sweep costs.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true", help="for bench.analyze; nothing is written here")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    layouts = LAYOUTS[:1] if options.quick else LAYOUTS
    Quick().outcome(scenario(LAYOUTS[0]), Policy())  # tables and imports are loaded before anything is timed
    for layout in layouts:
        for policy in flow.policies(scenario(layout), COMPARE)[: 2 if options.quick else 3]:
            quick, full, difference = both_ways(layout, policy)
            name = flow.policy_text(policy) or "none"
            print(f"{layout}; {name}: full / folded CPU {full / quick:.1f} ({full:.2f} / {quick:.3f} s), {difference} ns apart")
    batches = [2**power for power in range(10)]
    seqs = [512 * 2**power for power in range(2 if options.quick else 9)]
    before, began = os.times(), time.perf_counter()
    answer = sweep(scenarios(scenario(LAYOUTS[0]), ";".join(layouts)), COMPARE, batches=batches, seqs=seqs, jobs=options.jobs)
    wall, after = time.perf_counter() - began, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    computed = sum(point.step_ns is not None for point in answer.points)
    print(
        f"sweep: {len(answer.points)} points, {computed} computed, {wall:.1f} s with {options.jobs} processes, "
        f"{1000 * cpu / max(1, computed):.0f} ms of CPU per computed point, {len(answer.points) / wall:.1f} points/s"
    )


if __name__ == "__main__":
    main()
