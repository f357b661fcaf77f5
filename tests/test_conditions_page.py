"""docs/conditions.md is the true result of some run: its figures differ from run to run, its rows and words do not."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import conditions_cases  # noqa: E402  # found by the line above
import conditions_page  # noqa: E402  # found by the line above

PAGE = (ROOT / "docs" / "conditions.md").read_text(encoding="utf-8")
FIGURE = (ROOT / "docs" / "conditions.svg").read_text(encoding="utf-8")


def cells(name: str) -> list[str]:
    """Of the row of a case."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_and_its_figure_are_made_of_what_was_kept() -> None:
    rows = msgspec.json.decode((ROOT / "tools" / "conditions.json").read_bytes(), type=list[conditions_cases.Row])

    assert conditions_page.page(rows) == (PAGE, FIGURE)


@pytest.mark.parametrize("case", conditions_cases.CASES, ids=lambda case: case.name)
def test_every_comparison_has_its_row_and_its_shape_on_the_page(case: conditions_cases.Case) -> None:
    found = cells(case.name)

    assert len(found) == len(conditions_page.COLUMNS)
    assert found[1] == case.links
    priority = "" if case.priority == "communication" else f"; priority {case.priority}"
    assert f"; {case.layout}; {case.workload}; {case.policy}{priority}" in PAGE


@pytest.mark.parametrize("case", conditions_cases.CASES, ids=lambda case: case.name)
def test_what_follows_from_the_figures_of_a_row_stands_in_it(case: conditions_cases.Case) -> None:
    found = dict(zip(conditions_page.COLUMNS, cells(case.name), strict=True))
    compute, slower, communication, taken = (float(found[name]) for name in ("compute", "slower rank", "communication", "taken"))
    above = float(re.match(r"[+-][\d.]+", found["above %"])[0])  # type: ignore[index]  # it has one

    assert float(found["ratio"]) == pytest.approx(compute / communication, rel=0.1)
    assert slower >= compute
    assert float(found["bound"]) == pytest.approx(max(slower + taken, communication), abs=2)
    assert float(found["policy"]) / float(found["bound"]) - 1 == pytest.approx(above / 100, abs=0.03)


def test_the_figure_has_a_point_for_each_row_of_the_map_and_says_what_it_shows() -> None:
    root = ElementTree.fromstring(FIGURE)
    of_map = [case for case in conditions_cases.CASES if case.section == "map"]
    named = root.get("aria-label", "")

    assert f"![{named}](conditions.svg)" in PAGE
    assert named.count(": 0") + named.count(": 1") >= len(of_map)
    assert len(re.findall(r'<circle [^>]*r="5"', FIGURE)) > len(of_map)
