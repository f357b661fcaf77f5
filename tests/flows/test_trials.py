"""What a Trial says of a prediction that was made from other circumstances than it ran in."""

from __future__ import annotations

import pytest

from tests import testbeds
from underlap import inputs
from underlap.cluster import cluster_of_documents
from underlap.flows.run import Asked
from underlap.flows.trials import measured_otherwise, shared_cores
from underlap.run.fabric_spec import fabric_spec
from underlap.run.priority import Priority
from underlap.trial import StepParts, Variant


@pytest.mark.parametrize(
    ("links", "priority", "said"),
    [
        ("500mbit", "communication", []),
        ("100mbit", "communication", ["measured over 500mbit, this ran over 100mbit"]),
        (None, "communication", ["measured over 500mbit, this ran over loopback"]),
        ("500mbit", "default", ["measured with priority communication, this ran with default"]),
        (None, "equal", ["this ran over loopback", "this ran with equal"]),
    ],
)
def test_links_and_priority_that_differ_from_those_measured_are_said(
    links: str | None, priority: Priority, said: list[str]
) -> None:
    what = Asked(
        model=inputs.model("tiny-dense"),
        layout=inputs.layout("tp=2"),
        workload=inputs.workload("train,gbs=4,mbs=2,seq=64"),
        fabric=fabric_spec(links) if links else None,
        priority=priority,
    )
    found = measured_otherwise(what, cluster_of_documents([(testbeds.document(), "two.yaml")]))

    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


def variant(step_ns: int, stolen_ns: int | None, others_ns: int | None) -> Variant:
    """Two steps of which so much was another machine's, or another program's."""
    names = ("compute_ns", "slowest_compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "library_cpu_ns")
    part = StepParts(**dict.fromkeys(names, 0), transfer_ns=None, core_ns=0, stolen_ns=stolen_ns, others_ns=others_ns)
    return Variant(
        name="baseline",
        policy="none",
        step_ns=[step_ns] * 2,
        host_issue_share=0.0,
        bytes_by_axis=[],
        control=[],
        unmatched_keys=0,
        loss=None,
        refused=[],
        parts=[part] * 2,
    )


@pytest.mark.parametrize(
    ("stolen_ns", "others_ns", "said"),
    [
        (0, 0, []),
        (None, None, []),
        (10, -10, []),
        (50, 0, ["other virtual machines had the cores for 5 % of the steps"]),
        (0, 300, ["other programs had the cores for 30 % of the steps"]),
    ],
)
def test_cores_that_others_had_for_much_of_the_steps_are_said(
    stolen_ns: int | None, others_ns: int | None, said: list[str]
) -> None:
    found = shared_cores([variant(1000, stolen_ns, others_ns)])

    assert len(found) == len(said)
    assert all(text.startswith(part) for part, text in zip(said, found, strict=True))
