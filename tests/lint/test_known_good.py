"""A false alarm is worse than a miss: public configurations that work get no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lint.inputs import findings, lint
from tests.lint.known_good import KNOWN_GOOD, NOT_SO_GOOD


def test_there_are_at_least_fifteen_public_configurations() -> None:
    assert len(KNOWN_GOOD) >= 15
    assert all(source.startswith("https://") for source, _ in KNOWN_GOOD.values())


@pytest.mark.parametrize("name", KNOWN_GOOD)
def test_a_public_configuration_that_works_gets_no_finding(name: str, tmp_path: Path) -> None:
    _, files = KNOWN_GOOD[name]
    report = lint(tmp_path, files)

    assert findings(report) == []
    assert not report.found


@pytest.mark.parametrize("name", KNOWN_GOOD)
def test_what_was_read_of_a_public_configuration_is_not_empty(name: str, tmp_path: Path) -> None:
    _, files = KNOWN_GOOD[name]
    report = lint(tmp_path, files)

    assert all(job.settings for job in report.jobs)
    assert all(job.frameworks for job in report.jobs)


@pytest.mark.parametrize("name", NOT_SO_GOOD)
def test_a_public_example_with_the_conflict_of_an_issue_gets_that_finding(name: str, tmp_path: Path) -> None:
    _, files, expected = NOT_SO_GOOD[name]

    assert findings(lint(tmp_path, files)) == [expected]
