"""Cases from public issue trackers of the kind "several ranks": files per rank, missing ranks, and columns that others use."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import underlap
from tests.cases.given import CASES, MS, US, kernel, screen, whole
from tests.timelines import COMMUNICATION, COMPUTE, COPY, Call, Op, build, info
from underlap.errors import InputError

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


def test_files_named_by_mesh_coordinates_are_numbered_by_them(tmp_path: Path) -> None:
    case = CASES["K02"]
    given = re.sub(r"(?<=[A-Z]-)\d", "{}", case["file"])
    for pp in range(2):
        for tp in range(2):
            content = json.dumps({"traceEvents": [kernel("gemm", 0, 10 + 2 * pp + tp)]}).encode()
            (tmp_path / given.format(tp, 0, pp, 0)).write_bytes(gzip.compress(content))
    report = underlap.analyze(tmp_path)

    (second,) = [source for source in report.provenance.sources if source.file == case["file"]]
    assert second.coordinates == case["expect"]
    assert (second.ranks, second.rank_source) == ([1], "assumed")
    # The tensor dimension varies fastest: rank = pp * tp_size + tp.
    assert [(row.rank, row.compute_ns) for row in report.ranks] == [(rank, (10 + rank) * US) for rank in range(4)]
    (note,) = [note for note in report.notes if note.code == "rank_assumed"]
    assert note.text.startswith("4 files without a rank, numbered in order of the coordinates in their names: ")


def test_a_single_file_keeps_its_coordinates_and_is_assumed_rank_zero(tmp_path: Path) -> None:
    path = tmp_path / CASES["K02"]["file"]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [kernel("gemm", 0, 10)]}).encode()))
    report = underlap.analyze(path)

    assert report.provenance.sources[0].coordinates == CASES["K02"]["expect"]
    assert report.ranks[0].rank == 0


def test_the_five_columns_of_other_tools_are_in_every_row_and_missing_ranks_are_told() -> None:
    case = CASES["K06"]
    ops, calls = [], []
    for rank in (0, 2):
        ops += [Op(COMPUTE, 0, 6 * MS, rank=rank), Op(COMMUNICATION, 4 * MS, 9 * MS, len(calls), rank=rank, lane="20")]
        ops += [Op(COPY, 9 * MS, 10 * MS, rank=rank, lane="21"), Op(COMPUTE, 12 * MS, 13 * MS, rank=rank)]
        calls.append(Call("all_reduce", 8, rank=rank))
    report = whole(build(ops, calls=calls, ranks=[info(rank, world=4) for rank in (0, 2)]))

    for row in report.ranks:
        columns = dict(
            zip(case["columns"], (row.compute_ns, row.exposed_ns, row.hidden_ns, row.communication_ns, row.idle_ns), strict=True)
        )
        assert columns == {
            "Computing": 7 * MS,
            "Communication(Not Overlapped)": 3 * MS,
            "Overlapped": 2 * MS,
            "Communication": 5 * MS,
            "Free": 2 * MS,
        }
        left, _, right = case["identity"].partition(" = ")
        assert columns[left] == sum(columns[part] for part in right.split(" + "))
    assert "note: only 2 ranks of 4 in the input (0, 2)" in screen(report)


def test_one_rank_alone_is_told_in_the_singular() -> None:
    report = whole(build([Op(COMPUTE, 0, 10)], ranks=[info(0, world=4)], unknown=["kernel"]))

    assert "only 1 rank of 4 in the input" in screen(report)
    assert not re.search(r"\b1 (?:ranks|files|kernels|notes|calls)\b", screen(report))


def test_recordings_before_and_after_a_change_are_not_ranks_of_one_job() -> None:
    with pytest.raises(InputError, match=r"recorded 78 min after .* had ended, so they are different runs"):
        underlap.read(TRACES / "nsys_2gpu")
    for name in ("before", "after"):
        assert len(underlap.read(TRACES / "nsys_2gpu" / f"mfu_2gpu_{name}.sqlite").ranks) == 2
