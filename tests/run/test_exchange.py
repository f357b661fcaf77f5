"""Between two ranks each direction goes over a group of its own: what comes is what the library's own exchanges bring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from tests.run import exchanging
from underlap.run.launch import Local, launch


def test_exchanges_of_two_ranks_bring_what_the_library_brings_also_of_no_rows(tmp_path: Path) -> None:
    out = tmp_path / "same.json"
    launch(exchanging.compared, [out] * 2, Local(ranks=2, timeout_s=30))
    found = json.loads(out.read_text())
    assert found == [[True] * (len(exchanging.ROWS) + 2)] * 2
