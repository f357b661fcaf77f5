"""docs/report.md and docs/judgement.md are what the types say."""

from __future__ import annotations

import runpy
from pathlib import Path

import msgspec
import pytest

from underlap import report

ROOT = Path(__file__).parent.parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "report_docs.py"))


@pytest.mark.parametrize("name", ["report", "judgement"])
def test_the_page_is_up_to_date(name):
    expected = TOOL["page"]((ROOT / "src" / "underlap" / f"{name}.py").read_text(encoding="utf-8"), name)
    # To regenerate: python tools/report_docs.py NAME > docs/NAME.md
    assert (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") == expected


def test_the_page_has_every_field_of_every_record():
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    for record in report.Record.__subclasses__():
        section = page.partition(f"\n## {record.__name__}\n")[2].partition("\n## ")[0]
        assert [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")] == [
            field.name for field in msgspec.structs.fields(record)
        ]


def test_a_bar_in_a_docstring_does_not_break_the_table():
    page = TOOL["page"]('"""Doc."""\nclass A(Record):\n    """Words."""\n    x: list[int] | None\n    """a | b\n    c"""\n')
    assert "| `x` | list of integer or null | a \\| b c |\n" in page
