"""Scenarios of published measurements, and the step time that the simulator gives for them. Compares nothing.

Figures of measurements are read from ../shared/facts. Nothing here is tuned: machines are the presets, with what the source says
of its own machine where that differs.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from underlap import inputs
from underlap.cluster import Cluster
from underlap.cost.work import Routing, Transfer
from underlap.flows.simulate import Scenario, scenario
from underlap.model import Model
from underlap.plan import OpKind, Plan
from underlap.planner import plan as planned
from underlap.schedule import apply
from underlap.simulate import Machine, Simulated
from underlap.simulate import simulate as simulated_plan
from underlap.workload import Decode

FACTS = Path(__file__).parents[2] / "shared" / "facts"


@functools.cache
def facts(name: str) -> Any:
    """A YAML file of the facts."""
    return yaml.safe_load((FACTS / f"{name}.yaml").read_text(encoding="utf-8"))


def run(
    model: Model | str,
    layout: str,
    workload: str,
    policy: str = "",
    *,
    cluster: Cluster | str = "dgx-h100",
    experts: str | None = None,
    contention: bool = True,
) -> Simulated:
    """The scenario simulated. `experts`: None for NCCL's all-to-all, else the algorithm of DeepEP's dispatch and combine.

    Raises ValueError where a pass of the policy is refused: the row would otherwise compare a plan with itself.
    """
    asked = scenario(model=model, cluster=cluster, layout=layout, workload=workload, policy=policy, contention=contention)
    return run_scenario(asked, experts)


def run_scenario(asked: Scenario, experts: str | None = None) -> Simulated:
    """See `run`."""
    applied = apply(planned(asked.model, asked.layout, asked.workload, domain=asked.cluster.topology.domain), asked.policy)
    if applied.refused:
        raise ValueError(f"{applied.refused[0].name} was refused: {applied.refused[0].reason}")
    plan = applied.plan if experts is None else with_expert_kernels(applied.plan, asked.model, experts)
    machine = Machine(
        topology=asked.cluster.topology, contention=asked.contention, launches=not isinstance(asked.workload, Decode)
    )
    return simulated_plan(plan, machine, bounds=False)


def with_expert_kernels(plan: Plan, model: Model, algorithm: str) -> Plan:
    """The plan with its all-to-alls of experts as dispatch and combine of DeepEP; a dispatch of serving is sent in fp8."""
    experts = model.experts
    assert experts is not None
    routing = Routing(topk=experts.top_k, experts=experts.count)

    def changed(role: str, phase: str, work: Transfer) -> Transfer:
        outward = ("dispatch" in role) != (phase == "backward")
        narrow = 0.5 if outward and phase in ("prefill", "decode") else 1.0
        return Transfer(
            collective="dispatch" if outward else "combine",
            payload_bytes=narrow * work.payload_bytes / experts.top_k,
            ranks=work.ranks,
            span=work.span,
            uneven=work.uneven,
            routing=routing,
            algorithm=algorithm,
        )

    blocks = {
        name: dataclasses.replace(
            block,
            operations=tuple(
                dataclasses.replace(one, work=changed(one.role, one.phase, one.work))
                if one.group == "ep" and isinstance(one.work, Transfer) and one.work.collective == "all_to_all"
                else one
                for one in block.operations
            ),
        )
        for name, block in plan.blocks.items()
    }
    return dataclasses.replace(plan, blocks=blocks)


def seconds(*given: Any, **named: Any) -> float:
    """Step time of `run`."""
    return run(*given, **named).step_ns / 1e9


def compute_times(done: Simulated) -> tuple[float, float]:
    """(alone, as it ran) seconds of compute, summed over one rank of each role."""
    alone = ran = 0.0
    for role in done.plan.roles:
        here = done.rows(role.name)
        computing = done.expansions[role.name].rows.kind == OpKind.COMPUTE
        work = np.asarray(done.prices.work_ns)[done.work[here][computing]]
        alone += float(work.sum()) / 1e9
        ran += float((done.times.end_ns[here] - done.times.begin_ns[here])[computing].sum()) / 1e9
    return alone, ran


def gpt(row: dict[str, Any]) -> Model:
    """The GPT of a row of Megatron's tables: the preset of 22B with its sizes."""
    like = inputs.model("gpt3-22b")
    return msgspec.structs.replace(
        like,
        name=f"gpt-{row['params_b']:g}b",
        hidden=row["hidden"],
        layers=row["layers"],
        heads=row["heads"],
        kv_heads=row["heads"],
        head_dim=row["hidden"] // row["heads"],
        intermediate=4 * row["hidden"],
    )


def h800() -> Cluster:
    """A DGX H100 whose NVLink carries 200 GB/s one way (deepseek_v3.yaml counts 160 of them as usable)."""
    found = inputs.cluster("dgx-h100")
    link = msgspec.structs.replace(found.topology.scale_up, name="NVLink4 of H800", bytes_per_s=200e9)
    return msgspec.structs.replace(found, name="h800", topology=msgspec.structs.replace(found.topology, scale_up=link))
