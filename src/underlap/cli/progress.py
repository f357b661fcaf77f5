"""How far the reading of traces is, on standard error: only on a terminal, and only once it takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from underlap.render.plain import clean, shorten, size

if TYPE_CHECKING:
    from rich import progress
    from rich.console import Console

    from underlap.flows.read import Progress

PATIENCE_S = 1.0
BAR = 24


class ReadingBar:
    """A bar that appears after a while, and disappears when the reading is done."""

    def __init__(self, console: Console, *, patience_s: float = PATIENCE_S) -> None:
        self._console = console
        self._due = time.monotonic() + patience_s
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None

    def __call__(self, state: Progress) -> None:
        if self._bar is None:
            if time.monotonic() < self._due:
                return
            self._start()
        assert self._bar is not None
        assert self._task is not None
        share = min(1.0, state.done_bytes / state.total_bytes) if state.total_bytes else 0.0
        drawn = "#" * int(BAR * share)
        text = f"{shorten(clean(state.file), 32)} [{drawn:.<{BAR}}] {100 * share:.0f} % of {size(state.total_bytes)}"
        self._bar.update(self._task, description=text)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        from rich import progress

        columns = (progress.TextColumn("{task.description}", markup=False), progress.TimeElapsedColumn())
        self._bar = progress.Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()


@contextmanager
def reading_bar(*, wanted: bool) -> Iterator[ReadingBar | None]:
    """A callback for the reader, or None where a bar is not wanted or nobody looks at standard error."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    bar = ReadingBar(Console(stderr=True, highlight=False))
    try:
        yield bar
    finally:
        bar.close()
