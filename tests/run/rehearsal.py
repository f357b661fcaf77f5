"""Stands in for a GPU: streams and events that note what is asked of them, and compute on the CPU at once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from underlap.run.backend import Streams


@dataclasses.dataclass
class FakeStream:
    number: int
    priority: int


@dataclasses.dataclass
class FakeEvent:
    number: int
    timed: bool = False
    at: int | None = None
    """The moment at which it was last recorded: the length of the log."""


class FakeCalls:
    """`Calls` that keeps a log of tuples: (what, stream, event)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []
        self.streams: list[FakeStream] = []
        self.events: list[FakeEvent] = []
        self.current: list[int] = []
        self.lent: list[tuple[int, int]] = []
        self.captures = 0

    def stream(self, priority: int) -> FakeStream:
        self.streams.append(FakeStream(len(self.streams), priority))
        return self.streams[-1]

    def event(self) -> FakeEvent:
        self.events.append(FakeEvent(len(self.events)))
        return self.events[-1]

    def mark(self) -> FakeEvent:
        self.events.append(FakeEvent(len(self.events), timed=True))
        return self.events[-1]

    @contextlib.contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        self.current.append(stream.number)
        yield
        self.current.pop()

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        event.at = len(self.log)
        self.log.append(("record", stream.number, event.number))

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        assert event.at is not None, "waited for before it is recorded"
        self.log.append(("wait", stream.number, event.number))

    def stamp(self, mark: FakeEvent) -> None:
        assert mark.timed
        mark.at = len(self.log)
        self.log.append(("stamp", self.current[-1], mark.number))

    def lend(self, tensor: Any, stream: FakeStream) -> None:
        self.lent.append((tensor.data_ptr(), stream.number))

    def synchronize(self) -> None:
        self.log.append(("synchronize", -1, -1))

    def times_ns(self, reference: FakeEvent, marks: list[FakeEvent]) -> list[int]:
        assert reference.at is not None
        found = []
        for mark in marks:
            assert mark.at is not None, "never recorded"
            found.append((mark.at - reference.at) * 1000)
        return found

    def captured(self, stream: FakeStream, body: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        self.log.append(("capture", stream.number, self.captures))
        with self.on(stream):
            body()
        self.log.append(("captured", stream.number, self.captures))
        return lambda: self.log.append(("launch", self.current[-1], self.captures))


class Rehearsal(Streams):
    """The backend of a GPU, with streams that note and gloo (or a library that sends nothing) in place of NCCL."""

    def __init__(self, library: str = "gloo") -> None:
        super().__init__(torch.device("cpu"), FakeCalls())
        self.carried_by = library
        self.made: list[tuple[str, tuple[int, ...], int | None, bool]] = []

    @property
    def fake(self) -> FakeCalls:
        assert isinstance(self.calls, FakeCalls)
        return self.calls

    def group(self, ranks: tuple[int, ...], name: str, ctas: int | None, *, alone: bool, timeout_s: float) -> Any:
        self.made.append((name, tuple(ranks), ctas, alone))
        return dist.new_group(
            list(ranks),
            backend=self.carried_by,
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=alone,
            group_desc=name,
        )
