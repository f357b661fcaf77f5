"""Attention in several kernels against Korthikanti et al. 2022, arXiv 2205.05198: products, bytes kept, recomputation."""

from __future__ import annotations

import pytest

from tests.planner.test_pipelines import model
from underlap.cost.work import Attention, Gemm
from underlap.errors import OptionError
from underlap.expansion import expand
from underlap.hazards import memory_peak
from underlap.layout import Layout
from underlap.meetings import validate
from underlap.plan import Plan
from underlap.planner import plan
from underlap.policy import parse_policy
from underlap.schedule import apply
from underlap.workload import Train, parse_workload, workload_text

SEQUENCE, HEADS, HEAD = 64, 2, 8


def planned(attention: str, recompute: str = "none", layout: Layout = Layout(), layers: int = 2) -> Plan:  # noqa: B008  # frozen
    workload = Train(gbs=2 * layout.dp, mbs=2, seq=SEQUENCE, attention=attention, recompute=recompute)  # type: ignore[arg-type]  # str of the parametrization
    return plan(model(layers), layout, workload, domain=8)


def core_flops(made: Plan, block: str, phase: str) -> float:
    names = ("attention.scores", "attention.weigh", "attention.core")
    found = [o.work for o in made.blocks[block].operations if o.phase == phase and o.role.startswith(names)]
    return sum(work.flops for work in found if isinstance(work, Gemm | Attention))


def test_products_are_those_of_full_attention_forward_and_twice_backward() -> None:
    made = planned("unfused")
    # 2 s^2 h flops for each of the two products and each sequence of a micro-batch: Narayanan et al. 2021, appendix.
    forward = 2 * 2 * SEQUENCE**2 * HEADS * HEAD * 2
    assert core_flops(made, "dense.forward", "forward") == forward
    assert core_flops(made, "dense.backward", "backward") == 2 * forward


def test_a_fused_kernel_skips_what_the_mask_hides_and_makes_the_scores_again() -> None:
    made = planned("fused")
    pairs = SEQUENCE * (SEQUENCE + 1) / 2
    assert core_flops(made, "dense.forward", "forward") == 2 * HEADS * pairs * 2 * HEAD * 2
    assert core_flops(made, "dense.backward", "backward") == 2 * HEADS * pairs * 5 * HEAD * 2


def test_five_bytes_for_each_score_of_a_layer_are_kept_and_none_with_selective_recomputation() -> None:
    def held(recompute: str) -> int:
        """What one more layer holds at the peak."""
        few, many = (planned("unfused", recompute, layers=layers) for layers in (3, 4))
        for made in (few, many):
            validate(made)
        one, other = (memory_peak(made, expand(made, made.roles[0])) for made in (few, many))
        return other - one

    scores = HEADS * SEQUENCE**2 * 2  # a s^2 b
    assert held("none") - held("selective") == 5 * scores


def test_selective_recomputation_makes_scores_softmax_dropout_and_result_again() -> None:
    again = [o.role for o in planned("unfused", "selective").blocks["dense.backward"].operations if o.phase == "recompute"]
    assert again == ["attention.scores", "attention.softmax", "attention.dropout", "attention.weigh"]


def test_the_text_form_has_attention_only_where_it_is_not_fused() -> None:
    text = "train,gbs=8,seq=64,attention=unfused"
    assert workload_text(parse_workload(text)) == text
    assert "attention" not in workload_text(Train(gbs=8, seq=64))


def test_scores_over_several_ranks_are_refused() -> None:
    with pytest.raises(OptionError, match="attention=unfused with cp=2"):
        planned("unfused", layout=Layout(cp=2))


def test_splitting_a_batch_says_that_it_needs_one_kernel() -> None:
    (refusal,) = apply(planned("unfused", layout=Layout(tp=2)), parse_policy("tp=split_batch")).refused
    assert "use attention=fused" in refusal.reason
