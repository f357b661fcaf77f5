"""Which rank a file is of, in the forms that launchers and engines write."""

from pathlib import Path

import pytest

from underlap.read.identity import core_time, rank_from_metadata, rank_from_name


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("iteration_10/rank0_trace.json.gz", 0),
        ("rank-70.Jul_15_10_52_41.1074.pt.trace.json.gz", 70),
        ("worker3_step_12.1694128201557.pt.trace.json.gz", 3),
        ("sampled_rank-1.json.gz", 1),
        ("trace_rank_12.json", 12),
        ("Rank 5.json", 5),
        ("rank7/trace.json", 7),
        ("RANK003.json", 3),
    ],
)
def test_names_that_tell_the_rank(path: str, rank: int) -> None:
    assert rank_from_name(Path(path)) == rank


@pytest.mark.parametrize(
    "path",
    [
        "host_1234.1694128201557.pt.trace.json.gz",
        "1700000000.5-TP-0-DP-0-PP-0-EP-0.trace.json.gz",
        "report.0.sqlite",
        "frank3.json",
        "coworker7.json",
        "rank.json",
        "rank99999999999.json",
        "host_r3.json",
        "step3.json",
    ],
)
def test_names_that_do_not_tell_the_rank(path: str) -> None:
    assert rank_from_name(Path(path)) is None


@pytest.mark.parametrize(("written", "rank"), [(0, 0), (3, 3), ("3", 3), (3.0, 3)])
def test_ranks_in_the_metadata(written: object, rank: int) -> None:
    assert rank_from_metadata({"distributedInfo": {"rank": written, "world_size": 8}}) == (rank, 8)


@pytest.mark.parametrize("nonsense", [-1, "x", "", 1.5, [0], {"a": 0}, None, True, 1 << 40, 1 << 70])
def test_nonsense_in_the_metadata_is_no_rank_and_no_world(nonsense: object) -> None:
    assert rank_from_metadata({"distributedInfo": {"rank": nonsense, "world_size": nonsense}}) == (None, None)


@pytest.mark.parametrize("info", [None, [], "rank 3", 3])
def test_metadata_without_an_object_says_nothing(info: object) -> None:
    assert rank_from_metadata({"distributedInfo": info}) == (None, None)


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"underlap": {"core_ns": 12}}, 12),
        ({"underlap": {"core_ns": 0}}, 0),
        ({"underlap": {"core_ns": -5}}, None),
        ({"underlap": {"core_ns": "much"}}, None),
        ({"underlap": {"stage": 0}}, None),
        ({"underlap": [12]}, None),
        ({}, None),
    ],
)
def test_what_communication_took_of_a_core_is_known_only_where_a_number_says_so(metadata: dict, told: int | None) -> None:
    assert core_time(metadata) == told
