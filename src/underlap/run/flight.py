"""One collective under way: its works, when it began and ended, and what is left to do once it has."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from underlap.run.machine import Closure

now_ns = time.monotonic_ns


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return int(tensor.numel() * tensor.element_size())


@dataclasses.dataclass(slots=True)
class Flight:
    """A collective under way, or done."""

    begun_ns: int
    """Right before the library was called: a thread of it may begin at once, while the caller is held up for its core."""
    works: list[Any]
    payload_bytes: int
    finish: Closure | None
    done_ns: int = 0
    """When the last of its works ended; 0 while it is under way."""

    def wait(self) -> None:
        """Return once all of it is done; what came is then where it belongs."""
        for work in self.works:
            work.result() if isinstance(work, Future) else work.wait()
        # The note may come later than this, as it needs the interpreter; where it came before, it stands.
        waited = now_ns()
        self.done_ns = min(self.done_ns or waited, waited)
        if self.finish is not None:
            self.finish()

    def watch(self, watchers: ThreadPoolExecutor) -> None:
        """Note the moment at which it is done. Messages of gloo do not tell: a thread waits for each."""
        left = len(self.works)

        def done(_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not self.done_ns:
                self.done_ns = now_ns()

        for at, work in enumerate(self.works):
            try:
                work.get_future().add_done_callback(done)
            except RuntimeError:
                self.works[at] = watchers.submit(work.wait)
                self.works[at].add_done_callback(done)
