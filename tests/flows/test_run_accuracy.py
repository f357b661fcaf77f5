"""docs/accuracy.md holds what real runs over a shaped link gave beside their predictions."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import run_accuracy  # noqa: E402  # found by the line above

from underlap import inputs  # noqa: E402
from underlap.flows import run as flow  # noqa: E402
from underlap.flows.foretell import predict  # noqa: E402

PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
ROWS = msgspec.json.decode(run_accuracy.DATA.read_bytes(), type=list[run_accuracy.Held])


def test_the_page_holds_the_section_of_real_runs() -> None:
    assert "\n".join(run_accuracy.section()) in PAGE


@pytest.mark.parametrize("number", range(len(run_accuracy.CASES)), ids=lambda number: run_accuracy.CASES[number].name)
def test_what_was_predicted_is_what_the_committed_cluster_predicts(number: int) -> None:
    case, held = run_accuracy.CASES[number], ROWS[number]
    asked = case.asked()
    cluster = inputs.cluster(str(run_accuracy.CLUSTER))

    for plan, variant in zip(flow.plans(asked), held.foretold.variants, strict=True):
        found = predict(plan, flow.scenario(asked, cluster))
        assert found.step_ns == pytest.approx(variant.step.predicted_ns, rel=0.02)


def test_every_established_sign_was_predicted() -> None:
    wrong = [one.name for one in ROWS if one.foretold.ab is not None and one.foretold.ab.sign_agrees is False]

    assert wrong == []
