"""A short calibration over loopback: what it writes is a cluster that simulate takes. What it cannot measure it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from underlap import inputs
from underlap.cli import main
from underlap.cost.testbed import Priority, Testbed
from underlap.errors import OptionError
from underlap.flows import calibrate as flow
from underlap.flows.calibration_shapes import SHAPES
from underlap.run.priority import PRIORITIES

WORKLOAD = "train,gbs=4,mbs=2,seq=64,precision=fp32"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few shapes and sizes, three times each."""
    pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")
    path = tmp_path_factory.mktemp("calibrated") / "here.yaml"
    sizes = (4096, 65536, 524288, 2**20, 2**21)
    path.write_bytes(
        flow.calibrate(flow.asked(quick=True, repetitions=3, budget_s=20.0, timeout_s=60.0, sizes=sizes, quiet=True))
    )
    return path


def test_a_calibration_has_a_range_and_repetitions_for_every_time(measured: Path) -> None:
    testbed = inputs.cluster(str(measured)).measured

    assert isinstance(testbed, Testbed)
    assert testbed.fabric is None
    assert testbed.priority == "default"
    assert set(testbed.transfers) == {"all_reduce", "all_gather", "all_to_all", "send"}
    points = [point for table in (testbed.compute.products, testbed.compute.streams) for each in table.values() for point in each]
    assert len(points) > 50
    assert all(point.low_us <= point.us <= point.high_us and point.repetitions >= 3 for point in points)
    assert 0 < testbed.beside.cpu_share.value < 1


@pytest.mark.parametrize(("layout", "policy"), [("tp=2", "tp=split_batch"), ("dp=2", "dp=bucket:100kB"), ("tp=2,sp", "")])
def test_simulate_takes_what_calibrate_wrote(measured: Path, layout: str, policy: str) -> None:
    words = ["simulate", "--cluster", str(measured), "--model", "tiny-dense", "--layout", layout, "--workload", WORKLOAD]
    result = CliRunner().invoke(main, [*words, "--overlap", policy])

    assert result.exit_code == 0, result.output
    assert "SIMULATED tiny-dense on 2 cores, gloo over loopback" in result.output


def test_what_stands_is_not_replaced_without_being_told(tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    path.write_text("mine")
    result = CliRunner().invoke(main, ["calibrate", "--out", str(path)])

    assert result.exit_code == 2
    assert "here.yaml exists: name another file, or pass --force to replace it." in result.output.replace("\n", " ")
    assert path.read_text() == "mine"


def test_more_ranks_than_cores_are_refused_before_anything_starts() -> None:
    with pytest.raises(OptionError, match=r"ranks=64 on [0-9]+ cores: expected a core for each"):
        flow.calibrate(flow.asked(ranks=64))


def test_a_fabric_that_says_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match=r"fabric: "):
        flow.asked(fabric="fast")


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_shapes_that_so_many_ranks_do_not_divide_are_left_out(ranks: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")
    job = flow._job(flow.asked(ranks=ranks), Path("nowhere"))

    assert all(small.layout.world == ranks for small in job.plans)
    assert {small.sends for small in job.plans} == {True, False}
    if ranks == 2:
        assert len(job.plans) == len(SHAPES)


@pytest.mark.parametrize("rate", ["100kbit", "1mbit"])
def test_a_link_too_slow_for_enough_sizes_is_refused(rate: str) -> None:
    with pytest.raises(OptionError, match=r"fabric: [03] sizes of transfers take 0.15 s or less on the slowest link: expected 4"):
        flow._sizes(flow.asked(fabric=rate))


def test_what_was_measured_at_any_priority_can_be_read_again() -> None:
    assert get_args(Priority) == PRIORITIES
