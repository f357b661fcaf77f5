"""docs/accuracy.md holds what real runs over a shaped link gave beside their predictions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import run_accuracy  # noqa: E402  # found by the line above

from underlap import inputs  # noqa: E402  # found by the line above

PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
ROWS = run_accuracy.kept()


def test_the_page_holds_the_section_of_real_runs() -> None:
    assert "\n".join(run_accuracy.section()) in PAGE


@pytest.mark.parametrize("number", range(len(run_accuracy.CASES)), ids=lambda number: run_accuracy.CASES[number].name)
def test_what_stands_beside_a_measurement_is_what_the_committed_cluster_predicts_now(number: int) -> None:
    # After a change of the simulator: python tools/run_accuracy.py --predict, then make accuracy.
    cluster = inputs.cluster(str(run_accuracy.CLUSTER))
    again = run_accuracy.predicted_again(run_accuracy.CASES[number], ROWS[number], cluster)

    assert again.foretold.ab is not None
    assert again.foretold.ab.sign_agrees is not False
    for then, now in zip(ROWS[number].foretold.variants, again.foretold.variants, strict=True):
        assert now.step.predicted_ns == pytest.approx(then.step.predicted_ns, rel=1e-3)
        assert now.communication.predicted_ns == pytest.approx(then.communication.predicted_ns, rel=1e-3)
        assert (now.step.measured_ns, now.step.low_ns, now.step.high_ns) == (
            then.step.measured_ns,
            then.step.low_ns,
            then.step.high_ns,
        )


def test_every_established_sign_was_predicted() -> None:
    wrong = [one.name for one in ROWS if one.foretold.ab is not None and one.foretold.ab.sign_agrees is False]

    assert wrong == []
