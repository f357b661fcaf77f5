"""Grid and block of kernels, as the readers take them from traces."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import underlap
from underlap.timeline import Timeline, concatenate

TRACES = Path(__file__).parents[2].parent / "shared/traces"


def kernel(at: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at, "dur": 5, "args": {"stream": 7, **args}}


def read(path: Path, *events: dict[str, Any]) -> Timeline:
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return underlap.read(path)


def test_a_kernel_without_grid_and_block_has_an_unknown_shape(tmp_path: Path) -> None:
    found = read(tmp_path / "rank0.json", kernel(10))

    assert (found.ops.shape.tolist(), found.shapes) == ([-1], ())


def test_equal_grids_and_blocks_share_one_shape(tmp_path: Path) -> None:
    sizes = [([8, 2, 1], [128, 1, 1]), ([4, 1, 1], [256, 1, 1]), ([8, 2, 1], [128, 1, 1])]
    found = read(tmp_path / "rank0.json", *(kernel(10 * at, grid=grid, block=block) for at, (grid, block) in enumerate(sizes)))

    assert found.ops.shape.tolist() == [0, 1, 0]
    assert found.shapes == (((8, 2, 1), (128, 1, 1)), ((4, 1, 1), (256, 1, 1)))


@pytest.mark.parametrize("grid", [[8, 2], [8, 2, 0], [8, 2, -1], [8, 2, "1"], "8x2x1", {"x": 8}, None, [1 << 40, 1, 1], 1.5])
def test_a_grid_that_is_not_three_positive_numbers_is_unknown(tmp_path: Path, grid: Any) -> None:
    found = read(tmp_path / "rank0.json", kernel(10, grid=grid, block=[128, 1, 1]), kernel(20, grid=[1, 1, 1], block=[32, 1, 1]))

    assert found.ops.shape.tolist() == [-1, 0]


def test_ranks_read_together_point_to_one_list_of_shapes(tmp_path: Path) -> None:
    one = read(tmp_path / "rank0.json", kernel(10, grid=[1, 1, 1], block=[32, 1, 1]), kernel(20))
    other = read(
        tmp_path / "rank1.json", kernel(10, grid=[2, 1, 1], block=[32, 1, 1]), kernel(20, grid=[1, 1, 1], block=[32, 1, 1])
    )

    both = concatenate([one, other])

    assert both.shapes == (((1, 1, 1), (32, 1, 1)), ((2, 1, 1), (32, 1, 1)))
    assert both.ops.shape.tolist() == [0, -1, 1, 0]


@pytest.mark.parametrize(
    ("name", "kernels", "shapes"),
    [
        ("recsys_a100", 8568, 332),
        ("ddp_a100", 2700, 122),
        ("ddp_mi300x", 2238, 81),
        ("nsys_2gpu/mfu_2gpu_before.sqlite", 4010, 28),
    ],
)
def test_real_traces_have_a_shape_for_each_kernel_that_states_one(name: str, kernels: int, shapes: int) -> None:
    found = underlap.read(TRACES / name)

    assert int((found.ops.shape >= 0).sum()) == kernels
    assert len(found.shapes) == shapes == len(np.unique(found.ops.shape[found.ops.shape >= 0]))


def test_cpu_ranks_have_no_shapes() -> None:
    found = underlap.read(TRACES / "gloo_2ranks/ovl_rank0.json.gz")

    assert found.shapes == ()
    assert (found.ops.shape == -1).all()
