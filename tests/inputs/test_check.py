"""The five inputs together: the first that does not fit another is named."""

from __future__ import annotations

import pytest

from underlap import inputs
from underlap.errors import OptionError

FITTING = {
    "model": "tiny-moe",
    "layout": "tp=2,dp=4,ep=4,zero=1",
    "workload": "train,gbs=8,seq=64",
    "policy": "ep=shared_expert,dp=bucket:1MB",
    "gpus": "8",
}


def check(**changes: str) -> None:
    given = {**FITTING, **changes}
    inputs.check(
        inputs.model(given["model"]),
        inputs.layout(given["layout"]),
        inputs.workload(given["workload"]),
        inputs.policy(given["policy"]),
        inputs.cluster("dgx-h100").with_gpus(int(given["gpus"])),
    )


def test_inputs_that_fit_one_another_are_taken() -> None:
    check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": "16"}, "layout: pp=1 * dp=4 * fsdp=1 * cp=1 * tp=2 makes 8 ranks, but there are 16 GPUs"),
        ({"model": "tiny-dense"}, "layout: ep=4, but tiny-dense has no experts: leave ep out"),
        ({"workload": "train,gbs=6,seq=64"}, "workload: gbs=6 is not divisible by dp * fsdp * mbs = 4 * 1 * 1 = 4"),
        ({"workload": "train,gbs=8,seq=64,precision=fp4"}, "cluster: dgx-h100: no peak is known for precision=fp4"),
        ({"policy": "cp=ring"}, "policy: cp=ring, but the layout has cp=1"),
        ({"model": "mixtral-8x7b"}, "policy: ep=shared_expert, but mixtral-8x7b has no shared experts: leave it out"),
    ],
)
def test_the_first_that_does_not_fit_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        check(**changes)

    assert str(caught.value).startswith(message)
