"""The recorded traces: the figures that their README states, and every nanosecond as the slice walk counts it.

The expected figures are read from the README's tables, so that they stand in one place.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

import pytest

import underlap
from tests.oracle import kineto, nsight
from tests.oracle.accounting import FAMILY_PARTS, PARTS, Account, Row, account, whole
from underlap.report import FamilyRow, RankRow, Report

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
FOLDERS = {
    "dlrm": "dlrm_v100_8ranks",
    "ddp_a100": "ddp_a100",
    "recsys_sampled": "recsys_sampled_2of128",
    "recsys_a100": "recsys_a100",
    "ddp_mi300x": "ddp_mi300x",
    "vllm_tp8_b200": "vllm_tp8_b200",
}
GLOO_PAIRS = ("seq", "ovl", "allops")
KINETO: dict[str, tuple[str, ...]] = {
    **{name: (folder,) for name, folder in FOLDERS.items()},
    "gloo_cpu_only": ("gloo_cpu_only",),
    **{name: (f"gloo_2ranks/{name}_rank0.json.gz", f"gloo_2ranks/{name}_rank1.json.gz") for name in GLOO_PAIRS},
    **{name: (f"gloo_axes/{name}",) for name in ("fsdp2", "pp_1f1b", "moe_ep", "tp_sp_4r")},
    "sync": ("cuda_sync_events/cuda_event_sync.json.gz",),
    "sync of streams": ("cuda_sync_events/cuda_event_sync_multi_stream.json.gz",),
}
NSIGHT = {name: TRACES / "nsys_2gpu" / f"mfu_2gpu_{name}.sqlite" for name in ("before", "after")}


def table(first_header: str) -> list[dict[str, str]]:
    """The rows of the README's table whose first column has this header, by column."""
    lines = iter((TRACES / "README.md").read_text().splitlines())
    cells = next(split for line in lines if (split := _cells(line)) and split[0] == first_header)
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(cells, _cells(line), strict=True)))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def nsight_kernels() -> dict[str, int]:
    """Communication kernels per GPU, which the README says in the line above the Nsight table."""
    found = re.search(r"(\d+) communication kernels each before, (\d+) after", (TRACES / "README.md").read_text())
    assert found is not None
    return dict(zip(NSIGHT, map(int, found.groups()), strict=True))


KERNEL_TABLE = {row["trace"]: row for row in table("trace")}
NSIGHT_KERNELS = nsight_kernels()
NSIGHT_TABLE = {(row["file"], row["GPU"]): row for row in table("file")}


@functools.cache
def whole_report(*paths: Path) -> Report:
    return underlap.analyze([str(path) for path in paths], window="whole")


def row_of(trace: str) -> RankRow:
    name, _, rank = trace.partition(" rank ")
    rows = whole_report(TRACES / FOLDERS[name]).ranks
    return rows[0] if not rank else next(row for row in rows if row.rank == int(rank))


def ms(nanoseconds: int, like: str) -> str:
    """Milliseconds with as many digits as the text has."""
    return f"{nanoseconds / 1e6:.{len(like.partition('.')[2])}f}"


def parts_of(row: RankRow) -> dict[str, int]:
    return {"span": row.span_ns} | {name: getattr(row, f"{name}_ns") for name in PARTS}


def expected_parts(expected: Account) -> dict[str, int]:
    return {"span": expected.wall, **expected.parts}


def families_of(rows: list[FamilyRow]) -> dict[str | None, dict[str, int]]:
    """By collective, those that are on one axis only: the slice walk knows no axes."""
    counted = Counter(row.collective for row in rows)
    return {
        row.collective: {name: getattr(row, f"{name}_ns") for name in FAMILY_PARTS}
        for row in rows
        if counted[row.collective] == 1
    }


def test_the_readme_has_the_rows_that_are_asked_for_here() -> None:
    assert len(KERNEL_TABLE) == 14
    assert set(NSIGHT_TABLE) == {(name, gpu) for name in NSIGHT for gpu in "01"}


@pytest.mark.parametrize("trace", KERNEL_TABLE)
def test_a_kineto_trace_has_the_figures_of_the_readme(trace: str) -> None:
    expected, row = KERNEL_TABLE[trace], row_of(trace)

    assert row.hidden_share is not None
    assert {
        "trace": trace,
        "communication kernels": str(row.communication_kernels),
        "communication": ms(row.communication_ns, expected["communication"]),
        "hidden %": f"{100 * row.hidden_share:.2f}",
        "exposed": ms(row.exposed_ns, expected["exposed"]),
        "span": ms(row.span_ns, expected["span"]),
    } == expected


@pytest.mark.parametrize("name", KINETO)
def test_a_kineto_trace_has_every_nanosecond_of_the_slice_walk(name: str) -> None:
    found = whole_report(*(TRACES / path for path in KINETO[name]))
    files = {source.file: source.ranks for source in found.provenance.sources}
    totals: dict[str | None, dict[str, int]] = {}
    for row in found.ranks:
        file = next(file for file, ranks in files.items() if ranks == [row.rank])
        expected = walked(kineto.rows(file_of(name, file)))
        assert parts_of(row) == expected_parts(expected)
        for (_, collective), amounts in expected.families.items():
            total = totals.setdefault(collective, dict.fromkeys(FAMILY_PARTS, 0))
            for part, value in amounts.items():
                total[part] += value

    single = families_of(found.families)
    assert bool(single) == bool(totals)
    assert single == {collective: totals[collective] for collective in single}
    assert {row.collective for row in found.families} == set(totals)


@pytest.mark.parametrize(("name", "gpu"), NSIGHT_TABLE)
def test_an_nsight_file_has_the_figures_of_the_readme(name: str, gpu: str) -> None:
    expected = NSIGHT_TABLE[name, gpu]
    row = next(row for row in whole_report(NSIGHT[name]).ranks if row.device == int(gpu))

    assert {
        "file": name,
        "GPU": gpu,
        "compute": ms(row.compute_ns, expected["compute"]),
        "communication, all exposed": ms(row.communication_ns, expected["communication, all exposed"]),
        "span": ms(row.span_ns, expected["span"]),
    } == {column: value for column, value in expected.items() if column != "waiting for the other GPU"}
    assert row.exposed_ns == row.communication_ns
    assert row.communication_kernels == NSIGHT_KERNELS[name]


@pytest.mark.parametrize("name", NSIGHT)
def test_an_nsight_file_has_every_nanosecond_of_the_slice_walk(name: str) -> None:
    # The captures begin with a copy that was launched before them, which does not open the window; all else starts later.
    walked_devices = {
        device: account(rows, whole(row for row in rows if row.kind != "copy"))
        for device, rows in nsight.rows(NSIGHT[name]).items()
    }

    assert {row.device: parts_of(row) for row in whole_report(NSIGHT[name]).ranks} == {
        device: expected_parts(expected) for device, expected in walked_devices.items()
    }


def file_of(name: str, file: str) -> Path:
    folders = [path if path.is_dir() else path.parent for path in (TRACES / path for path in KINETO[name])]
    return folders[0] / file


def walked(rows: list[Row]) -> Account:
    return account(rows, whole(rows))
