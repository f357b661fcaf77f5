"""Print src/underlap/cost/calibration.yaml: the constants of the cost models, from the measured tables of ../shared/facts.

    python tools/fit_costs.py > src/underlap/cost/calibration.yaml

NCCL: three constants per generation on groups of 2 and 4 GPUs (GB200: of 2), from 1 MiB, mean absolute error of the logarithm.
Expert kernels: on 8 SMs; between domains on 2 nodes. Symmetric kernels: two rows of the sweep over CTAs. Everything else in the
tables is left to judge them: see tools/cost_accuracy.py.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from cost_facts import GENERATIONS, Row, expert_rows, machine, multimem_rows, nccl_rows

from underlap.cost.calibration import UNCALIBRATED, Calibration
from underlap.cost.collectives import price
from underlap.cost.formulas import expert_parallel_domain_bytes, reached_ranks

FITTED_ON = {"a100_sxm": (2, 4), "h100_sxm": (2, 4), "gb200": (2,)}
"""Group sizes; the tables have 8 GPUs of A100 and H100, and at most 4 of GB200: the largest judges."""


def digits(value: float) -> float:
    """Three of them."""
    return float(f"{value:.3g}")


def parts(row: Row) -> tuple[float, float, float, bool]:
    """(latency, transfer, own share in s at 1 B/ns, Simple) of a row, in ns: the time is linear in the three constants."""
    machine_ = machine(row.system)
    bare = price(row.transfer, machine_, calibration=UNCALIBRATED)
    copied = price(row.transfer, machine_, calibration=Calibration(local_bytes_per_s=1e9))
    return bare.latency_ns, bare.time_ns - bare.latency_ns, copied.time_ns - bare.time_ns, bare.protocol == "Simple"


def fit_nccl(rows: list[Row]) -> Calibration:
    """Grid search, five times finer each time."""
    columns = [np.array(column) for column in zip(*(parts(row) for row in rows), strict=True)]
    latency, moving, own, simple = columns
    measured = np.array([1000 * row.us for row in rows])
    low, high = np.log([0.5, 0.5, 50.0]), np.log([4.0, 4.0, 5000.0])
    best = np.array([0.0, 0.0, 0.0])
    for _ in range(4):
        least = math.inf
        for point in np.stack(np.meshgrid(*np.linspace(low, high, 15).T, indexing="ij"), -1).reshape(-1, 3):
            ll, slow, local = np.exp(point)
            estimate = latency * np.where(simple, slow, ll) + moving + own / local
            loss = float(np.mean(np.abs(np.log(estimate / measured))))
            if loss < least - 1e-12:
                least, best = loss, point
        width = (high - low) / 10
        low, high = best - width, best + width
    ll, slow, local = np.exp(best)
    systems = sorted({f"{row.system} {row.transfer.ranks}" for row in rows})
    source = (
        f"tools/fit_costs.py, nccl_single_node_measured.csv of the facts: {', '.join(systems)} GPUs, {len(rows)} rows from 1 MiB"
    )
    return Calibration(latency_ll=digits(ll), latency_simple=digits(slow), local_bytes_per_s=digits(1e9 * local), source=source)


def sm_rates(systems: tuple[str, ...], nodes: int) -> float:
    """Bytes per second of one SM: the median over rows of 8 SMs from 4096 tokens on, where SMs are what bounds."""
    rates = []
    for row in expert_rows(4096):
        if row.system in systems and row.nodes == nodes and row.sms == 8:
            routing = row.transfer.routing
            assert routing is not None
            limits = (routing.topk, routing.experts, row.transfer.placed)
            handled = row.transfer.payload_bytes * reached_ranks(*limits)
            handled += expert_parallel_domain_bytes(row.transfer.payload_bytes, *limits)[1]
            rates.append(handled / (row.sms * row.us * 1e-6))
    return digits(float(np.median(rates)))


def start_us(systems: tuple[str, ...], kind: str) -> float:
    """Median time of one token in one domain."""
    found = [
        row.us
        for row in expert_rows(1)
        if (row.system in systems, row.nodes, row.tokens) == (True, 1, 1) and row.transfer.collective == kind
    ]
    return digits(float(np.median(found)))


def expert_kernels(systems: tuple[str, ...], between: float | None) -> dict[str, object]:
    inside = sm_rates(systems, 1)
    note = "on 8 SMs" if between is None else "on 8 SMs, between domains on 2 nodes"
    kept = " (between domains: the inside rate in the ratio of hopper's)" if between is None else ""
    return {
        "sm_bytes_per_s": inside,
        "sm_bytes_per_s_between": between or digits(inside * sm_rates(("h100_sxm",), 2) / sm_rates(("h100_sxm", "h200_sxm"), 1)),
        "dispatch_ns": 1000 * start_us(systems, "dispatch"),
        "combine_ns": 1000 * start_us(systems, "combine"),
        "source": f"tools/fit_costs.py, deepep_normal_vs_sms_nodes.csv of the facts: {', '.join(systems)} {note}{kept}",
    }


def symmetric_kernels() -> dict[str, object]:
    """The rate of a CTA from 2 CTAs at the largest size; the start from 8 CTAs at the smallest."""
    rows = multimem_rows()
    largest = max(rows, key=lambda row: (row.transfer.payload_bytes, row.transfer.ctas == 2))
    smallest = min(rows, key=lambda row: (row.transfer.payload_bytes, row.transfer.ctas != 8))
    rate = digits(largest.transfer.payload_bytes / (largest.us * 1e-6))
    by_nvls = msgspec.structs.replace(smallest.transfer, algorithm="nvls", ctas=None)
    switch = price(by_nvls, machine(smallest.system), calibration=UNCALIBRATED)
    return {
        "latency_ns": digits(1000 * smallest.us - (switch.time_ns - switch.latency_ns)),
        "reduce_cta_bytes_per_s": digits(rate / 2),
        "gather_cta_bytes_per_s": digits(0.55 * 47.2e9),
        "source": "tools/fit_costs.py, tokenweave_h100_figure_7.csv of the facts: 2 CTAs at the largest size, 8 at the smallest; "
        "gather: NCCL 2.30.7 src/sym_kernels.cc, 0.55 x 47.2 GB/s per CTA and rank",
    }


def constants() -> dict[str, object]:
    """The content of calibration.yaml."""
    rows = nccl_rows()
    nccl = {
        generation: msgspec.to_builtins(
            fit_nccl([row for row in rows if row.system == system and row.transfer.ranks in FITTED_ON[system]])
        )
        for system, generation in GENERATIONS.items()
    }
    hopper = ("h100_sxm", "h200_sxm")
    return {
        "nccl": nccl,
        "expert_kernels": {
            "hopper": expert_kernels(hopper, sm_rates(("h100_sxm",), 2)),
            "blackwell": expert_kernels(("b200_sxm", "gb200"), None),
        },
        "symmetric_kernels": {"hopper": symmetric_kernels()},
    }


HEAD = """\
# Constants that measurements add to the models: what they mean is in calibration.py, how they were found beside each.
# Made by: python tools/fit_costs.py > src/underlap/cost/calibration.yaml
"""


def page() -> str:
    lines = [HEAD.rstrip()]
    for section, by_generation in constants().items():
        lines.append(f"{section}:")
        assert isinstance(by_generation, dict)
        for generation, values in by_generation.items():
            lines.append(f"  {generation}:")
            lines += [
                f"    {name}: {value!r}" if isinstance(value, str) else f"    {name}: {value:.3g}"
                for name, value in values.items()
            ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
