"""Where instructions run: one after the other on the host, or each on the stream and behind the events that `streams` chose.

Nothing is decided here. `Calls` is all that is asked of a device; tests put plain objects in its place.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Protocol

from underlap.plan import OpKind
from underlap.run.machine import Closure
from underlap.run.streams import BEGIN, StreamPlan
from underlap.run.times import DeviceTimes


class Calls(Protocol):
    """A device's streams and events."""

    def stream(self, priority: int) -> Any:
        """A new one."""

    def event(self) -> Any:
        """A new one that orders streams."""

    def mark(self) -> Any:
        """A new one that has a time."""

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """What is called inside is put on the stream."""

    def record(self, event: Any, stream: Any) -> None:
        """The event has happened once all that is on the stream has ended."""

    def wait(self, stream: Any, event: Any) -> None:
        """What is put on the stream from now on begins after the event."""

    def stamp(self, mark: Any) -> None:
        """Record a mark on the stream that calls are put on."""

    def lend(self, tensor: Any, stream: Any) -> None:
        """The tensor's memory is not given to another before the stream has done what it has now."""

    def synchronize(self) -> None:
        """Return once the device has done everything."""

    def times_ns(self, reference: Any, marks: list[Any]) -> list[int]:
        """From the reference to each mark."""

    def captured(self, stream: Any, body: Closure) -> Closure:
        """What the body puts on streams, as one graph; the function launches it."""


class Lanes(Protocol):
    """Puts closures where they run, and tells when they did."""

    watched: bool
    """Whether a step is timed."""

    def bound(self, at: int, closure: Closure) -> Closure:
        """The closure, on its lane, behind what it has to wait for."""

    def step(self, body: Closure) -> None:
        """Carry out a step, and return once it is done."""

    def times(self) -> DeviceTimes | None:
        """When the instructions of the last step ran on the device."""

    def release(self) -> None:
        """Drop graphs. Before the process groups go, as a graph holds on to its communicators."""


class HostLanes:
    """One thread."""

    def __init__(self) -> None:
        self.watched = False

    def bound(self, at: int, closure: Closure) -> Closure:
        """The closure as it is."""
        del at
        return closure

    def step(self, body: Closure) -> None:
        """One after the other."""
        body()

    def times(self) -> None:
        """The host's clock has them."""
        return

    def release(self) -> None:
        """There is none."""


class StreamLanes:
    """Streams of a device."""

    def __init__(self, plan: StreamPlan, calls: Calls) -> None:
        self.plan, self.calls = plan, calls
        self.streams = [calls.stream(each.priority) for each in plan.streams]
        self.events = [calls.event() for _ in range(plan.events)]
        size = len(plan.placed)
        self.begun, self.ended = [calls.mark() for _ in range(size)], [calls.mark() for _ in range(size)]
        self.reference = calls.mark()
        self.reference_ns, self.uncertainty_ns = 0, 0
        self.watched = False
        self.graph: Closure | None = None
        self.launched_ns = (0, 0)

    @property
    def root(self) -> Any:
        """The stream that a step begins and ends on."""
        return self.streams[0]

    def stream_of(self, at: int) -> Any:
        """That of the at-th instruction."""
        return self.streams[self.plan.placed[at].stream]

    def bound(self, at: int, closure: Closure) -> Closure:
        """Waits of its stream, a mark, what it puts there, a mark, the event that others wait for."""
        calls, placed, stream = self.calls, self.plan.placed[at], self.stream_of(at)
        waits = [self.events[event] for event in placed.waits]
        event = self.events[placed.event] if placed.event >= 0 else None
        # A wait of the plan lasts from when its lane gets there until the event. What a computation waits for is no part of
        # it, nor is packing one of a collective: its issue calls `begins` and `ends`.
        # To change streams takes the host microseconds; a step begins on the root.
        there = contextlib.nullcontext if placed.stream == 0 else lambda: calls.on(stream)
        early, late = placed.kind == OpKind.WAIT, placed.kind in (OpKind.COMPUTE, OpKind.COPY)

        def run() -> None:
            with there():
                if early:
                    self.begins(at)
                for one in waits:
                    calls.wait(stream, one)
                if late:
                    self.begins(at)
                closure()
                if early or late:
                    self.ends(at)
                if event is not None:
                    calls.record(event, stream)

        return run

    def begins(self, at: int) -> None:
        """Mark that the at-th instruction begins, on the stream that calls are put on."""
        if self.watched:
            self.calls.stamp(self.begun[at])

    def ends(self, at: int) -> None:
        """Mark that it ends."""
        if self.watched:
            self.calls.stamp(self.ended[at])

    def step(self, body: Closure) -> None:
        """Fork from the root, carry out, join to the root; launch the graph instead where there is one."""
        self.calls.synchronize()
        earliest = time.monotonic_ns()
        with self.calls.on(self.root):
            self.calls.stamp(self.reference)
        self.calls.synchronize()
        latest = time.monotonic_ns()
        # Somewhere in between the device passed the mark.
        self.reference_ns, self.uncertainty_ns = (earliest + latest) // 2, (latest - earliest + 1) // 2
        if self.graph is not None:
            called = time.monotonic_ns()
            with self.calls.on(self.root):
                self.graph()
            self.launched_ns = (called, time.monotonic_ns())
        else:
            self._forked(body)
        self.calls.synchronize()

    def _forked(self, body: Closure) -> None:
        with self.calls.on(self.root):
            self.calls.record(self.events[BEGIN], self.root)
            body()
            for event in self.plan.joins:
                self.calls.wait(self.root, self.events[event])

    def capture(self, body: Closure) -> None:
        """Make one graph of a step: from now on `step` launches it. Everything that it uses has run before."""
        self.watched = True  # marks are part of the graph
        self.calls.synchronize()
        self.graph = self.calls.captured(self.root, lambda: self._forked(body))

    def times(self) -> DeviceTimes:
        """On the host's clock, to within `uncertainty_ns`."""
        begin = self.calls.times_ns(self.reference, self.begun)
        end = self.calls.times_ns(self.reference, self.ended)
        return DeviceTimes(
            begin_ns=[self.reference_ns + value for value in begin],
            end_ns=[self.reference_ns + value for value in end],
            lanes=[self.plan.lane_of(at) for at in range(len(begin))],
            uncertainty_ns=self.uncertainty_ns,
            reference_ns=self.reference_ns,
            graph=self.graph is not None,
            launched_ns=self.launched_ns,
        )

    def release(self) -> None:
        """Drop the graph."""
        self.calls.synchronize()
        self.graph = None
