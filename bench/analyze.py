"""CPU time and peak memory of `underlap analyze` on long traces, beside HTA and beside a floor that only reads the file.

    make bench                              (or: python -m bench.analyze --traces FOLDER)
    make bench BENCH='--quick'              short traces, one repetition: shows that it works, says nothing
    make bench BENCH='--write'              also puts the result into docs/benchmarks.md

The long traces are made by tiling two real ones, from the test data of HolisticTraceAnalysis: TRACES has to hold
recsys_a100/control.json.gz (whole microseconds) and ddp_a100/nccl_data.json.gz (nanosecond decimals). They are written to
a temporary folder and removed again. The programs take turns on each file, so that a busy machine is busy for all.
Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import page, tiling

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
SOURCES = {"recsys_a100/control.json.gz": 10.0, "ddp_a100/nccl_data.json.gz": 25.0}
FLATNESS_SOURCE = "recsys_a100/control.json.gz"
FLATNESS_COPIES = (2.5, 10.0, 25.0)
IMPORTS = 11


def main() -> None:
    options = parse()
    programs_used = environment(options)
    sources = {name: tiling.load(path) for name, path in found(options.traces).items()}
    programs = {
        "read only": [sys.executable, "-m", "bench.floor", "{file}"],
        "underlap": shlex.split(options.underlap),
        "HTA": [str(options.hta_python), "bench/hta_overlap.py", "{file}"],
    }
    repetitions = 1 if options.quick else options.repetitions
    shrink = 10.0 if options.quick else 1.0
    with tempfile.TemporaryDirectory(prefix="underlap-bench-") as scratch:
        races = []
        for name, copies in SOURCES.items():
            for suffix in (".json", ".json.gz"):
                tiled = tiling.tile(sources[name], Path(scratch) / f"trace{suffix}", copies / shrink)
                races.append(race(name, copies / shrink, tiled, programs, repetitions))
                tiled.path.unlink()
        heights = []
        for copies in FLATNESS_COPIES:
            tiled = tiling.tile(sources[FLATNESS_SOURCE], Path(scratch) / "trace.json.gz", copies / shrink)
            heights.append(height(copies / shrink, tiled, programs["underlap"]))
            tiled.path.unlink()
    text = page.render(
        races=races,
        heights=heights,
        import_s=import_cost(3 if options.quick else IMPORTS),
        environment=programs_used,
    )
    print(text)
    if options.write:
        PAGE.write_text(page.insert(PAGE.read_text(), text))
        print(f"Wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


def parse() -> argparse.Namespace:
    installed = Path(sys.executable).parent / "underlap"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the two real traces")
    parser.add_argument("--hta-python", type=Path, default=ROOT / ".venv-hta/bin/python", help="the Python that has HTA")
    parser.add_argument(
        "--underlap",
        default=f"{shlex.quote(str(installed))} analyze {{file}} --json - --window whole",
        help="the command to measure; {file} stands for the trace",
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short traces, one repetition")
    parser.add_argument("--write", action="store_true", help="put the result into docs/benchmarks.md")
    options = parser.parse_args()
    if not options.hta_python.exists():
        parser.error(f"found no {options.hta_python}; `make bench` makes it, or name one that has HTA by --hta-python")
    return options


def found(folder: Path) -> dict[str, Path]:
    paths = {name: folder / name for name in SOURCES}
    missing = [name for name, path in paths.items() if not path.exists()]
    if missing:
        sys.exit(f"found no {' and no '.join(missing)} in {folder}; see the top of bench/analyze.py for what they are")
    return paths


def race(name: str, copies: float, tiled: tiling.Tiled, programs: dict[str, list[str]], repetitions: int) -> page.Race:
    """Each program on the file, in turns."""
    runs: dict[str, list[page.Run]] = {program: [] for program in programs}
    for turn in range(repetitions):
        for program, command in programs.items():
            say(f"{name} x{copies:g} {tiled.path.suffix}: {program}, {turn + 1} of {repetitions}")
            runs[program].append(measure(fill(command, tiled.path), ANSWERS[program]))
    suffix = "".join(tiled.path.suffixes)
    return page.Race(name=f"{Path(name).parent} x{copies:g}, {suffix}", events=tiled.events, nbytes=tiled.nbytes, runs=runs)


def height(copies: float, tiled: tiling.Tiled, underlap: list[str]) -> page.Height:
    """The peak of underlap, and the part of it that the columns of the Timeline are."""
    say(f"memory: {FLATNESS_SOURCE} x{copies:g}")
    run = measure(fill(underlap, tiled.path), ANSWERS["underlap"])
    columns = measure([sys.executable, "-m", "bench.columns", str(tiled.path)], str.strip)
    column_bytes = int(columns.answer) if columns.answer else None
    return page.Height(copies=copies, events=tiled.events, run=run, column_bytes=column_bytes)


def import_cost(repetitions: int) -> float:
    """CPU seconds that `import underlap` adds to a fresh interpreter."""
    say("import underlap")
    bare, loaded = [], []
    for _ in range(repetitions):
        bare.append(measure([sys.executable, "-c", "pass"], str.strip).cpu_s)
        loaded.append(measure([sys.executable, "-c", "import underlap"], str.strip).cpu_s)
    return statistics.median(loaded) - statistics.median(bare)


def measure(command: list[str], answer: Callable[[str], str | None]) -> page.Run:
    with tempfile.TemporaryDirectory() as scratch:
        cost = Path(scratch) / "cost.json"
        done = subprocess.run(
            [sys.executable, "-m", "bench.measure", str(cost), *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not cost.exists():
            sys.exit(f"could not run {shlex.join(command)}:\n{done.stderr}")
        spent = json.loads(cost.read_text())
    return page.Run(
        **spent,
        answer=answer(done.stdout) if spent["code"] == 0 else None,
        complaints=tuple(complaints(done.stderr, spent["code"])),
    )


def complaints(stderr: str, code: int) -> list[str]:
    """The warnings, and of a failure the last line, where an exception is named; folders cut from the paths in them."""
    lines = [re.sub(r"/\S*/", "", line).strip() for line in stderr.splitlines() if line.strip()]
    warnings = [line for line in lines if "warning" in line.lower()]
    return list(dict.fromkeys(warnings if code == 0 else [*warnings, *lines[-1:]]))


def underlap_answer(stdout: str) -> str | None:
    try:
        ranks = json.loads(stdout)["ranks"]
    except (ValueError, KeyError):
        return None
    hidden, communication = (sum(rank[key] for rank in ranks) for key in ("hidden_ns", "communication_ns"))
    return f"{100 * hidden / communication:.2f} %" if communication else None


def hta_answer(stdout: str) -> str | None:
    lines = [line for line in stdout.splitlines() if line.startswith("hidden percent: ")]
    return f"{float(lines[-1].removeprefix('hidden percent: ')):.2f} %" if lines else None


ANSWERS: dict[str, Callable[[str], str | None]] = {
    "read only": lambda _: None,
    "underlap": underlap_answer,
    "HTA": hta_answer,
}


def environment(options: argparse.Namespace) -> dict[str, str]:
    command = re.sub(r"/\S*/", "", options.underlap).replace("{file}", "FILE")
    return {
        "underlap": f"`{command}`, {versions(Path(sys.executable), 'underlap', 'msgspec', 'numpy', 'isal')}",
        "HTA": f"`bench/hta_overlap.py FILE`, {versions(options.hta_python, 'HolisticTraceAnalysis', 'pandas', 'numpy')}",
        "read only": "`bench/floor.py FILE`, chunks of 4 MiB, inflated by isal",
    }


def versions(python: Path, *packages: str) -> str:
    code = (
        "import importlib.metadata as m, platform, sys\n"
        "print('Python', platform.python_version(), *(f'{p} {m.version(p)}' for p in sys.argv[1:]), sep='\\n')"
    )
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    language, version, *rest = done.stdout.splitlines()
    return ", ".join([f"{language} {version}", *rest])


def fill(command: list[str], file: Path) -> list[str]:
    return [word.replace("{file}", str(file)) for word in command]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
