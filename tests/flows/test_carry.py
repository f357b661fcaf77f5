"""Claims carried to deployments: tiny models whose answer can be said beforehand, published claims, one difference at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judge.reports import claim
from underlap.flows import simulate as flow
from underlap.flows.carry import carry
from underlap.flows.claims import by_id
from underlap.judgement import Carry

TINY = """\
model: tiny-dense
cluster: dgx-h100
layout: {layout}
workload: {workload}
"""
CLAIM = """\
metric: {metric}
value: {value}
axis: tp
collective: all_reduce
workload: {{model: tiny-dense, phase: prefill, batch: {batch}, sequence: 1024, precision: bf16}}
hardware: {{gpu: dgx-h100, count: 2, interconnect: NVLink}}
settings: {{layout: tp=2, overlap: tp=split_batch}}
"""
WIDE = "{kind: prefill, batch: 64, seq: 1024}"


def made(value: str = "1.25 x", batch: str = "64", metric: str = "end_to_end_speedup"):
    return claim(CLAIM.format(value=value, batch=batch, metric=metric))


@pytest.fixture
def carried(tmp_path: Path):
    def run(statement, workload: str = WIDE, layout: str = "tp=2", more: str = "") -> Carry:
        file = tmp_path / "mine.yaml"
        text = TINY.format(layout=layout, workload=workload)
        file.write_text(text.replace("cluster: dgx-h100\n", more) if more.startswith("cluster") else text + more)
        return carry(statement, file)

    return run


def test_a_claim_carries_over_to_its_own_conditions(carried) -> None:
    found = carried(made())

    assert found.outcome == "carries over"
    assert found.provenance == "simulated"
    assert found.mine == found.claim_simulated
    assert found.mine is not None
    assert found.mine.low == pytest.approx(1.25, abs=0.05)
    assert {row.verdict for row in found.conditions} == {"same"}
    assert found.missing == []


def test_a_claim_does_not_carry_over_to_one_rank_where_nothing_is_sent(carried) -> None:
    found = carried(made(), layout="{}")

    assert found.outcome == "does not carry over"
    assert found.mine is not None
    assert (found.mine.low, found.mine.high) == (1.0, 1.0)
    assert "tp=1: nothing is sent" in found.why


def test_twice_the_launches_make_it_a_loss_where_launches_are_the_step(carried) -> None:
    # 1024 rows of 64 are less work than the 5 us that it takes to launch it; two parts are nearly twice the launches.
    found = carried(made(), workload="{kind: prefill, batch: 1, seq: 1024}")

    assert found.outcome == "does not carry over"
    assert found.mine is not None
    assert 0.5 <= found.mine.high <= 0.6


def test_over_a_link_that_is_the_whole_step_there_is_nothing_to_hide_behind(carried) -> None:
    found = carried(made(), more="cluster: {from: dgx-h100, scale_up: {bandwidth: 10 MB/s, in_network_reduction: false}}\n")

    assert found.outcome == "does not carry over"
    assert found.mine is not None
    assert found.mine.high == pytest.approx(1, abs=0.01)
    (machine,) = (row for row in found.conditions if row.name == "machine")
    assert (machine.verdict, machine.after) == ("different", found.mine.low)


def test_an_open_batch_that_decides_is_named(carried) -> None:
    found = carried(made(), workload="{kind: prefill, batch: null, seq: 1024}")

    assert found.outcome == "not decidable"
    assert found.decided_by is not None
    assert "carries over for sequences per data-parallel rank = 64" in found.decided_by
    assert "gain for sequences per data-parallel rank >= 32, loss for sequences per data-parallel rank <= 16" in found.why
    assert any("mine: sequences per data-parallel rank is open" in line for line in found.unknown)


def test_an_open_condition_that_changes_nothing_does_not_stand_in_the_way(carried) -> None:
    found = carried(made(), workload="{kind: prefill, batch: 64, seq: 1024, imbalance: null}")

    assert found.outcome == "carries over"
    assert found.mine is not None
    assert found.mine.points == 3


def test_a_claim_that_the_model_does_not_give_decides_nothing(carried) -> None:
    found = carried(made("2 x"))

    assert found.outcome == "not decidable"
    assert "2 x claimed, 1.226 x" in found.why
    assert found.mine is not None


def test_a_gain_smaller_than_the_error_decides_nothing(carried) -> None:
    found = carried(made("1.05 x", batch="31"))

    assert found.outcome == "not decidable"
    assert "cannot tell them apart" in found.why


def test_a_pass_that_cannot_be_applied_is_no_answer(carried) -> None:
    found = carried(made(), workload="{kind: decode, batch: 1, context: 1024}")

    assert found.outcome == "not decidable"
    assert found.mine is None
    assert "cannot be applied" in found.why


def test_what_a_claim_leaves_open_is_swept_and_said(carried) -> None:
    found = carried(made(batch="null"))

    assert found.outcome == "carries over"
    assert found.claim_simulated is not None
    assert found.claim_simulated.points == 7
    assert found.claim_simulated.low < 1 < found.claim_simulated.high
    assert any("1 of 7 points of its sweep have its figure" in line for line in found.unknown)
    (batch,) = (row for row in found.conditions if row.name == "sequences per data-parallel rank")
    assert (batch.claim, batch.mine, batch.verdict) == (None, "64", "unknown")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpu: dgx-h100": "gpu: H800"}, "hardware.gpu 'H800 with NVLink' has no preset"),
        ({"model: tiny-dense": "model: BERT"}, "workload.model 'BERT' has no preset"),
        ({"model: tiny-dense, ": ""}, "workload.model is not stated"),
        ({"phase: prefill": "phase: rollout"}, "workload.phase is rollout"),
        ({"axis: tp": "axis: [tp, ep]"}, "axis is tp, ep: one figure for several"),
        ({"axis: tp\n": ""}, "axis is not stated"),
        ({"layout: tp=2": "layout: tp=two"}, "settings.layout cannot be read"),
        ({"overlap: tp=split_batch": "overlap: dp=bucket:25MB"}, "has nothing on tp"),
        ({"layout: tp=2, ": "", "count: 2, ": ""}, "hardware.count is not stated"),
        ({"end_to_end_speedup": "operator_speedup"}, "metric operator_speedup"),
    ],
)
def test_a_claim_that_cannot_be_mapped_names_the_field(carried, change: dict[str, str], field: str) -> None:
    text = CLAIM.format(value="1.25 x", batch=64, metric="end_to_end_speedup")
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    found = carried(claim(text))

    assert found.outcome == "not decidable"
    assert any(field in line for line in found.missing), found.missing
    assert field in found.why


def test_each_difference_alone_is_what_a_simulation_of_it_gives(carried) -> None:
    found = carried(made(), workload="{kind: prefill, batch: 8, seq: 4096}")
    rows = {row.name: row for row in found.conditions if row.verdict == "different"}

    assert set(rows) == {"sequences per data-parallel rank", "tokens per sequence"}
    for name, workload in (
        ("sequences per data-parallel rank", "prefill,batch=8,seq=1024"),
        ("tokens per sequence", "prefill,batch=64,seq=4096"),
    ):
        given = {"model": "tiny-dense", "cluster": "dgx-h100", "layout": "tp=2", "workload": workload}
        before, after = (flow.simulate(flow.scenario(**given, policy=policy)).prediction for policy in ("", "tp=split_batch"))
        assert rows[name].after == pytest.approx(before.step_ns / after.step_ns)
        assert rows[name].before == found.claim_simulated.low


def test_a_share_that_is_hidden_is_that_of_the_simulated_report(carried) -> None:
    given = {"model": "tiny-dense", "cluster": "dgx-h100", "layout": "tp=2", "workload": "prefill,batch=64,seq=1024"}
    summary = flow.simulate(flow.scenario(**given, policy="tp=split_batch")).summary
    share = 100 * summary.hidden.mean_ns / summary.communication.mean_ns
    found = carried(made(f"{{at_least: {share:.0f} %}}\nof: kernel_time", metric="hidden_share"))

    assert found.outcome == "carries over"
    assert found.unit == "%"
    assert found.mine.low == pytest.approx(share)
    assert carried(made(f"{share:.0f} %\nof: kernel_time", metric="hidden_share"), layout="{}").outcome == "not decidable"


EXPERTS = """\
model: deepseek-v3
cluster: dgx-h100
layout: dp=32,ep=32
workload: {{kind: decode, batch: {batch}, context: 2000, precision: fp8, imbalance: null}}
"""
DENSE = "model: llama3-70b\ncluster: dgx-h100\nlayout: tp=8\nworkload: prefill,batch=1,seq=1024\n"


@pytest.mark.parametrize(
    ("name", "mine", "outcome", "said"),
    [
        ("sglang-tbo-decode-256", EXPERTS.format(batch=256 * 32), "carries over", "1.255 x claimed"),
        ("sglang-tbo-decode-256", EXPERTS.format(batch=32 * 32), "does not carry over", "1.255 x claimed"),
        ("sglang-tbo-decode-32", EXPERTS.format(batch=256 * 32), "does not carry over", "0.73 x claimed"),
        ("sglang-tbo-prefill-27-35", DENSE, "does not carry over", "ep=1: nothing is sent"),
        ("tokenweave-latency-1p28", DENSE, "carries over", "1.28 x claimed"),
        ("torchtitan-asynctp-8b-bf16", DENSE, "not decidable", "copy_engine cannot be applied"),
        ("pytorch-ce-collectives-fsdp-e2e", DENSE, "not decidable", "does not give the claim's figure"),
        ("domino-up-to-1p3", DENSE, "not decidable", "workload.model 'GPT-3 and Llama-2 families' has no preset"),
        ("flux-prefill-1p66", DENSE, "not decidable", "hardware.gpu 'H800 SXM5 with NVLink' has no preset"),
        ("vllm-dbo-tp-hidden-vs-saved", DENSE, "not decidable", "metric saved_share"),
    ],
)
def test_published_claims_are_carried_or_the_reason_is_given(
    tmp_path: Path, name: str, mine: str, outcome: str, said: str
) -> None:
    (tmp_path / "mine.yaml").write_text(mine)
    found = carry(by_id(name), tmp_path / "mine.yaml")

    assert (found.outcome, said in found.why) == (outcome, True), found.why
