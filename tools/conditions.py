"""Write docs/conditions.md and docs/conditions.svg: under which conditions overlap pays, measured on two cores.

    python tools/conditions.py --write             runs everything (needs root, PyTorch and Linux) and replaces both files, and
                                                   tools/conditions.json, which they are made of
    python tools/conditions.py --keep FILE         also keeps what was measured, as JSON
    python tools/conditions.py --from FILE         makes the page of what was kept, and runs nothing

Baseline and policy run in turns in one launch. Those whose steps spread by more than 10 % are run again, at most twice and for as
long as ten minutes allow, and counted; the run that spreads least is kept. It measures, and decides nothing: what came out is
what the page says. What is run is in tools/conditions_cases.py, the page in tools/conditions_page.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import conditions_page  # noqa: E402  # found by the line above
from conditions_cases import CASES, MOST_SPREAD, Case, Row, row  # noqa: E402  # found by the line above

from underlap.flows import run as flow  # noqa: E402  # found by the line above
from underlap.trial import Trial  # noqa: E402  # found by the line above

PAGE, FIGURE = ROOT / "docs" / "conditions.md", ROOT / "docs" / "conditions.svg"
DATA = Path(__file__).with_name("conditions.json")
ATTEMPTS = 3
BUDGET_S = 570.0
"""Nothing is run again that would end later, to go by how long it took before: what spreads is then shown as it is."""
STARTING_S = 10.0
PER_STEP = 1.3
"""What a comparison takes over its measured steps: two of nine warm up, and there are barriers."""
BUSY_S, IDLE_S = 0.02, 0.01
"""How the slowed rank is slowed: another process computes on its core for so long, sleeps for so long, and so on. It computes, as
a core that is merely stopped would leave the memory and the clock of both to the other rank, which would be quicker for it."""
COMPETITOR = f"""
import os, sys, time
import numpy
os.sched_setaffinity(0, {{int(sys.argv[1])}})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(15))
matrix = numpy.ones((512, 512), numpy.float32)
while True:
    end = time.monotonic() + {BUSY_S}
    while time.monotonic() < end:
        matrix @ matrix
    time.sleep({IDLE_S})
"""
"""Between gloo's threads, which it leaves alone, and the thread that computes."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="The conditions of overlap, measured.")
    parser.add_argument("--write", action="store_true", help="replace the page and its figure")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep what was measured, as JSON; what is there is added to")
    parser.add_argument("--from", type=Path, dest="kept", metavar="FILE", help="run nothing, take what was kept")
    parser.add_argument("--only", metavar="NAMES", help="of the cases, these")
    arguments = parser.parse_args()
    if arguments.kept is not None:
        rows = _in_order({one.name: one for one in msgspec.json.decode(arguments.kept.read_bytes(), type=list[Row])})
    else:
        names = arguments.only.split(",") if arguments.only is not None else [case.name for case in CASES]
        unknown = sorted(set(names) - {case.name for case in CASES})
        if unknown:
            parser.error(f"--only: no case {unknown[0]!r}: expected of {', '.join(case.name for case in CASES)}")
        rows = measured([case for case in CASES if case.name in names], arguments.keep)
    if arguments.write and len(rows) < len(CASES):
        parser.error(f"--write: {len(rows)} of {len(CASES)} cases were measured, and the page has all: add to them with --keep")
    text, figure = conditions_page.page(rows)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
        FIGURE.write_text(figure, encoding="utf-8")
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
        print(f"Wrote {PAGE}\nWrote {FIGURE}\nWrote {DATA}")
    else:
        sys.stdout.write(text)


def measured(cases: Sequence[Case], keep: Path | None) -> list[Row]:
    """All of them, one launch for each kind of link, those that spread too far again; with what was kept before.

    Of several runs of a case the one that spreads least stays: that knows nothing of how it came out.
    """
    found: dict[str, Row] = {}
    if keep is not None and keep.exists():
        found = {one.name: one for one in msgspec.json.decode(keep.read_bytes(), type=list[Row])}
    left = list(cases)
    started = time.monotonic()
    took: dict[str, float] = {}
    for attempt in range(1, ATTEMPTS + 1):
        # Those that are held against each other one after the other: the machine drifts.
        for launch in sorted({case.launch for case in left}):
            begin = time.monotonic()
            together = [case for case in left if case.launch == launch]
            if attempt > 1:
                together = _fitting(together, found, took, BUDGET_S - STARTING_S - (begin - started))
            if not together:
                sys.stderr.write(f"conditions: {launch}: not run again, as {BUDGET_S:.0f} s would not do\n")
                continue
            for case, trial in zip(together, _launched(together), strict=True):
                again = row(case, trial, attempt)
                if case.name in took and found[case.name].spread < again.spread:
                    again = msgspec.structs.replace(found[case.name], attempts=attempt)
                found[case.name] = again
                steps = [*(one.step_ns for one in trial.variants), *(one.step_ns + one.planned_step_ns for one in trial.ceilings)]
                took[case.name] = PER_STEP * 1e-9 * sum(map(sum, steps))
            if keep is not None:
                keep.write_bytes(msgspec.json.encode(list(found.values())))
            sys.stderr.write(f"conditions: {launch}: {len(together)} comparisons in {time.monotonic() - begin:.0f} s\n")
        left = [case for case in left if found[case.name].spread > MOST_SPREAD]
    sys.stderr.write(f"conditions: {time.monotonic() - started:.0f} s in all\n")
    return _in_order(found)


def _fitting(cases: Sequence[Case], found: dict[str, Row], took: dict[str, float], seconds: float) -> list[Case]:
    """Those that spread most, as many as there is time for."""
    chosen: list[Case] = []
    for case in sorted(cases, key=lambda each: -found[each.name].spread):
        if took[case.name] <= seconds:
            seconds -= took[case.name]
            chosen.append(case)
    return chosen


def _in_order(found: dict[str, Row]) -> list[Row]:
    return [found[case.name] for case in CASES if case.name in found]


def _launched(cases: Sequence[Case]) -> list[Trial]:
    asked = [case.asked() for case in cases]
    if not cases[0].slowed:
        return flow.run_each(asked)
    # Ranks that are started here have a core each, in order.
    core = sorted(os.sched_getaffinity(0))[1]
    threads = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", COMPETITOR, str(core)], env=threads) as other:
        try:
            return flow.run_each(asked)
        finally:
            other.kill()


if __name__ == "__main__":
    main()
