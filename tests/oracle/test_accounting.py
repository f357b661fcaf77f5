"""The slice walk itself: figures counted by hand, and that it owes nothing to the product."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.oracle.accounting import Row, account, whole

REDUCE, GATHER = ("dp", "all_reduce"), ("tp", "all_gather")
ROWS = [
    Row("compute", 0, 10),
    Row("communication", 5, 20, REDUCE),
    Row("communication", 12, 19, GATHER),
    Row("fused", 18, 30, REDUCE),
    Row("copy", 25, 40),
]


def test_nothing_in_a_window_is_idle() -> None:
    found = account([], [(0, 9)])

    assert (found.wall, found.parts["idle"], found.families) == (9, 9, {})


def test_a_mixed_device_has_the_figures_counted_by_hand() -> None:
    found = account(ROWS, whole(ROWS))

    assert found.wall == 40
    assert found.parts == {
        "compute": 10,
        "fused": 12,
        "communication": 15,
        "hidden": 5,
        "under_fused": 2,
        "exposed": 8,
        "copy": 10,
        "idle": 0,
    }
    # 10 to 12 alone, 12 to 18 in two.
    assert found.families[REDUCE] == {
        "communication": 15,
        "hidden": 5,
        "under_fused": 2,
        "exposed": 8,
        "exposed_share": 2 + 3,
        "fused": 12,
    }
    assert found.families[GATHER]["exposed_share"] == 3


def test_stretches_cut_what_they_count() -> None:
    found = account(ROWS, [(4, 6), (14, 17)])

    assert (found.wall, found.parts["compute"], found.parts["communication"], found.parts["exposed"]) == (5, 2, 4, 3)
    assert (found.families[REDUCE]["exposed_share"], found.families[GATHER]["exposed_share"]) == (2, 1)


def test_an_odd_nanosecond_goes_to_the_family_that_has_been_running_longer() -> None:
    rows = [Row("communication", 0, 4, GATHER), Row("communication", 2, 3, REDUCE), Row("communication", 4, 9, GATHER)]
    found = account([*rows, Row("communication", 5, 8, REDUCE)], [(2, 3), (5, 8)])

    # The gather's two touching intervals are one, which began at 0.
    assert (found.families[GATHER]["exposed_share"], found.families[REDUCE]["exposed_share"]) == (1 + 2, 0 + 1)


def test_the_slice_walk_imports_nothing_of_the_product() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in imports for alias in node.names} | {getattr(node, "module", "") for node in imports}

        assert not any(str(name).partition(".")[0] in ("underlap", "numpy") for name in names)
