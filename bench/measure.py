"""Run a command and write what it and its children cost into a file, as JSON.

    python -m bench.measure FILE COMMAND...

A program of its own, because Linux counts the memory of whoever starts a process into that process's peak: started from
a large benchmark, a small command would look large. This one is small and imports next to nothing.
"""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    started = time.perf_counter()
    process = subprocess.Popen(sys.argv[2:])
    _, status, usage = os.wait4(process.pid, 0)
    cost = {
        "code": os.waitstatus_to_exitcode(status),
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - started,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,  # Linux counts in KiB; the largest process of the tree, not their sum
    }
    with open(sys.argv[1], "w") as file:
        json.dump(cost, file)


if __name__ == "__main__":
    main()
