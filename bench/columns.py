"""Bytes in the columns of the Timeline that underlap makes of a trace: what has to be in memory, as a measure for its peak.

python -m bench.columns FILE
"""

import sys

import underlap


def main() -> None:
    timeline = underlap.read(sys.argv[1])
    tables = (timeline.ops, timeline.host, timeline.collectives)
    print(sum(column.nbytes for table in tables for column in table.columns().values()))


if __name__ == "__main__":
    main()
