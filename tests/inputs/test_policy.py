"""Policies against layouts: an axis that sends nothing cannot overlap."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.inputs import drawn
from underlap.errors import OptionError
from underlap.layout import parse_layout
from underlap.policy import POLICY_AXES, AxisPolicy, Pass, Policy, parse_policy


def test_nothing_overlaps_by_default() -> None:
    assert all(Policy().of(axis) == AxisPolicy() for axis in POLICY_AXES)


def test_passes_keep_their_order_and_resources_stand_apart() -> None:
    policy = parse_policy("tp=ctas:8+delay_wgrad+decompose:4+copy_engine").tp

    assert [step.name for step in policy.passes] == ["delay_wgrad", "decompose"]
    assert [step.name for step in policy.resources] == ["ctas", "copy_engine"]


@given(drawn.policies)
def test_any_policy_fits_a_layout_with_ranks_on_every_axis(policy: Policy) -> None:
    policy.check_layout(parse_layout("tp=2,pp=2,cp=2,fsdp=2,dp=2,ep=2"))


def test_an_axis_that_sends_nothing_is_named() -> None:
    with pytest.raises(OptionError, match="policy: tp=split_batch, but the layout has tp=1: nothing is sent on that axis"):
        parse_policy("tp=split_batch").check_layout(parse_layout("dp=2"))


def test_gradients_are_sent_over_context_ranks_too() -> None:
    parse_policy("dp=bucket:25MB").check_layout(parse_layout("cp=2"))

    with pytest.raises(OptionError, match="but the layout has dp=1"):
        parse_policy("dp=bucket:25MB").check_layout(parse_layout("tp=2"))


def test_a_pass_made_in_python_is_checked_like_one_that_is_read() -> None:
    with pytest.raises(OptionError, match="name=buckets: did you mean 'bucket'"):
        Pass("buckets")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(OptionError, match="bucket without a parameter"):
        Pass("bucket")
