"""Which ranks share a clock: files that name one host do, and its name goes no further."""

import json
from pathlib import Path

import pytest

from underlap.flows.read import read

SECRET = "node-a17.cluster.example"


def trace(folder: Path, rank: int, **metadata: object) -> Path:
    """A trace with one kernel."""
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": {"device": 0, "stream": 7},
    }
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 4}, **metadata, "traceEvents": [event]}))
    return path


def clocks(*paths: Path) -> list[int]:
    return [info.clock for info in read(*paths).ranks]


def test_files_that_name_no_host_have_clocks_of_their_own(tmp_path: Path) -> None:
    assert clocks(*(trace(tmp_path, rank) for rank in range(3))) == [0, 1, 2]


def test_files_of_one_host_share_its_clock(tmp_path: Path) -> None:
    hosts = ["a", "b", "a", "b"]

    assert clocks(*(trace(tmp_path, rank, host_name=host) for rank, host in enumerate(hosts))) == [0, 1, 0, 1]


@pytest.mark.parametrize("host", ["localhost", "", 17, None])
def test_names_that_many_hosts_have_say_nothing(tmp_path: Path, host: object) -> None:
    assert clocks(*(trace(tmp_path, rank, host_name=host) for rank in range(2))) == [0, 1]


def test_the_name_of_a_host_is_compared_but_not_kept(tmp_path: Path) -> None:
    assert SECRET not in repr(read(trace(tmp_path, 0, host_name=SECRET), trace(tmp_path, 1, host_name=SECRET)))
