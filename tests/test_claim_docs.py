"""docs/claims.md names every metric, unit and field, with what settles it in the words of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.judge.reports import Part, claim, contention, report
from underlap.claim import EFFECTS, METRICS, PHASES, UNITS, Claim, Hardware, Software, Value, Workload
from underlap.claim_file import parse
from underlap.flows.claims import catalog
from underlap.judge.questions import MANY_ROWS
from underlap.judge.settlement import SETTLED, settle

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:4] for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 4]
SETTLED_ON = {(name, of.strip(" `")): how.strip() for names, of, how in ROWS for name in re.findall("`([a-z_]+)`", names)}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_documented_with_what_settles_it(name: str) -> None:
    found = {of: how for (metric, of), how in SETTLED_ON.items() if metric == name}

    assert found
    nothing = all(how.startswith("nothing") for how in found.values())
    assert nothing == (name not in SETTLED or name == "end_to_end_slowdown")
    if not nothing:
        documented = {word for of in found for word in re.findall("[a-z_]+", of)}
        assert documented == set(METRICS[name].of)


@pytest.mark.parametrize("name", [name for name in SETTLED if name != "end_to_end_slowdown"])
def test_the_documented_formula_names_the_fields_that_the_check_rests_on(name: str) -> None:
    unit = {"percent": "%", "time": "ms", "bytes": "B", "bandwidth": "GB/s", "ratio": "x"}[METRICS[name].measures[-1]]
    part = Part(hidden=4, exposed=6, wait=1, payload=10, busbw=1, busbw_kernel=1)
    of = METRICS[name].of
    for denominator in of or (None,):
        text = f"metric: {name}\naxis: tp\nvalue: {{at_least: 0.1 {unit}}}\n" + (f"of: {denominator}\n" if denominator else "")
        text = text.replace("axis: tp\n", "") if name == "compute_stretch" else text
        run = report(part, contention=contention())
        (check,) = settle(claim(text), run, run).checks
        how = next(how for (metric, words), how in SETTLED_ON.items() if metric == name and (denominator or "") in words)
        for field in check.fields:
            words = re.findall(r"[a-z]+_[a-z_]+", field.partition("].")[2] or field)
            assert [word for word in words if word not in how and word not in ("steps_used", "exposed_share_ns")] == [], how


def test_units_forms_effects_and_fields_are_all_named() -> None:
    for unit in UNITS:
        assert re.search(rf"(?<![A-Za-z/]){re.escape(unit)}(?![A-Za-z/])", PAGE), unit
    for kind in (Claim, Value, Workload, Hardware, Software):
        for field in kind.__struct_fields__:
            assert re.search(rf"\b{field}\b", PAGE), field
    for word in EFFECTS:
        assert word in PAGE
    assert f"{MANY_ROWS} rows" in PAGE
    assert f"{len(catalog())} claims" in PAGE
    assert {"train", "prefill", "decode"} <= set(PHASES)


def test_the_example_of_a_claim_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    example = parse((ROOT / "examples/claims/ddp_hidden.yaml").read_text(), "example")

    assert parse(text, "docs").statement == example.statement
