"""docs/verdicts.md says of each cause what the product says."""

from __future__ import annotations

from pathlib import Path

import pytest

from underlap.analyze.causes import CAUSES
from underlap.analyze.verdicts import ADVICE

PAGE = (Path(__file__).parents[1] / "docs" / "verdicts.md").read_text(encoding="utf-8")
NEVER = PAGE.partition("## Named but never given yet")[2].partition("\n## ")[0]


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


def test_causes_that_are_never_given_are_named_with_a_reason() -> None:
    assert [line.split("|")[1].strip() for line in NEVER.splitlines() if line.startswith("| ")][1:] == [
        cause for cause in CAUSES if cause not in ADVICE
    ]
