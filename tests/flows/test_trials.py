"""What a Trial says of a prediction that was made from other circumstances than it ran in."""

from __future__ import annotations

import pytest

from tests import testbeds
from underlap import inputs
from underlap.cluster import cluster_of_documents
from underlap.flows.run import Asked
from underlap.flows.trials import measured_otherwise
from underlap.run.fabric_spec import fabric_spec
from underlap.run.priority import Priority


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
