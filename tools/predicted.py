"""How predictions from a calibration compare with runs that it has not seen: other widths, layouts, sizes and passes.

    python tools/predicted.py --fabric 500mbit --priority communication --out here.yaml     # calibrates, then runs all
    python tools/predicted.py --cluster here.yaml --only 3                                  # one of them, from a calibration

Prints Markdown: predicted over measured step and communication without and with the pass, and their ratio with its range.
Takes minutes; needs PyTorch, and root for links and priorities. Times of communication are unions per rank, means over ranks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec

from underlap import inputs
from underlap.flows import calibrate as calibration
from underlap.flows import run as runs
from underlap.flows import simulate as predictions
from underlap.report import Report
from underlap.run.priority import PRIORITIES

WIDE = {
    "hidden": 640,
    "layers": 3,
    "heads": 10,
    "kv_heads": 10,
    "head_dim": 64,
    "intermediate": 1280,
    "vocab": 768,
}
NARROW = {**WIDE, "hidden": 320, "layers": 4, "heads": 5, "kv_heads": 5, "intermediate": 960}
MIXED = {**NARROW, "layers": 2, "experts": {"count": 6, "top_k": 2, "intermediate": 640}}
HELD_OUT = (
    (WIDE, "tp=2", "train,gbs=4,mbs=4,seq=128", "tp=split_batch"),
    (WIDE, "tp=2,sp", "train,gbs=4,mbs=4,seq=96", "tp=split_batch"),
    (NARROW, "dp=2", "train,gbs=16,mbs=4,seq=96", "dp=bucket:4MB"),
    (NARROW, "fsdp=2", "train,gbs=8,mbs=4,seq=192", "fsdp=prefetch:1"),
    (MIXED, "ep=2,dp=2", "train,gbs=8,mbs=4,seq=192", "ep=split_batch"),
    (WIDE, "tp=2", "train,gbs=2,mbs=2,seq=320", "tp=decompose:4"),
)
"""Model, layout, workload, pass. No width, sequence or number of layers of these is timed by `underlap calibrate`."""


def main() -> None:
    """Calibrate unless given a cluster; then predict and run each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cluster", type=Path, help="a calibration to take instead of making one")
    parser.add_argument("--out", type=Path, help="where to keep the calibration")
    parser.add_argument("--fabric", default="500mbit")
    parser.add_argument("--priority", default="communication", choices=PRIORITIES)
    parser.add_argument("--only", type=int, action="append", metavar="N", help="which of the plans, from 0; may be repeated")
    parser.add_argument("--repetitions", type=int, default=9)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = asked.cluster
        if cluster is None:
            cluster = asked.out or Path(folder, "cluster.yaml")
            what = calibration.asked(fabric=asked.fabric, priority=asked.priority)
            cluster.write_bytes(calibration.calibrate(what))
        measured = inputs.cluster(str(cluster)).measured
        assert measured is not None
        print(
            f"{measured.source}; {measured.fabric or 'loopback'}, priority {measured.priority}; "
            f"residuals {measured.compute.residuals}"
        )
        print("\n| plan | step, none | step, pass | communication, none | with pass | ratio predicted | measured |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for number, (shape, layout, workload, policy) in enumerate(HELD_OUT):
            if not asked.only or number in asked.only:
                model = Path(folder, f"model{number}.yaml")
                model.write_bytes(msgspec.yaml.encode({"name": f"width {shape['hidden']}", "source": "held out", **shape}))
                text = f"{workload},precision={measured.precision}"
                print(_row(str(model), str(cluster), layout, text, policy, measured, asked.repetitions), flush=True)


def _row(model: str, cluster: str, layout: str, workload: str, policy: str, measured, repetitions: int) -> str:  # type: ignore[no-untyped-def]
    predicted = [
        predictions.simulate(
            predictions.scenario(model=model, cluster=cluster, layout=layout, workload=workload, policy=each), deep=False
        )
        for each in ("", policy)
    ]
    trial = runs.run(
        runs.asked(
            model=model,
            layout=layout,
            workload=workload,
            policy=policy,
            compared=True,
            repetitions=repetitions,
            fabric=measured.fabric,
            priority=measured.priority,
            quiet=True,
        )
    )
    assert trial is not None
    assert trial.policy is not None
    assert trial.ab is not None
    steps, times = [], []
    for report, seen, variant in zip(predicted, (trial.baseline, trial.policy), trial.variants, strict=True):
        assert report.prediction is not None
        middle = statistics.median(variant.step_ns)
        spread = (min(variant.step_ns) / middle, max(variant.step_ns) / middle)
        steps.append(f"{report.prediction.step_ns / middle:.3f} of {middle / 1e6:.0f} ms ({spread[0]:.2f}-{spread[1]:.2f})")
        times.append(f"{_communication(report) / _communication(seen):.3f} of {_communication(seen) / 1e6:.0f} ms")
    assert predicted[0].prediction is not None
    assert predicted[1].prediction is not None
    ratio = predicted[1].prediction.step_ns / predicted[0].prediction.step_ns
    found = f"{trial.ab.ratio:.3f} ({trial.ab.ratio_low:.3f}-{trial.ab.ratio_high:.3f}) {trial.ab.outcome}"
    return f"| {layout} {workload} {policy} | {' | '.join([*steps, *times])} | {ratio:.3f} | {found} |"


def _communication(report: Report) -> int:
    """Hidden and exposed, mean over ranks, in ns."""
    assert report.summary is not None
    return report.summary.hidden.mean_ns + report.summary.exposed.mean_ns


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
