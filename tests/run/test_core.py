"""How long a rank's core did nothing for anybody here, as the system tells it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from underlap.run import core
from underlap.run.core import Core

LINES = "cpu  1 2 3 4 5 6 7 8\ncpu0 10 20 30 400 50 0 0 7 0 0\ncpu11 10 20 30 700 0 0 0 0 0 0\nintr 5\n"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stat = tmp_path / "stat"
    stat.write_text(LINES)
    monkeypatch.setattr(core, "STAT", stat)
    return stat


def test_a_core_does_nothing_while_something_waits_for_a_disk_and_while_another_machine_has_it(told: Path) -> None:
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert Core(0).unused() == (450 * tick, 7 * tick)
    assert Core(11).unused() == (700 * tick, 0)


def test_a_core_that_the_system_does_not_list_is_unknown_and_not_busy(told: Path) -> None:
    assert Core(1).unused() is None


@pytest.mark.skipif(sys.platform != "linux", reason="affinities are Linux's")
def test_a_process_that_may_use_several_cores_has_none_of_its_own(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.os, "sched_getaffinity", lambda _: {0, 11})
    assert Core.own() is None
    monkeypatch.setattr(core.os, "sched_getaffinity", lambda _: {11})
    own = Core.own()
    assert own is not None
    assert own.number == 11
    told.unlink()
    assert Core.own() is None
