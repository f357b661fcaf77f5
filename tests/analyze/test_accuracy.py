"""docs/accuracy.md is what the recorded traces give today, and the share of exposed time with a cause does not fall."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "accuracy.py"))
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


def promised() -> dict[str, float | None]:
    """Coverage in percent per trace, as the page has it; None for a dash."""
    section = PAGE.partition("## Coverage")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| \d+ \| [\d.]+ \| ([\d.]+|-) \|", section, re.MULTILINE)
    return {name: None if share == "-" else float(share) for name, share in rows}


def test_the_accuracy_page_is_what_the_traces_give() -> None:
    # To regenerate: make accuracy
    assert PAGE.startswith(TOOL["page"]())


def test_every_recorded_trace_is_on_the_accuracy_page() -> None:
    assert list(promised()) == list(TOOL["RECORDED"])
    files = {path for folder in TOOL["TRACES"].iterdir() if folder.is_dir() for path in folder.rglob("*.json.gz")}
    files |= set(TOOL["TRACES"].rglob("*.sqlite"))
    named = [TOOL["TRACES"] / path for paths in TOOL["RECORDED"].values() for path in paths]

    assert [file.name for file in files if not any(file.is_relative_to(path) for path in named)] == []


@pytest.mark.parametrize("name", promised())
def test_coverage_of_a_recorded_trace_does_not_fall(name: str) -> None:
    share = TOOL["report"](name).coverage
    before = promised()[name]

    assert (share is None) == (before is None)
    assert share is None or before is None or 100 * share >= before - 0.005
