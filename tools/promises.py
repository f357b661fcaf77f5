"""Write docs/promises.md: real runs over gloo with a planted cause, and what removing it did.

    python tools/promises.py --write        runs the scenarios (about half a minute) and replaces the page
    python tools/promises.py                runs them and prints the page

The program, and what is compared with what, is in tests/real. It measures, and decides nothing: what came out is what the page
says. Needs PyTorch (the `run` extra) and Linux with unshare and tc.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promises.md"
sys.path.insert(0, str(ROOT))

from tests.real import launch, outcome, scenario_names  # noqa: E402  # found by the line above

HEAD = """\
<!-- Written by tools/promises.py from real runs: do not edit, run make promises again. Figures differ from run to run. -->

# Promises held to measurement

Two processes over gloo, with a cause planted. The analyzer sees one recording with the cause (the calmest by the clock), and says
what the cause is, how much it costs, and what a lever would win. Then the cause is removed, and the median step is measured with
and without it, in turns within one launch. Times are milliseconds per step. `make promises` makes this page again; `make test`
runs the same and holds every row to it.

* planted: what the program's own clock saw of the cause, which knows nothing of the trace. found: what the analyzer says of it.
  From rank 1 where its lateness was planted, else the mean of both ranks. Over 15 % apart is called wrong.
* promised: from that one recording alone. Where a range is given, its low end keeps every dependence that nobody can rule out.
  `if_independent` and `if_nothing_sent` are ceilings, so their low end is 0. For these a row says little; what counts is how far
  the high end is off: the last column, (high end - measured) / measured.
* spread: the middle half of the steps over their median, the larger of both variants. Over 10 % the scenario is run again, twice
  at most, and counted in runs; what spreads even then is undecided.
* kept?: whether the measured change lies inside the range, within 15 % of its nearer end, or neither.

"""


def main() -> None:
    """Run, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    why = launch.missing()
    if why is not None:
        raise SystemExit(f"nothing was run: {why}")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        found = outcome.settle(Path(scratch), list(outcome.EXPECTED))
    page = HEAD + outcome.table(list(found.values())) + _tail(found, time.monotonic() - begin)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
        print(f"Wrote {PAGE}")
    else:
        sys.stdout.write(page)


def _tail(found: dict[str, outcome.Outcome], seconds: float) -> str:
    rows = "".join(f"* {name}: {text}\n" for name, text in scenario_names.described().items())
    settled = [one for one in found.values() if one.decided]
    kept = sum(one.kept != "no" and one.promised is not None for one in settled)
    named = sum(one.cause_right and one.amount_right for one in settled)
    return f"""
Of {len(found)} scenarios {len(settled)} were decided; the cause and its amount were right in {named}, the promise kept in {kept}.
Measured with torch {importlib.metadata.version("torch")}, Python {platform.python_version()}, {os.cpu_count()} cores, a link of \
{launch.RATE_MBIT} Mbit/s for both directions together, in {seconds:.0f} s.

## The scenarios

{rows}
## What this does not show

* gloo on CPUs: nothing of NCCL kernels, of multiprocessors shared with compute, or of NVLink.
* Compute is a fixed number of equal products, so a step varies little. Compute and communication take each other's core a
  little: what `dependent`, `serialized` and `late_submission` win is less than the high end of their promise by that, and
  `too_short` wins more. No lever counts it, as such a recording does not tell what either would take alone.
* The high end of `queued` gives the short all-reduce the link for itself; it had to share it with the long ones.
* `dependent` and `serialized` are the same to the clock. They are told apart by whether the call was asynchronous; that the next
  compute does not need the result is known to the author of the program, and to no trace.
"""


if __name__ == "__main__":
    main()
