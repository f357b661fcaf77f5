"""The catalog against the records that it was written from, field by field, and the ways to find a claim in it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from underlap.claim import EFFECTS, METRICS, UNITS, Claim, Value, listed, numbers
from underlap.claim_file import parse
from underlap.errors import InputError, OptionError
from underlap.flows.claims import by_id, catalog, find, load, to_json

SHARED = Path(__file__).parents[2].parent / "shared" / "claims"
RECORDS: dict[str, dict[str, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(SHARED.glob("*.yaml"))}
CLAIMS = {claim.id: claim for claim in catalog()}
EFFECT_WORDS = {
    "hidden": r"hid(e|es|den|ing)|overlap",
    "removed": r"remov|fewer bytes",
    "shortened": r"faster|shorten|latency|peak performance",
    "shifted": r"believed|not effective|despite",
}


def american(value: Any) -> Any:
    """The record's spelling in the project's."""
    if isinstance(value, list):
        return [american(entry) for entry in value]
    if not isinstance(value, str):
        return value
    value = re.sub(r"(?i)(optim|summar|quant|util)is(?=e|ing|at)", r"\1iz", value)
    return value.replace("realise", "realize")


def words(text: str) -> str:
    """Letters only, so that all-reduce, AllReduce and all_reduce are one."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_the_catalog_has_a_claim_for_every_record_and_others_say_where_they_are_from() -> None:
    assert len(RECORDS) >= 100
    assert set(RECORDS) <= set(CLAIMS)
    assert list(CLAIMS) == sorted(CLAIMS)
    assert [name for name in set(CLAIMS) - set(RECORDS) if not (CLAIMS[name].source.where and CLAIMS[name].source.checked)] == []


@pytest.mark.parametrize("name", RECORDS)
def test_fields_that_carry_over_are_those_of_the_record(name: str) -> None:
    claim, record = CLAIMS[name], RECORDS[name]
    workload, hardware, source = record["workload"], record["hardware"], record["source"]

    assert claim.baseline == american(record["baseline"])
    assert (claim.workload.model, claim.workload.batch) == (american(workload["model"]), workload["batch"])
    assert (claim.workload.sequence, claim.workload.precision) == (workload["seq"], workload["precision"])
    assert (claim.bytes.reported, claim.bytes.unchanged) == (record["bytes"]["reported"], record["bytes"]["unchanged"])
    included = record["contention_included"]
    assert claim.contention_included is (None if included == "unknown" else included)
    found = claim.hardware
    assert (found.gpu, found.count) == (hardware["gpu"], hardware["count"])
    assert (found.interconnect, found.topology) == (hardware["interconnect"], hardware["topology"])
    assert (claim.software.name, claim.software.version) == (record["software"]["name"], record["software"]["version"])
    assert (claim.source.title, claim.source.year) == (source["title"], source["year"])
    assert (claim.source.where, claim.source.checked) == (american(source["where"]), record["checked"])
    assert claim.unknowns == american(record["unknown"])
    assert claim.note == american(record.get("note"))


@pytest.mark.parametrize("name", RECORDS)
def test_value_unit_and_metric_are_those_of_the_record(name: str) -> None:
    claim, record = CLAIMS[name], RECORDS[name]
    value = record["value"]

    assert numbers(claim.value) == ([] if value is None else value if isinstance(value, list) else [value])
    if isinstance(value, list):
        assert isinstance(claim.value, Value)
        assert (claim.value.points is None) == (len(value) == 2)
    assert (claim.as_stated.unit or claim.unit) == american(record["unit"])
    assert claim.as_stated.metric == american(record["metric"])
    if claim.unit is not None:
        assert record["unit"].startswith((claim.unit.removesuffix("s"), "ratio"))
    if claim.metric is not None and claim.unit is not None:
        assert UNITS[claim.unit] in METRICS[claim.metric].measures


@pytest.mark.parametrize("name", RECORDS)
def test_an_upper_end_is_kept_as_one(name: str) -> None:
    claim, record = CLAIMS[name], RECORDS[name]
    said = f"{record['unit']} {record['metric']} {record['statement']}"
    best = isinstance(claim.value, Value) and claim.value.up_to is not None

    if best:
        assert re.search(r"upper end|up to", said)
    elif re.search(r"\(upper end", said):
        pytest.fail("the record gives an upper end")


@pytest.mark.parametrize("name", RECORDS)
def test_axis_collective_and_phase_say_what_the_record_says(name: str) -> None:
    claim, record = CLAIMS[name], RECORDS[name]

    assert (claim.axis is None) == (record["axis"] is None)
    for axis in listed(claim.axis):
        assert axis in re.findall("[a-z]+", record["axis"].lower())
    assert claim.as_stated.axis in (None, record["axis"])
    if record["collective"] is None:
        assert claim.collective is None
    for collective in listed(claim.collective):
        known = words(collective.replace("send_recv", "p2p") if "P2P" in record["collective"] else collective)
        assert known in words(record["collective"]) or "allscatter" in words(record["collective"])
    assert claim.as_stated.collective in (None, record["collective"])
    phase = record["workload"]["phase"]
    assert (claim.workload.phase is None) == (phase is None)
    for entry in listed(claim.workload.phase):
        assert words(entry) in words(phase)


@pytest.mark.parametrize("name", RECORDS)
def test_what_the_record_does_not_say_in_a_field_stands_elsewhere_in_it(name: str) -> None:
    claim, record = CLAIMS[name], RECORDS[name]
    text = yaml.safe_dump(record).lower()
    rows = claim.workload.rows

    for entry in claim.effect:
        assert entry in EFFECTS
        assert re.search(EFFECT_WORDS[entry], text)
    for number in rows if isinstance(rows, list) else [] if rows is None else [rows]:
        assert str(number) in text
    for setting, value in claim.settings.items():
        assert f"{setting}={value}".lower() in text
    assert claim.slack is None


@pytest.mark.parametrize("name", RECORDS)
def test_a_statement_is_in_other_words_with_the_same_figures(name: str) -> None:
    claim, record = CLAIMS[name], RECORDS[name]
    text = yaml.safe_dump(record, width=10**6).replace(",", "")
    figures = re.findall(r"\d+(?:\.\d+)?", claim.statement.replace(",", ""))

    known = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    assert [number for number in figures if float(number) not in known] == []
    assert difflib.SequenceMatcher(None, claim.statement.lower(), record["statement"].lower()).ratio() < 0.8


def test_filters_narrow_the_catalog_and_work_together() -> None:
    assert find() == list(catalog())
    decode = find(axis="EP", phase="decode", framework="sglang", hardware="h100")
    assert [claim.id for claim in decode] == ["sglang-tbo-decode-256", "sglang-tbo-decode-32", "sglang-tbo-decode-simulated-mtp"]
    assert [claim.id for claim in find(words=("Domino", "99"))] == ["nanotron-domino-99"]
    assert find(words=("no such word",)) == []


def test_an_unknown_phase_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(OptionError, match=r"--phase decod: no such phase; did you mean decode\?"):
        find(phase="decod")


def test_a_wrong_id_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither a file nor a claim of the catalog; did you mean flux-train-1p24\?"):
        load("flux-train-1p2")
    with pytest.raises(
        InputError, match=r"missing.yaml: cannot be read \(No such file or directory\): expected a claim in YAML, or the id"
    ):
        load(tmp_path / "missing.yaml")


def test_a_file_without_an_id_is_called_as_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("statement: s\nsource: {title: t}\n")

    assert load(tmp_path / "mine.yaml").id == "mine"


@pytest.mark.parametrize("claim", catalog()[::7], ids=lambda claim: claim.id)
def test_a_claim_as_json_is_a_claim_file_again(claim: Claim) -> None:
    assert parse(to_json(claim).decode(), "again.json") == claim


def test_claims_are_found_by_their_id() -> None:
    assert by_id("flux-train-1p24").software.name == "FLUX"
