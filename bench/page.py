"""The result of a benchmark as Markdown, and its place in docs/benchmarks.md. Measures nothing."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterator

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One program, once, on one file."""

    code: int
    cpu_s: float
    """User and system time of the program and its children."""
    wall_s: float
    peak_mb: float
    """Of its largest process."""
    answer: str | None
    complaints: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Several programs on one file."""

    name: str
    events: int
    nbytes: int
    runs: dict[str, list[Run]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Height:
    """underlap's peak on one length of the same trace."""

    copies: float
    events: int
    run: Run
    column_bytes: int | None


def render(*, races: list[Race], heights: list[Height], import_s: float, environment: dict[str, str]) -> str:
    return "\n".join(
        [
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs.",
            "",
            *(f"* {program}: {text}" for program, text in environment.items()),
            "",
            *race_table(races),
            "",
            "CPU is user and system time with all children, least to most over the repetitions (their number in parentheses),",
            "which took turns. Ratios are of the least times. Peak is that of the largest process. Hidden share is the answer",
            "that the program gave for the whole trace.",
            *complaint_lines(races),
            "",
            *height_table(heights),
            "",
            f"`import underlap` adds {1000 * import_s:.0f} ms of CPU to a bare interpreter.",
        ]
    )


def race_table(races: list[Race]) -> Iterator[str]:
    yield "| trace | program | CPU s | peak MB | CPU / read only | HTA's CPU / this | hidden share |"
    yield "|---|---|---|---|---|---|---|"
    for race in races:
        title = f"{race.name} ({race.events / 1e6:.2f} M events, {race.nbytes / 1e6:.0f} MB)"
        for program, runs in race.runs.items():
            yield "| " + " | ".join([title, program, *figures(race, runs)]) + " |"
            title = ""


def figures(race: Race, runs: list[Run]) -> list[str]:
    failed = [run for run in runs if run.code != 0]
    if failed:
        return [f"failed with exit code {failed[0].code} ({len(failed)} of {len(runs)})", "", "", "", ""]
    answers = {run.answer or "" for run in runs}
    return [
        span([run.cpu_s for run in runs], ".2f") + f" ({len(runs)})",
        span([run.peak_mb for run in runs], ".0f"),
        ratio(least(runs), least(race.runs["read only"])),
        ratio(least(race.runs["HTA"]), least(runs)),
        " or ".join(sorted(answers)),
    ]


def complaint_lines(races: list[Race]) -> Iterator[str]:
    """What the programs wrote to standard error, once each: warnings, and the end of each failure."""
    seen: set[tuple[str, str]] = set()
    for race in races:
        for program, runs in race.runs.items():
            for run in runs:
                new = [text for text in run.complaints if (program, text) not in seen]
                seen.update((program, text) for text in new)
                yield from (f"* {program} on {race.name} said: `{text[:200].replace('`', '')}`" for text in new)


def height_table(heights: list[Height]) -> Iterator[str]:
    yield "| length of the trace | events | CPU s | peak MB | of it columns MB | the rest MB | columns, bytes per event |"
    yield "|---|---|---|---|---|---|---|"
    for height in heights:
        columns, rest, each = "unknown", "unknown", "unknown"
        if height.column_bytes is not None:
            columns = f"{height.column_bytes / 1e6:.0f}"
            rest = f"{height.run.peak_mb - height.column_bytes / 1e6:.0f}"
            each = f"{height.column_bytes / height.events:.0f}"
        peak = f"{height.run.peak_mb:.0f}" if height.run.code == 0 else f"failed with exit code {height.run.code}"
        yield f"| x{height.copies:g} | {height.events} | {height.run.cpu_s:.2f} | {peak} | {columns} | {rest} | {each} |"


def least(runs: list[Run]) -> float | None:
    times = [run.cpu_s for run in runs if run.code == 0]
    return min(times) if times else None


def ratio(above: float | None, below: float | None) -> str:
    return "unknown" if above is None or not below else f"{above / below:.1f}"


def span(values: list[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low}-{high}"


def insert(page: str, text: str) -> str:
    """The page with the text between the two markers, in place of what stood there."""
    assert page.count(BEGIN) == page.count(END) == 1, f"docs/benchmarks.md needs the markers {BEGIN} and {END}, once each"
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    return f"{before}\n{text}\n{after}"
