"""What the cost models reach against measurements, and that the constants are those that the fit gives.

The limits are those asked of the models; where one is not reached, today's figure is the limit, so that it does not get worse.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCURACY = runpy.run_path(str(ROOT / "tools" / "cost_accuracy.py"))
FIT = runpy.run_path(str(ROOT / "tools" / "fit_costs.py"))
SYSTEMS = list(ACCURACY["JUDGED_ON"])


def test_the_fit_gives_the_committed_constants_again() -> None:
    # To regenerate: python tools/fit_costs.py > src/underlap/cost/calibration.yaml
    assert FIT["page"]() == (ROOT / "src" / "underlap" / "cost" / "calibration.yaml").read_text()


def test_constants_are_judged_on_groups_that_they_were_not_fitted_on() -> None:
    for system, ranks in ACCURACY["JUDGED_ON"].items():
        assert ranks > max(FIT["FITTED_ON"][system])


@pytest.mark.parametrize("system", SYSTEMS)
def test_large_collectives_are_within_ten_percent_in_the_median_and_a_quarter_in_nine_of_ten(system: str) -> None:
    found = ACCURACY["nccl_errors"](system, ACCURACY["COLLECTIVES"], None)

    assert found.rows == 40
    assert found.median <= 10
    assert found.p90 <= 25


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_each_collective_that_the_library_tunes_is_within_the_limits(system: str, collective: str) -> None:
    found = ACCURACY["nccl_errors"](system, (collective,), None)

    assert found.median <= 10
    assert found.p90 <= 25


@pytest.mark.parametrize(("system", "median", "p90"), [("a100_sxm", 15, 29), ("h100_sxm", 10.5, 20), ("gb200", 15, 25)])
def test_the_all_to_all_stays_as_near_as_it_is(system: str, median: float, p90: float) -> None:
    # The limits asked for, 10 and 25 %, are reached on the H100 only in nine of ten rows.
    found = ACCURACY["nccl_errors"](system, ("all_to_all",), None)

    assert found.median <= median
    assert found.p90 <= p90


@pytest.mark.parametrize("ctas", [2, 4, 8, 16, 32])
def test_switch_reduction_by_thread_blocks_is_within_a_quarter(ctas: int) -> None:
    assert ACCURACY["multimem_errors"](ctas).worst <= 25


def test_the_halves_of_switch_reduction_are_within_a_quarter() -> None:
    rows = ACCURACY["halves_by_ctas"]()

    assert len(rows) == 7
    assert max(abs(model / measured - 1) for _, _, measured, model in rows) <= 0.25


@pytest.mark.parametrize("kind", ["dispatch", "combine"])
@pytest.mark.parametrize(
    ("system", "nodes"), [("h100_sxm", 1), ("h200_sxm", 1), ("b200_sxm", 1), ("gb200", 1), ("h100_sxm", 2), ("h100_sxm", 4)]
)
def test_expert_kernels_are_within_a_quarter_in_nine_of_ten_rows(system: str, nodes: int, kind: str) -> None:
    found = ACCURACY["expert_errors"](system, nodes, kind)

    assert found.within_25 >= 90
    assert found.worst <= 27


@pytest.mark.parametrize("kind", ["dispatch", "combine"])
def test_eight_nodes_are_within_a_quarter_once_their_network_is_known(kind: str) -> None:
    fabric = ACCURACY["fabric_of_eight_nodes"]()

    assert ACCURACY["expert_errors"]("h100_sxm", 8, kind, fabric).worst <= 25
    assert ACCURACY["expert_errors"]("h100_sxm", 8, kind).bias < -50  # as it is without: the models say so on their page


def test_a_full_wave_beside_a_tenth_of_the_processors_takes_twice_as_long() -> None:
    assert 1.8 <= ACCURACY["full_wave_slowdown"]() <= 2.1


def test_ways_of_running_side_by_side_stand_in_the_measured_order() -> None:
    shares = ACCURACY["gained_shares"]()
    assert shares["copy engines"] > shares["partitioned"] > shares["plain"]


def test_the_page_has_a_row_for_every_system() -> None:
    page = ACCURACY["page"]()
    assert all(f"| {system} " in page for system in (*SYSTEMS, "h200_sxm", "b200_sxm"))
