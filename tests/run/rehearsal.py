"""Stands in for a GPU: streams and events that note what is asked of them; all is done at once, on the host's clock."""

from __future__ import annotations

import contextlib
import dataclasses
import time
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
    """When it was last recorded."""


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
        event.at = time.monotonic_ns()
        self.log.append(("record", stream.number, event.number))

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        assert event.at is not None, "waited for before it is recorded"
        self.log.append(("wait", stream.number, event.number))

    def stamp(self, mark: FakeEvent) -> None:
        assert mark.timed
        mark.at = time.monotonic_ns()
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
            found.append(mark.at - reference.at)
        return found

    def captured(self, stream: FakeStream, body: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        began = time.monotonic_ns()
        self.log.append(("capture", stream.number, self.captures))
        with self.on(stream):
            body()
        self.log.append(("captured", stream.number, self.captures))
        marks = [(event, event.at - began) for event in self.events if event.timed and event.at and event.at >= began]

        def launched() -> None:
            self.log.append(("launch", self.current[-1], self.captures))
            now = time.monotonic_ns()
            for mark, after in marks:
                mark.at = now + after

        return launched


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


class Posted:
    """Sends that the host does not wait for, as with NCCL: gloo's wait would hold it until the receiver comes."""

    def __init__(self) -> None:
        self.send, self.kept = dist.isend, []

    def __call__(self, tensor: Any, **how: Any) -> Posted:
        copy = tensor.clone()
        self.kept.append((copy, self.send(copy, **how)))
        return self

    def wait(self) -> None:
        """The stream would."""

    def settle(self) -> None:
        """Wait for all of them."""
        for _, work in self.kept:
            work.wait()
        self.kept.clear()
