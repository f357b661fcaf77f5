"""docs/promises.md is the true result of some run: its figures differ from run to run, its rows do not."""

from __future__ import annotations

import re
from pathlib import Path

from tests.real import scenario_names
from tests.real.outcome import EXPECTED, HEAD

PAGE = (Path(__file__).parents[1] / "docs" / "promises.md").read_text(encoding="utf-8")


def test_every_scenario_has_its_row_and_its_description_on_the_page() -> None:
    rows = re.findall(rf"^\| (\w+) \|(?: [^|]+\|){{{len(HEAD) - 1}}}$", PAGE, re.MULTILINE)

    assert rows[1:] == list(EXPECTED) == list(scenario_names.described())
    assert all(f"* {name}: {text}" in PAGE for name, text in scenario_names.described().items())
