"""A prefill writes what a decode reads: the cache's bytes, the traffic of writing it, and where it stands."""

from __future__ import annotations

import pytest

from underlap import inputs
from underlap.cost.work import Stream
from underlap.plan import Operation, Plan
from underlap.planner import plan as planned


def made(model: str, layout: str, workload: str) -> Plan:
    return planned(inputs.model(model), inputs.layout(layout), inputs.workload(workload), domain=8)


def appends(plan: Plan) -> list[Operation]:
    return [o for block in plan.blocks.values() for o in block.operations if o.role == "attention.append"]


def test_training_keeps_no_cache() -> None:
    plan = made("tiny-dense", "tp=2", "train,gbs=4,mbs=2,seq=64")
    assert "cache" not in plan.buffers
    assert not appends(plan)


@pytest.mark.parametrize(
    ("model", "layout", "per_token"),
    [
        # Llama 3 8B: 8 key-value heads of 128, keys and values, two bytes each.
        ("llama3-8b", "", 8 * 128 * 2 * 2),
        ("llama3-8b", "tp=4", 2 * 128 * 2 * 2),
        # DeepSeek-V3: the latent of 512 and the rotary key of 64, whole on every rank of tp.
        ("deepseek-v3", "tp=4", (512 + 64) * 2),
    ],
)
def test_a_prompt_leaves_in_the_cache_what_its_decode_reads(model: str, layout: str, per_token: int) -> None:
    prefill = made(model, layout, "prefill,batch=3,seq=1024")
    decode = made(model, layout, "decode,batch=3,context=1023")
    assert prefill.buffers["cache"].nbytes == decode.buffers["cache"].nbytes == 3 * 1024 * per_token
    for append in appends(prefill):
        assert isinstance(append.work, Stream)
        assert append.work.write_bytes == append.work.read_bytes == 3 * 1024 * per_token


def test_each_kind_of_layer_writes_its_keys_once_their_positions_are_known() -> None:
    for model in ("llama3-8b", "mixtral-8x7b"):
        (block,) = (
            b
            for name, b in made(model, "", "prefill,batch=2,seq=64").blocks.items()
            if name.split(".")[0] in ("dense", "experts")
        )
        roles = [operation.role for operation in block.operations]
        assert roles.count("attention.append") == 1
        assert roles.index("attention.rotary") < roles.index("attention.append") < roles.index("attention.core")


def test_ranks_of_a_context_keep_their_own_positions() -> None:
    whole, divided = (made("llama3-8b", layout, "prefill,batch=2,seq=1024") for layout in ("", "cp=4"))
    assert divided.buffers["cache"].nbytes * 4 == whole.buffers["cache"].nbytes
