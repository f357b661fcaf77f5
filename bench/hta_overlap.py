"""The same question put to HTA: load one trace, ask for the overlap. Runs in HTA's own environment.

python bench/hta_overlap.py FILE
"""

import gzip
import re
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    path = Path(sys.argv[1]).resolve()
    analysis = TraceAnalysis(trace_files={rank_of(path): str(path)}, trace_dir=str(path.parent))
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    print(f"hidden percent: {overlap['comp_comm_overlap_pctg'].iloc[0]}")


def rank_of(path: Path) -> int:
    """The rank as the head of the trace has it, which HTA wants to be told."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        found = re.search(rb'"rank": (\d+)', file.read(1 << 16))
    assert found, f"no rank in the head of {path.name}"
    return int(found.group(1))


if __name__ == "__main__":
    main()
