"""docs/verdicts.md says of each cause what the product says."""

from __future__ import annotations

from pathlib import Path

import pytest

from underlap.analyze.causes import CAUSES
from underlap.analyze.idle import IDLE_CAUSES
from underlap.analyze.verdicts import ADVICE

PAGE = (Path(__file__).parents[1] / "docs" / "verdicts.md").read_text(encoding="utf-8")
IDLE = PAGE.partition("## Why devices are idle")[2].partition("\n## ")[0]


def section(cause: str) -> str:
    """Its text on one line."""
    return " ".join(PAGE.partition(f"\n### {cause}\n")[2].partition("\n##")[0].split())


@pytest.mark.parametrize("cause", ADVICE)
def test_a_cause_is_explained_in_the_words_of_its_advice(cause: str) -> None:
    advice = ADVICE[cause]

    assert advice.means in section(cause)
    assert f"Would change it: {advice.would_change}. Price: {advice.price}." in section(cause)


def test_causes_are_explained_in_the_order_of_their_list() -> None:
    headings = [line.removeprefix("### ") for line in PAGE.splitlines() if line.startswith("### ")]

    assert headings == [cause for cause in CAUSES if cause in ADVICE]


def test_every_cause_of_idle_time_is_explained_with_what_it_cannot_see() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in IDLE.splitlines() if line.startswith("| `")]

    assert [row[0].strip("`") for row in rows] == list(IDLE_CAUSES)
    assert all(len(row) == 3 and all(row) for row in rows)
