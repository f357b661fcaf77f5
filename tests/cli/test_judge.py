"""`underlap judge` and `underlap claims` at the command line: exit codes, JSON, one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.judge.reports import Part, contention, report
from tests.render.hand_written import HOSTILE
from underlap.claim import METRICS
from underlap.cli import main
from underlap.flows.claims import catalog
from underlap.judgement import Comparison, Judgement
from underlap.report import to_json

GATE = """\
statement: TP communication is at least 80 % hidden, and the bytes stay the same
metric: hidden_share
of: transfer
value: {at_least: 80 %}
axis: tp
bytes: {unchanged: true}
source: {title: nightly job}
"""
GOOD, BAD = Part(hidden=9, exposed=1, wait=0, payload=8), Part(hidden=1, exposed=9, wait=0, payload=8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gate.yaml").write_text(GATE)
    (tmp_path / "good.json").write_bytes(to_json(report(GOOD, contention=contention())))
    (tmp_path / "bad.json").write_bytes(to_json(report(BAD)))
    return tmp_path


def run(*words: str):
    done = CliRunner().invoke(main, words, prog_name="underlap")
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def refused(*words: str) -> str:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    return line


@pytest.mark.parametrize(
    ("words", "code", "first"),
    [
        (["--report", "good.json", "--baseline-report", "bad.json"], 0, "HELD: 6 of 6 steps, 2 of 2 ranks"),
        (["--report", "bad.json", "--baseline-report", "good.json"], 1, "REFUTED: 6 of 6 steps, 2 of 2 ranks"),
        (["--report", "good.json"], 3, "NOT DECIDABLE: 6 of 6 steps, 2 of 2 ranks"),
    ],
)
def test_the_exit_code_is_the_outcome(folder: Path, words: list[str], code: int, first: str) -> None:
    done = run("judge", "gate.yaml", *words)

    assert (done.exit_code, done.stdout.splitlines()[0]) == (code, first)


def test_without_a_report_a_claim_is_explained_and_the_code_is_0(folder: Path) -> None:
    done = run("judge", "gate.yaml")

    assert done.exit_code == 0
    assert [line[:3] for line in done.stdout.splitlines() if line.startswith("(")] == ["(a)", "(b)", "(c)", "(d)"]
    assert "does not support:" in done.stdout


@pytest.mark.parametrize("claim", catalog(), ids=lambda claim: claim.id)
def test_every_claim_of_the_catalog_is_judged_and_shown_on_100_columns(claim) -> None:
    for words in (("judge", claim.id), ("claims", "show", claim.id)):
        done = run(*words)
        assert done.exit_code == 0
        assert max(map(len, done.stdout.splitlines())) <= 100
        assert done.stdout.isascii()


def test_the_json_of_a_judgement_has_its_schema_and_comes_back(folder: Path) -> None:
    done = run("judge", "gate.yaml", "--report", "good.json", "--json", "-")
    judgement = msgspec.json.decode(done.stdout, type=Judgement)

    assert done.exit_code == 3
    assert judgement.schema == "underlap.judgement/1"
    assert judgement.settlement is not None
    assert judgement.settlement.outcome == "not decidable"
    assert [check.outcome for check in judgement.settlement.checks] == ["held", "not decidable"]
    assert [answer.question for answer in judgement.answers] == ["workload", "axis", "bytes", "contention"]


def test_json_in_a_file_stands_beside_the_screen(folder: Path) -> None:
    done = run("judge", "gate.yaml", "--json", "out.json")

    assert done.stdout.startswith("claim: TP communication is at least 80 % hidden")
    assert done.stderr == "Wrote out.json\n"
    assert json.loads(Path("out.json").read_text())["claim_id"] == "gate"
    assert "exists" in refused("judge", "gate.yaml", "--json", "out.json")
    assert run("judge", "gate.yaml", "--json", "out.json", "--force").exit_code == 0
    assert "is an input" in refused("judge", "gate.yaml", "--json", "gate.yaml", "--force")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("pytorch-asynctp-e2e-70b", "pytorch-asynctp-forward-70b", 1),
        ("flux-train-1p24", "flux-train-1p24", 3),
    ],
)
def test_a_comparison_has_a_code_a_table_and_a_schema(first: str, second: str, code: int) -> None:
    done = run("judge", "--compare", first, second)
    comparison = msgspec.json.decode(run("judge", "--compare", first, second, "--json", "-").stdout, type=Comparison)

    assert done.exit_code == code
    assert comparison.schema == "underlap.comparison/1"
    for condition in comparison.conditions:
        assert condition.name in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_claim_is_comparable_with_itself_where_it_states_everything(folder: Path) -> None:
    full = GATE + (
        "baseline: b\nworkload: {model: m, phase: train, batch: 1, sequence: 2, precision: bf16}\ncollective: all_reduce\n"
        "contention_included: true\nhardware: {gpu: H100, count: 2, interconnect: NVLink, topology: node}\n"
    )
    Path("full.yaml").write_text(full)

    assert run("judge", "--compare", "full.yaml", "full.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gate.yaml", "gate.yaml"], "Got 2 claims: pass one, or two with --compare."),
        (["gate.yaml", "--compare"], "--compare takes two claims, got 1."),
        (["gate.yaml", "gate.yaml", "--compare", "--report", "good.json"], "--compare is about two claims, and takes no report."),
        (["gate.yaml", "--baseline-report", "good.json"], "--baseline-report is compared with --report: pass both."),
        (["nothing.yaml"], "nothing.yaml: cannot be read (No such file or directory): expected a claim in YAML"),
        (["flux-train"], "did you mean flux-train-1p24?"),
        (["."], "is a folder: expected a claim in YAML"),
        (["gate.yaml", "--report", "gate.yaml"], "no Report: JSON is malformed"),
        (["good.json"], "a claim needs its source"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_2(folder: Path, words: list[str], message: str) -> None:
    assert message in refused("judge", *words)


REPORTS = {
    "empty": b"",
    "no object": b"[]",
    "other json": b'{"traceEvents": []}',
    "cut": to_json(report(GOOD))[:500],
    "deep": b"[" * 100_000,
    "no text": b"\xff\xfe\x00",
    "wrong type": to_json(report(GOOD)).replace(b'"hidden_ns": 9000000', b'"hidden_ns": "9"'),
    "not a number": to_json(report(GOOD)).replace(b'"hidden_ns": 9000000', b'"hidden_ns": NaN'),
    "no schema": to_json(report(GOOD)).replace(b'"schema": "underlap.report/1",', b""),
    "other schema": to_json(report(GOOD)).replace(b"underlap.report/1", b"underlap.report/9"),
    "does not add up": to_json(report(GOOD)).replace(b'"hidden_ns": 9000000', b'"hidden_ns": 9900000'),
    "negative": to_json(report(GOOD)).replace(b'"hidden_ns": 9000000', b'"hidden_ns": -9000000'),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_an_unusable_report_is_one_line_and_code_2(folder: Path, kind: str) -> None:
    Path("odd.json").write_bytes(REPORTS[kind])
    for words in (["--report", "odd.json"], ["--report", "good.json", "--baseline-report", "odd.json"]):
        line = refused("judge", "gate.yaml", *words)
        assert "odd.json: " in line
        assert len(line) < 400


def test_a_report_that_a_later_version_wrote_is_read(folder: Path) -> None:
    known = json.loads(Path("good.json").read_text())
    Path("later.json").write_text(json.dumps({**known, "field_of_tomorrow": 1}))

    assert run("judge", "gate.yaml", "--report", "later.json", "--baseline-report", "bad.json").exit_code == 0


def test_names_from_files_do_not_steer_the_terminal(folder: Path) -> None:
    hostile = json.dumps(HOSTILE)
    Path("evil.yaml").write_text(f"statement: {hostile}\nsource: {{title: {hostile}}}\naxis: {hostile}\nunknowns: [{hostile}]\n")
    for words in (["evil.yaml"], ["evil.yaml", "--report", "good.json"], ["--compare", "evil.yaml", "gate.yaml"]):
        done = run("judge", *words)
        assert done.exit_code in (0, 1, 3)
        assert done.stdout.replace("\n", "").isprintable()
        assert done.stdout.isascii()


def test_a_simulated_report_is_marked_in_the_first_line(folder: Path) -> None:
    Path("simulated.json").write_bytes(to_json(report(GOOD, kind="simulated")))
    done = run("judge", "gate.yaml", "--report", "simulated.json")

    assert done.stdout.startswith("NOT DECIDABLE (SIMULATED): ")
    assert "SIMULATED: this says what the model gives" in done.stdout


def test_claims_are_listed_filtered_searched_and_shown() -> None:
    everything = run("claims", "list").stdout.splitlines()
    assert len(everything) == len(catalog()) + 2
    assert max(map(len, everything)) <= 100
    assert everything[-1] == f"{len(catalog())} of {len(catalog())} claims"
    few = run("claims", "list", "--axis", "ep", "--phase", "decode", "--framework", "sglang", "--hardware", "h20").stdout
    assert few.splitlines()[1].split()[0] == "sglang-sbo-h20-bs32"
    assert run("claims", "search", "two-batch", "amd").stdout.splitlines()[-1] == f"2 of {len(catalog())} claims"
    assert run("claims", "search", "nothing like that").stdout == f"no claim fits; the catalog has {len(catalog())}\n"
    shown = run("claims", "show", "sglang-tbo-decode-32").stdout
    assert "value                 -27 %" in shown
    assert "bytes.unchanged       ?" in shown
    assert "did you mean" in refused("claims", "show", "sglang-tbo-decode-33")


def test_a_claim_shown_as_json_can_be_judged_again(folder: Path) -> None:
    run("claims", "show", "flux-prefill-1p66", "--json", "one.json")
    done = run("judge", "one.json")

    assert done.stdout == run("judge", "flux-prefill-1p66").stdout
    assert len(json.loads(run("claims", "list", "--json", "-").stdout)) == len(catalog())


def test_short_names_of_metrics_fit_the_table() -> None:
    assert all(len(metric.short) <= 8 for metric in METRICS.values())
