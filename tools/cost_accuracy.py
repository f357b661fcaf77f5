"""Print how the cost models compare with measurements: sections for docs/accuracy.md.

    python tools/cost_accuracy.py

Reads ../shared/facts. The constants under test are the committed ones (tools/fit_costs.py prints them again); rows that they were
fitted on are not counted. It measures, and decides nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from cost_facts import FACTS, GENERATIONS, MIB, ExpertRow, expert_rows, machine, multimem_rows, nccl_rows

from underlap.cost import compute, sharing
from underlap.cost.calibration import UNCALIBRATED, Calibration
from underlap.cost.collectives import price
from underlap.cost.formulas import expert_parallel_domain_bytes
from underlap.cost.work import Gemm, Transfer

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
JUDGED_ON = {"a100_sxm": 8, "h100_sxm": 8, "gb200": 4}
"""GPUs; the constants were fitted on fewer."""


class Errors(msgspec.Struct, frozen=True):
    """Relative errors of a set of rows, in percent; positive where the model is slower than measured."""

    rows: int
    median: float
    """Of absolute errors, as p90 and worst."""
    p90: float
    worst: float
    bias: float
    """Median of signed errors."""
    within_25: float
    """Share of rows, in percent."""


def errors(signed: Iterable[float]) -> Errors:
    found = 100 * np.array(list(signed))
    size = np.abs(found)
    return Errors(
        rows=len(found),
        median=float(np.median(size)),
        p90=float(np.percentile(size, 90)),
        worst=float(size.max()),
        bias=float(np.median(found)),
        within_25=float(100 * np.mean(size <= 25)),
    )


def nccl_errors(system: str, collectives: tuple[str, ...], calibration: Calibration | None, large: bool = True) -> Errors:
    """On the judging group size, from 1 MiB (or below it)."""
    topology = machine(system)
    rows = [
        row
        for row in nccl_rows(1)
        if row.system == system
        and row.transfer.ranks == JUDGED_ON[system]
        and row.transfer.collective in collectives
        and (row.transfer.payload_bytes >= MIB) == large
    ]
    return errors(price(row.transfer, topology, calibration=calibration).time_ns / 1000 / row.us - 1 for row in rows)


def fabric_of_eight_nodes() -> float:
    """How many times less than line rate the network of the 8-node rows carried: their largest dispatch on 24 SMs."""
    row = max((row for row in expert_rows() if row.nodes == 8 and row.sms == 24), key=_dispatch_size)
    routing, scale_out = row.transfer.routing, machine(row.system).scale_out
    assert routing is not None
    assert scale_out is not None
    _, outside = expert_parallel_domain_bytes(row.transfer.payload_bytes, routing.topk, routing.experts, row.transfer.placed)
    return round(scale_out.bytes_per_s / (outside / (row.us * 1e-6)), 2)


def _dispatch_size(row: ExpertRow) -> tuple[bool, int]:
    return row.transfer.collective == "dispatch", row.tokens


def expert_errors(system: str, nodes: int, kind: str, oversubscription: float = 1.0) -> Errors:
    """From 1024 tokens, all SM counts but the 8 that the constants were fitted on where they were."""
    topology = machine(system, oversubscription)
    fitted = 8 if nodes <= 2 else None
    return errors(
        price(row.transfer, topology).time_ns / 1000 / row.us - 1
        for row in expert_rows()
        if (row.system, row.nodes, row.transfer.collective) == (system, nodes, kind) and row.sms != fitted
    )


def multimem_errors(ctas: int) -> Errors:
    """All-reduce on symmetric memory, 8 H100, 1 to 512 MiB, without the two rows fitted on."""
    rows = [row for row in multimem_rows() if row.transfer.ctas == ctas]
    ends = {2: max, 8: min}.get(ctas)
    fitted = None if ends is None else ends(rows, key=lambda row: row.transfer.payload_bytes)
    topology = machine("h100_sxm")
    return errors(price(row.transfer, topology).time_ns / 1000 / row.us - 1 for row in rows if row is not fitted)


def halves_by_ctas() -> list[tuple[str, int, float, float]]:
    """(collective, CTAs, measured us, model us) of reduce-scatter and all-gather of 128 MiB."""
    facts = yaml.safe_load((FACTS / "contention.yaml").read_text())["comm_time_vs_sms"]["rs_ag_8192_tokens_us"]
    found = []
    for short, collective in (("rs", "reduce_scatter"), ("ag", "all_gather")):
        for name, us in facts[short].items():
            if name.startswith("ctas_"):
                ctas = int(name.removeprefix("ctas_"))
                work = Transfer(collective=collective, payload_bytes=128 * MIB, ranks=8, algorithm="symmetric", ctas=ctas)
                found.append((collective, ctas, us, price(work, machine("h100_sxm")).time_ns / 1000))
    return found


def full_wave_slowdown() -> float:
    """Of a product with 132 tiles on 132 SMs beside a collective on 13 of them."""
    beside = Transfer(collective="all_gather", payload_bytes=128 * MIB, ranks=8, ctas=13)
    topology = machine("h100_sxm")
    return sharing.slowdown(Gemm(m=1536, n=2816, k=8192), price(beside, topology), topology.processor).compute


def gained_shares(system: str = "mi300x") -> dict[str, float]:
    """Mean share of the ideal speedup by way of running side by side: products of three heights beside 16 to 512 MiB."""
    topology = machine(system)
    found: dict[str, list[float]] = {"plain": [], "partitioned": [], "copy engines": []}
    for rows, power, collective in itertools.product((4096, 8192, 16384), range(24, 30), ("all_gather", "all_to_all")):
        work = Gemm(m=rows, n=8192, k=8192)
        alone = compute.price(work, topology.processor).time_ns
        for how, shares in found.items():
            algorithm = "copy_engine" if how == "copy engines" else None
            transfer = price(Transfer(collective=collective, payload_bytes=2.0**power, ranks=8, algorithm=algorithm), topology)
            way = "partitioned" if how == "partitioned" else "plain"
            share = sharing.gained_share(alone, transfer, sharing.slowdown(work, transfer, topology.processor, way))
            assert share is not None
            shares.append(share)
    return {how: float(np.mean(shares)) for how, shares in found.items()}


def stretched(system: str) -> float:
    """Factor on the compute of transformer layers (hidden 2048 to 5120) while FSDP gathers beside it on 4 GPUs, by time."""
    topology = machine(system)
    slow = total = 0.0
    for (hidden, inner), tokens in itertools.product(((2048, 8192), (4096, 11008), (5120, 13824)), (4096, 8192, 16384)):
        gathered = Transfer(collective="all_gather", payload_bytes=2.0 * (4 * hidden + 3 * inner) * hidden, ranks=4)
        cost = price(gathered, topology)
        for columns, depth in ((3 * hidden, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)):
            work = Gemm(m=tokens, n=columns, k=depth)
            alone = compute.price(work, topology.processor).time_ns
            slow += alone * sharing.slowdown(work, cost, topology.processor).compute
            total += alone
    return slow / total


def _row(*cells: object) -> str:
    return f"| {' | '.join(f'{cell:.1f}' if isinstance(cell, float) else str(cell) for cell in cells)} |"


def _table(*columns: str) -> list[str]:
    return [_row(*columns), _row(*("---" if at == 0 else "---:" for at in range(len(columns))))]


def nccl_section() -> list[str]:
    lines = [
        "## Time of collectives by NCCL",
        "",
        "Isolated time against nccl-tests in one NVLink domain, from 1 MiB to 512 MiB. `as it is`: NCCL 2.30.7's own tuning",
        "model, from its source. `fitted`: with three constants per generation found on 2 and 4 GPUs (GB200: 2); these rows are",
        "of 8 GPUs (GB200: of 4, the largest group in the table).",
        "Error: median and 90th percentile of |model / measured - 1|, and the median with its sign, in percent.",
        "The all-to-all has no cost in NCCL: that of `as it is` is underlap's own without constants.",
        "",
        *_table(
            "System, GPUs", "Collective", "Rows", "as it is: median", "p90", "bias", "fitted: median", "p90", "bias", "worst"
        ),
    ]
    for system, gpus in JUDGED_ON.items():
        for collectives in (*((one,) for one in COLLECTIVES), COLLECTIVES):
            bare, fitted = (nccl_errors(system, collectives, one) for one in (UNCALIBRATED, None))
            name = "all" if len(collectives) > 1 else collectives[0]
            cells = (bare.rows, bare.median, bare.p90, bare.bias, fitted.median, fitted.p90, fitted.bias, fitted.worst)
            lines.append(_row(f"{system} {gpus} ({GENERATIONS[system]})", name, *cells))
    lines += [
        "",
        "Below 1 MiB, where nothing was fitted:",
        "",
        *_table("System, GPUs", "Rows", "as it is: median", "p90", "fitted: median", "p90"),
    ]
    for system, gpus in JUDGED_ON.items():
        bare, fitted = (nccl_errors(system, COLLECTIVES, one, large=False) for one in (UNCALIBRATED, None))
        lines.append(_row(f"{system} {gpus}", bare.rows, bare.median, bare.p90, fitted.median, fitted.p90))
    return lines


def expert_section() -> list[str]:
    fabric = fabric_of_eight_nodes()
    lines = [
        "## Time of dispatch and combine by SMs and nodes",
        "",
        "DeepEP with its exchange of counts, from 1024 tokens, on 4 to 24 SMs, without the rows that constants were fitted on.",
        f"The network of the 8-node rows carried {fabric} times less than its line rate, which no figure of the source explains:",
        "those rows stand once as on a network without that limit, and once with it (found on one dispatch, judged on all).",
        "",
        *_table("System, nodes", "Kind", "Rows", "median", "p90", "worst", "within 25 %"),
    ]
    systems = [("h100_sxm", 1, 1.0), ("h200_sxm", 1, 1.0), ("b200_sxm", 1, 1.0), ("gb200", 1, 1.0)]
    systems += [("h100_sxm", 2, 1.0), ("h100_sxm", 4, 1.0), ("h100_sxm", 8, 1.0), ("h100_sxm", 8, fabric)]
    for system, nodes, oversubscription in systems:
        for kind in ("dispatch", "combine"):
            found = expert_errors(system, nodes, kind, oversubscription)
            note = "" if oversubscription == 1 else f", network / {fabric}"
            lines.append(_row(f"{system} {nodes}{note}", kind, found.rows, found.median, found.p90, found.worst, found.within_25))
    return lines


def contention_section() -> list[str]:
    shares = gained_shares()
    lines = [
        "## What compute and communication cost each other",
        "",
        f"A product of 132 tiles on the 132 SMs of an H100, beside a collective on 13 of them: {full_wave_slowdown():.2f} times",
        "as long (pytorch/pytorch#143988: 2 times).",
        "",
        "While a gather of FSDP runs beside the products of transformer layers on 4 GPUs, they take",
        f"{stretched('a100_sxm'):.2f} times as long on A100, and {stretched('h100_sxm'):.2f} times on H100, where the library's",
        "kernels have a fixed list of tiles per SM. Measured over whole runs, of which a part is overlapped: 1.19 times in the",
        "mean and 1.40 at most (arXiv 2507.03114; A100, H100, MI210, MI250).",
        "",
        "Share of the ideal speedup on MI300X, mean over products beside all-gathers and all-to-alls; measured: ConCCL, arXiv",
        "2412.14335 (other kernels and sizes, so only the order is compared).",
        "The order holds. The amounts do not: caches, power and the rates of concurrent kernels are not modeled.",
        "",
        *_table("Way", "model", "measured"),
        *(
            _row(how, f"{100 * shares[how]:.0f} %", said)
            for how, said in (("plain", "21 %"), ("partitioned", "42 %"), ("copy engines", "72 %"))
        ),
        "",
        "All-reduce in the switch on symmetric memory by CTAs, 8 H100, 1 to 512 MiB (microsoft/tokenweave, figure 7):",
        "",
        *_table("CTAs", "Rows", "median", "worst"),
    ]
    for ctas in (2, 4, 8, 16, 32):
        found = multimem_errors(ctas)
        lines.append(_row(ctas, found.rows, found.median, found.worst))
    lines += ["", "Its halves at 128 MiB:", "", *_table("Collective", "CTAs", "measured us", "model us")]
    lines += [_row(*cells) for cells in halves_by_ctas()]
    return lines


def page() -> str:
    return "\n".join([*nccl_section(), "", *expert_section(), "", *contention_section()]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
