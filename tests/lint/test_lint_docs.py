"""docs/lint.md shows true output, and every rule."""

from __future__ import annotations

import runpy
from pathlib import Path

from underlap.lint.rules import RULES

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_lint_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "lint_docs.py"))["page"]()

    # To regenerate: PYTHONPATH=src python tools/lint_docs.py > docs/lint.md
    assert (ROOT / "docs" / "lint.md").read_text(encoding="utf-8") == page
    assert all(f"| `{rule.id}`" in page for rule in RULES)
