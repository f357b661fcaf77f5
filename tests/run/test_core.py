"""What a rank's core was busy with, as the system tells it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from underlap.run import core
from underlap.run.core import Core

LINES = "cpu  1 2 3 4 5 6 7 8\ncpu0 10 20 30 400 50 2 3 7 0 0\ncpu11 10 20 30 700 0 0 0 0 0 0\nintr 5\n"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stat = tmp_path / "stat"
    stat.write_text(LINES)
    monkeypatch.setattr(core, "STAT", stat)
    return stat


def test_a_core_is_idle_while_something_waits_for_a_disk_and_has_the_programs_of_all_priorities(told: Path) -> None:
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    first = Core(0).spent()
    assert first == (450 * tick, 30 * tick, 7 * tick)
    assert Core(11).spent() == (700 * tick, 30 * tick, 0)
    told.write_text(LINES.replace("cpu0 10 20 30 400 50 2 3 7", "cpu0 11 21 30 410 50 2 3 9"))
    later = Core(0).spent()
    assert first is not None
    assert later is not None
    assert later.since(first) == (10 * tick, 2 * tick, 2 * tick)


def test_a_core_that_the_system_does_not_list_is_unknown_and_not_busy(told: Path) -> None:
    assert Core(1).spent() is None


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
