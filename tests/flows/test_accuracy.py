"""docs/accuracy.md holds what the tools give for simulated steps, and the figures stay within what was reached.

The rows that are simulated again here are those that take seconds; `make accuracy` makes all of them.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TRAINING = runpy.run_path(str(ROOT / "tools" / "training_accuracy.py"))
OVERLAP = runpy.run_path(str(ROOT / "tools" / "overlap_accuracy.py"))
COSTS = runpy.run_path(str(ROOT / "tools" / "cost_accuracy.py"))
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
ERROR = r"([+-][\d.]+)(?: to ([+-][\d.]+))?"


def rows(title: str) -> list[list[str]]:
    """Cells of the tables below a sentence of the page, up to the next sentence."""
    lines = PAGE.partition(title)[2].splitlines()
    found: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found and line.strip():
            break
    return found[2:]


def worst(title: str) -> list[float]:
    """The larger end of the error of each row, without its sign."""
    ends = [re.fullmatch(ERROR, cells[3]) for cells in rows(title)]
    return [max(abs(float(end)) for end in found.groups() if end) for found in ends if found]


TABLE_5, TABLE_1 = "table 5 (A100; full", "table 1 (A100, full recomputation)"


def test_the_costs_on_the_page_are_what_the_models_give() -> None:
    assert COSTS["page"]() in PAGE


def on_the_page(lines: list[str]) -> bool:
    return set(lines[2:]) <= set(PAGE.splitlines())


def test_quick_training_rows_on_the_page_are_what_the_simulator_gives() -> None:
    assert on_the_page(TRAINING["table"](TRAINING["korthikanti"](("22B",)), "s"))
    assert on_the_page(TRAINING["table"](TRAINING["narayanan"](1), "s"))


def test_whole_prefill_steps_on_the_page_are_what_the_simulator_gives() -> None:
    assert on_the_page(TRAINING["table"](OVERLAP["tokenweave"](), "ms"))


@pytest.mark.parametrize(
    ("name", "gains"),
    [
        ("Qwen3-30B-A3B, EP4, GBS 8", lambda: OVERLAP["few_experts_ranks"](8)),
        ("FLUX, 64 rows, H800: efficiency", lambda: OVERLAP["chunked_efficiency"](64)),
        ("DeepSeek-V3 decode, 32 per GPU", lambda: OVERLAP["two_batch_decode"](32)),
    ],
)
def test_quick_gains_on_the_page_are_what_the_simulator_gives(name: str, gains: Any) -> None:
    found = gains()
    shown = next(cells for cells in rows("## Signs of overlap") if cells[0] == name)

    assert shown[2] == f"{min(found):+.1f} to {max(found):+.1f}"


def test_all_rows_of_both_training_tables_are_there_and_within_a_fifth() -> None:
    assert len(worst(TABLE_5)) == 8
    assert max(worst(TABLE_5)) < 7
    assert len(worst(TABLE_1)) == 10
    assert max(worst(TABLE_1)) < 17


def test_rows_that_are_not_reproduced_are_at_most_a_fifth_and_named() -> None:
    middles = {
        cells[0]: sum(float(end) for end in cells[3].split(" to ")) / len(cells[3].split(" to ")) for cells in rows("Others, as")
    }
    missed = [name for name, error in middles.items() if abs(error) > 20]

    assert len(missed) <= (len(worst(TABLE_5)) + len(worst(TABLE_1)) + len(middles)) / 5
    assert all(name.startswith("Llama 3.1") for name in missed)
    assert "These four are not reproduced" in PAGE


def test_training_rows_are_in_the_measured_order() -> None:
    assert "Pairs in the wrong order: none in table 5; none in table 1" in PAGE


def test_the_ratio_of_full_to_selective_recomputation_is_within_five_points() -> None:
    differences = [float(cells[3]) for cells in rows("Full over selective")]

    assert len(differences) == 4
    assert max(abs(points) for points in differences) <= 5


def test_no_sign_of_a_published_gain_or_loss_is_wrong() -> None:
    signs = {cells[0]: cells[3] for cells in rows("## Signs of overlap")}

    assert len(signs) == 15
    assert "wrong" not in signs.values()
    # Even at 64 per GPU is within the range, but not all of it.
    assert [name for name, sign in signs.items() if sign == "undecided"] == ["DeepSeek-V3 decode, 64 per GPU"]


@pytest.mark.parametrize(("low", "high", "sign", "verdict"), [
    (2.0, 9.0, 1, "right"),
    (-2.0, 9.0, 1, "undecided"),
    (-9.0, -2.0, 1, "wrong"),
    (-9.0, -2.0, -1, "right"),
    (-2.0, 2.5, 0, "right"),
    (-2.0, 9.0, 0, "undecided"),
    (4.0, 9.0, 0, "wrong"),
])  # fmt: skip
def test_a_sign_is_right_only_where_it_holds_over_the_whole_range(low: float, high: float, sign: int, verdict: str) -> None:
    assert OVERLAP["Gain"]("a case", "as published", sign, low, high, "all").verdict == verdict
