"""Every rule holds where its own example says so, and only there; and says where it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lint.inputs import findings, limits, lint
from underlap.lint import catalog
from underlap.lint.rule import Rule
from underlap.lint.rules import RULES

BY_ID = {rule.id: rule for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=BY_ID)
def test_a_rule_holds_in_its_example(rule: Rule, tmp_path: Path) -> None:
    report = lint(tmp_path, rule.fires)

    assert rule.id in (limits(report) if rule.limit else findings(report))
    assert report.found is not rule.limit or bool(report.findings)


@pytest.mark.parametrize("rule", RULES, ids=BY_ID)
def test_a_rule_is_silent_in_its_counterexample(rule: Rule, tmp_path: Path) -> None:
    report = lint(tmp_path, rule.silent)

    assert findings(report) == []
    assert rule.id not in limits(report)
    assert rule.id not in [row.rule for row in report.undecided]


def test_no_two_rules_have_the_same_name() -> None:
    assert len(BY_ID) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=BY_ID)
def test_a_rule_has_a_public_source_and_says_what_to_change_at_what_price(rule: Rule) -> None:
    assert rule.sources
    assert all(re.fullmatch(r"https://[\w.-]+/\S+", source) for source in rule.sources)
    assert all((rule.says, rule.reason, rule.change, rule.price, rule.holds_for))


@pytest.mark.parametrize("rule", RULES, ids=BY_ID)
def test_a_rule_is_about_settings_that_the_catalog_has(rule: Rule) -> None:
    names = {known.name for known in catalog.SETTINGS} | set(catalog.ENVIRONMENT)

    assert set(rule.about) <= names


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.explains], ids=lambda rule: rule.id)
def test_a_rule_explains_only_causes_that_a_trace_can_show(rule: Rule) -> None:
    from underlap.analyze.verdicts import ADVICE

    assert rule.explains is not None
    assert set(rule.explains.causes) <= set(ADVICE)
