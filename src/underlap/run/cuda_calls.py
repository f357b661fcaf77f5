"""`Calls` of a GPU: each a line of torch.cuda. Only a machine with a GPU can run this file."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from underlap.run.machine import Closure


class CudaCalls:
    """Streams and events of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self, priority: int) -> Any:
        """A new one."""
        return torch.cuda.Stream(self.device, priority=priority)

    def event(self) -> Any:
        """A new one that orders streams."""
        return torch.cuda.Event()

    def mark(self) -> Any:
        """A new one that has a time. External: in a graph it is recorded anew by each launch."""
        return torch.cuda.Event(enable_timing=True, external=True)

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """What is called inside is put on the stream."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def record(self, event: Any, stream: Any) -> None:
        """The event has happened once all that is on the stream has ended."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """What is put on the stream from now on begins after the event."""
        stream.wait_event(event)

    def stamp(self, mark: Any) -> None:
        """Record a mark on the current stream."""
        mark.record()

    def lend(self, tensor: torch.Tensor, stream: Any) -> None:
        """The tensor's memory is not given to another before the stream has done what it has now."""
        tensor.record_stream(stream)

    def synchronize(self) -> None:
        """Return once the device has done everything."""
        torch.cuda.synchronize(self.device)

    def times_ns(self, reference: Any, marks: list[Any]) -> list[int]:
        """From the reference to each mark. torch gives milliseconds in single precision: 60 ns at one second."""
        return [round(reference.elapsed_time(mark) * 1e6) for mark in marks]

    def captured(self, stream: Any, body: Closure) -> Closure:
        """What the body puts on streams, as one graph. Other threads (NCCL's watchdog) may go on calling CUDA meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            body()
        replay: Closure = graph.replay
        return replay
