"""Small configurations written to a folder, and the lint of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import underlap
from underlap.lint_report import LintReport


def lint(folder: Path, files: Mapping[str, str], **options: Any) -> LintReport:
    """The lint of files by name; the one called `environment` is a dump. An environment that is not given is not looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in files.items():
        path = folder / name
        path.write_text(content)
        if name == "environment":
            options["env"] = path
        else:
            paths.append(path)
    return underlap.lint(*paths, **options)


def findings(report: LintReport) -> list[str]:
    """The rules that hold."""
    return [finding.rule for finding in report.findings]


def limits(report: LintReport) -> list[str]:
    return [limit.rule for limit in report.limits]
