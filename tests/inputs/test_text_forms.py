"""The one-line forms: they round-trip, and whatever is malformed is one error of one line that names the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from tests.inputs import drawn
from tests.inputs.drawn import is_one_line, refusal
from underlap import inputs
from underlap.errors import OptionError
from underlap.layout import Layout, layout_text, parse_layout
from underlap.policy import Policy, parse_policy, policy_text
from underlap.workload import Decode, Prefill, Train, Workload, parse_workload, workload_text


@given(drawn.layouts())
def test_the_text_of_any_layout_is_read_back_equal(layout: Layout) -> None:
    assert parse_layout(layout_text(layout)) == layout


@given(drawn.workloads)
def test_the_text_of_any_workload_is_read_back_equal(workload: Workload) -> None:
    assert parse_workload(workload_text(workload)) == workload


@given(drawn.policies)
def test_the_text_of_any_policy_is_read_back_equal(policy: Policy) -> None:
    assert parse_policy(policy_text(policy)) == policy


def test_an_empty_text_is_one_rank_and_a_policy_that_overlaps_nothing() -> None:
    assert parse_layout("") == Layout()
    assert Layout().world == 1
    assert parse_policy("") == Policy()


def test_the_forms_that_the_help_shows_are_read() -> None:
    layout = parse_layout("tp=8,pp=2,dp=4,schedule=interleaved:2,sp,zero=1")
    assert layout == Layout(tp=8, pp=2, dp=4, schedule="interleaved", virtual=2, sp=True, zero=1)
    assert parse_layout("cp=4:ulysses") == Layout(cp=4, context="ulysses")
    assert parse_layout(" tp = 2 , sp ") == Layout(tp=2, sp=True)
    assert parse_workload("train,gbs=256,mbs=1,seq=8192,recompute=selective,precision=bf16") == Train(
        gbs=256, mbs=1, seq=8192, recompute="selective", precision="bf16"
    )
    assert parse_workload("prefill,batch=8,seq=4096") == Prefill(batch=8, seq=4096)
    assert parse_workload("decode,batch=64,context=4096") == Decode(batch=64, context=4096)
    policy = parse_policy("tp=split_batch,dp=bucket:25MB+ctas:8,fsdp=prefetch:2")
    assert policy_text(policy) == "tp=split_batch,fsdp=prefetch:2,dp=bucket:25MB+ctas:8"
    assert policy.dp.passes[0].parameter == 25_000_000
    assert [resource.name for resource in policy.dp.resources] == ["ctas"]


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_layout, "tp=abc", "layout: tp=abc: expected a whole number"),
        (parse_layout, "tp=-1", "layout: tp=-1: expected a whole number"),
        (parse_layout, "tp=0", "layout: tp is 0: expected 1 to 1048576"),
        (parse_layout, "tp=", "layout: tp has no value: expected tp=..."),
        (parse_layout, "tp", "layout: tp has no value: expected tp=..."),
        (parse_layout, "tp=2,,dp=2", "layout: an empty part in 'tp=2,,dp=2': expected parts such as tp=... between commas"),
        (parse_layout, "tp=2,tp=4", "layout: tp is given twice: expected it once"),
        (parse_layout, "tpp=2", "layout: unknown part 'tpp': did you mean 'tp'?"),
        (parse_layout, "tp=2,sp=yes", "layout: sp='yes': sp has no value; write sp alone, or leave it out"),
        (parse_layout, "sp", "layout: sp with tp=1: sequence parallelism is a form of tp; raise tp or leave sp out"),
        (parse_layout, "pp=2,schedule=1f1", "layout: schedule=1f1: did you mean '1f1b'?"),
        (
            parse_layout,
            "pp=2,schedule=interleaved",
            "layout: schedule=interleaved with virtual=1: expected 2 or more, as interleaved:2",
        ),
        (parse_layout, "pp=2,schedule=gpipe:2", "layout: virtual=2 with schedule=gpipe: expected schedule=interleaved"),
        (parse_layout, "schedule=zb-h1", "layout: schedule=zb-h1 with pp=1: there is no pipeline; raise pp"),
        (parse_layout, "cp=2:rings", "layout: cp=2:rings: did you mean 'ring'?"),
        (parse_layout, "zero=4,dp=2", "layout: zero=4: expected 0, 1, 2 or 3"),
        (parse_layout, "zero=0,fsdp=2", "layout: zero=0 with fsdp=2: fsdp shards"),
        (parse_layout, "zero=1", "layout: zero=1 with dp=1 and fsdp=1: there is nothing to shard over"),
        (parse_layout, "dp=8,ep=3", "layout: etp * ep = 1 * 3 = 3 does not divide dp * fsdp * cp * tp = 8"),
        (parse_layout, "order=tp-tp-dp", "layout: order=tp-tp-dp: expected each of tp, cp, fsdp, dp, pp once, innermost first"),
        (parse_layout, "dp=2,order=tp-pp", "layout: order=tp-pp: expected each of tp, cp, fsdp, dp, pp once"),
        (parse_layout, "pp=2,split=3", "layout: split has 1 numbers of layers, but pp=2 with 1 per rank make 2"),
        (parse_layout, "pp=2,split=3x99999999", "layout: split has more than 1048576 chunks"),
        (parse_layout, "dp=1000000,tp=1000000", "layout: pp=1 * dp=1000000 * fsdp=1 * cp=1 * tp=1000000 = 1000000000000 ranks"),
        (parse_workload, "", "workload: '': expected it to start with train, prefill or decode"),
        (
            parse_workload,
            "trian,gbs=1",
            "workload: 'trian': expected it to start with train, prefill or decode; did you mean 'train'?",
        ),
        (parse_workload, "train,gbs=8", "workload: seq is missing: expected train,...,seq=..."),
        (parse_workload, "train,gbs=8,seq=8,batch=3", "workload: unknown part 'batch'"),
        (parse_workload, "train,gbs=8,seq=8,recompute=half", "workload: recompute=half: known: none, selective, full"),
        (
            parse_workload,
            "decode,batch=8,context=8,imbalance=0.5",
            "workload: imbalance is 0.5: expected the busiest rank's tokens",
        ),
        (
            parse_workload,
            "decode,batch=8,context=8,imbalance=nan",
            "workload: imbalance is nan: expected the busiest rank's tokens",
        ),
        (parse_workload, "decode,batch=8,context=8,imbalance=x", "workload: imbalance=x: expected a number of 1 or more"),
        (parse_policy, "tp", "policy: tp has no value: expected tp=..."),
        (parse_policy, "xp=bucket:1MB", "policy: unknown part 'xp'"),
        (parse_policy, "tp=split", "policy: tp=split: no such pass: did you mean 'split_batch'?"),
        (parse_policy, "tp=bucket:25MB", "policy: tp=bucket: bucket is known for fsdp, dp; leave it out here"),
        (parse_policy, "dp=bucket", "policy: dp: bucket without a parameter: expected bucket: and a size such as 25MB"),
        (parse_policy, "dp=bucket:25", "policy: dp=bucket: '25' has no unit: expected a number with its unit, such as '80 GiB'"),
        (parse_policy, "dp=bucket:25Mb", "policy: dp=bucket: '25Mb' is in bits: a size is in bytes"),
        (parse_policy, "pp=async_p2p:3", "policy: pp=async_p2p:3: async_p2p takes no parameter; write async_p2p alone"),
        (parse_policy, "tp=split_batch:1", "policy: tp: split_batch:1: expected a whole number of 2 or more"),
        (parse_policy, "tp=ring+ring", "policy: tp=ring: ring is given twice; expected it once"),
        (parse_policy, "tp=ctas", "policy: tp: ctas without a parameter: expected ctas: and a whole number of 1 or more"),
    ],
)
def test_a_malformed_text_is_one_error_that_names_the_part(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(text)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("noun", [inputs.layout, inputs.workload, inputs.policy, inputs.model, inputs.cluster])
@given(text=drawn.texts)
def test_any_text_is_an_input_or_one_line_of_error(noun: Callable[[str], Any], text: str) -> None:
    assert is_one_line(refusal(noun, text))


@pytest.mark.parametrize(
    "noun",
    [
        inputs.layout_of_document,
        inputs.workload_of_document,
        inputs.policy_of_document,
        inputs.model_of_document,
        inputs.cluster_of_document,
    ],
)
@given(document=drawn.documents)
def test_any_document_is_an_input_or_one_line_that_names_the_file(noun: Callable[..., Any], document: object) -> None:
    assert is_one_line(refusal(noun, document, "job.yaml"), "job.yaml")


@given(drawn.documents)
def test_any_change_to_a_preset_is_a_cluster_or_one_line_of_error(change: object) -> None:
    document = {"from": "dgx-h100", **(change if isinstance(change, dict) else {"scale_up": change})}
    assert is_one_line(refusal(inputs.cluster_of_document, document, "job.yaml"), "job.yaml")
