"""The bar on standard error: only for someone who waits and looks."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from tests.render.hand_written import HOSTILE
from underlap.cli import progress
from underlap.cli.progress import ReadingBar, reading_bar


@dataclasses.dataclass
class State:
    file: str
    done_bytes: int
    total_bytes: int


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(state, patience_s):
    stream = Terminal()
    bar = ReadingBar(Console(file=stream, force_terminal=True, width=100, color_system=None), patience_s=patience_s)
    bar(state)
    bar.close()
    return stream.getvalue()


def test_quick_work_shows_no_bar():
    assert drawn(State("a.json", 1, 2), 60) == ""


def test_slow_work_shows_the_file_and_how_much_of_all_bytes():
    text = drawn(State("a.json", 500_000, 1_000_000), 0)
    assert "a.json [############............] 50 % of 1.00 MB" in text


def test_an_empty_file_or_a_growing_one_is_no_trouble():
    assert "0 % of 0 B" in drawn(State("a.json", 0, 0), 0)
    assert "100 % of 1 B" in drawn(State("a.json", 9, 1), 0)


def test_a_file_name_cannot_bring_escapes_or_markup():
    text = drawn(State(HOSTILE, 1, 2), 0)
    assert "\x1b]0" not in text
    assert text.isascii()


def test_no_terminal_or_no_wish_means_no_bar(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    with reading_bar(wanted=True) as bar:
        assert bar is None
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    with reading_bar(wanted=False) as bar:
        assert bar is None
    with reading_bar(wanted=True) as bar:
        assert isinstance(bar, ReadingBar)


def test_the_bar_goes_away_when_reading_fails(monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    bars = []

    def read():
        with reading_bar(wanted=True) as bar:
            bars.append(bar)
            bar._due = 0
            bar(State("a.json", 1, 2))
            assert bar._bar.live.is_started
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        read()
    assert not bars[0]._bar.live.is_started
