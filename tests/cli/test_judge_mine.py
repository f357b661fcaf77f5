"""`underlap judge CLAIM --mine FILE`: exit codes, the screen, JSON, and one line for whatever is wrong with the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.test_judge import refused, run
from underlap.judgement import Judgement

CLAIM = """\
statement: two halves of a batch make prefill of a tiny model 1.25 times as fast
metric: end_to_end_speedup
value: 1.25 x
axis: tp
collective: all_reduce
workload: {model: tiny-dense, phase: prefill, batch: 64, sequence: 1024, precision: bf16}
hardware: {gpu: dgx-h100, count: 2, interconnect: NVLink}
settings: {layout: tp=2, overlap: tp=split_batch}
source: {title: our own notes}
"""
GOOD = {"model": "tiny-dense", "cluster": "dgx-h100", "layout": "tp=2", "workload": "{kind: prefill, batch: 64, seq: 1024}"}


def text(**changes: str | None) -> str:
    return "".join(f"{key}: {value}\n" for key, value in (GOOD | changes).items() if value is not None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "claim.yaml").write_text(CLAIM)
    (tmp_path / "mine.yaml").write_text(text())
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "code", "first"),
    [
        ({}, 0, "CARRIES OVER (SIMULATED): "),
        ({"workload": "prefill,batch=1,seq=1024"}, 1, "DOES NOT CARRY OVER (SIMULATED): "),
        ({"workload": "{kind: prefill, batch: null, seq: 1024}"}, 3, "NOT DECIDABLE (SIMULATED): "),
    ],
)
def test_the_exit_code_is_whether_it_carries_over(folder: Path, changes: dict[str, str], code: int, first: str) -> None:
    (folder / "mine.yaml").write_text(text(**changes))
    done = run("judge", "claim.yaml", "--mine", "mine.yaml")

    assert (done.exit_code, done.stdout[: len(first)]) == (code, first)
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    for label in ("claimed:", "claim, simulated:", "mine, simulated:", "error of the model:", "this alone", "does not support:"):
        assert label in done.stdout


def test_the_json_holds_what_the_screen_shows(folder: Path) -> None:
    done = run("judge", "claim.yaml", "--mine", "mine.yaml", "--json", "-")
    judgement = msgspec.json.decode(done.stdout, type=Judgement)

    assert judgement.carry is not None
    assert judgement.carry.outcome == "carries over"
    assert judgement.carry.provenance == "simulated"
    assert len(judgement.answers) == 4


def test_a_claim_that_cannot_be_mapped_leaves_with_3_and_the_field(folder: Path) -> None:
    done = run("judge", "domino-up-to-1p3", "--mine", "mine.yaml")

    assert done.exit_code == 3
    assert "missing: workload.model 'GPT-3 and Llama-2 families' has no preset" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "at $: expected a mapping with model"),
        ("[]", "at $: expected a mapping"),
        ("just a sentence", "at $: expected a mapping"),
        (text(model=None), "at $.model: missing"),
        (text(workload=None), "at $.workload: missing"),
        (text() + "modle: x\n", "at $: unknown field 'modle': did you mean 'model'?"),
        (text() + "1: x\n", "at $: unknown field 1"),
        (text() + "model: x\n", "'model' is given twice"),
        (text(model="tiny-dens"), "at $.model: model: no preset 'tiny-dens': did you mean 'tiny-dense'?"),
        (text(model="{name: x}"), "at $.model"),
        (text(model="[1]"), "at $.model"),
        (text(cluster="dgx-h1000"), "at $.cluster: cluster: no preset"),
        (text(cluster="{from: dgx-h100, gpus: 16}"), "at $.layout: "),
        (text(cluster="{from: dgx-h100, scale_up: {bandwidth: fast}}"), "at $.cluster.scale_up.bandwidth"),
        (text(layout="tp=two"), "at $.layout: layout: tp=two"),
        (text(layout="{tp: 2, pq: 1}"), "at $.layout: unknown field 'pq'"),
        (text(layout="tp=3"), "at $.layout: layout: tp=3"),
        (text(workload="{kind: prefil, batch: 1, seq: 2}"), "at $.workload.kind: unknown value 'prefil'"),
        (text(workload="{kind: null, batch: 1, seq: 2}"), "at $.workload"),
        (text(workload="{kind: prefill, batch: 1}"), "at $.workload: the field 'seq' is missing"),
        (text(workload="{kind: prefill, batch: one, seq: 2}"), "at $.workload.batch"),
        (text(workload="{kind: prefill, batch: 1, seq: 2, precision: fp4}"), "at $.workload.precision: "),
        (text(workload="{kind: prefill, batch: 1, seq: 2, imbalance: .nan}"), "at $.workload"),
        (text(workload="{kind: prefill, batch: 1, seq: 1" + "0" * 30 + "}"), "at $.workload"),
        (text(workload="{kind: prefill, batch: null, seq: 2, mbs: -1}"), "at $.workload"),
        (text(layout="dp=2", workload="{kind: prefill, batch: 3, seq: null}"), "at $.workload: "),
        (text(layout="dp=2", workload="prefill,batch=3,seq=8"), "at $.workload: "),
        (text() + "overlap: tp=split\n", "at $.overlap: policy: tp=split"),
        (text() + "overlap: {tp: [1]}\n", "at $.overlap.tp"),
        (text() + "overlap: {dp: ['bucket:25MB']}\n", "at $.overlap: policy: dp=bucket:25MB"),
        ("model: &a x\ncluster: *a\n", "anchors and aliases are not read"),
        ("model: !!python/object:os.system x\n", "tags are not read"),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper than 40 levels"),
        ("model: \x00", "not YAML"),
    ],
)
def test_every_mistake_of_a_deployment_is_one_line_with_its_path(folder: Path, content: str, said: str) -> None:
    (folder / "mine.yaml").write_text(content)
    line = refused("judge", "claim.yaml", "--mine", "mine.yaml")

    assert "mine.yaml" in line
    assert said in line


def test_a_file_that_is_no_text_is_one_line(folder: Path) -> None:
    (folder / "mine.yaml").write_bytes(b"\xff\xfe\x00")

    assert "not UTF-8" in refused("judge", "claim.yaml", "--mine", "mine.yaml")
    assert "does not exist" in refused("judge", "claim.yaml", "--mine", "nowhere.yaml")


def test_mine_is_not_mixed_with_reports_or_with_a_comparison(folder: Path) -> None:
    assert "leave out --compare and --report" in refused("judge", "claim.yaml", "claim.yaml", "--compare", "--mine", "mine.yaml")
    assert "leave out --compare and --report" in refused("judge", "claim.yaml", "--report", "mine.yaml", "--mine", "mine.yaml")


def test_the_json_never_replaces_the_deployment(folder: Path) -> None:
    before = (folder / "mine.yaml").read_bytes()
    refused("judge", "claim.yaml", "--mine", "mine.yaml", "--json", "mine.yaml", "--force")

    assert (folder / "mine.yaml").read_bytes() == before
