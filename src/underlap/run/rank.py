"""A started rank: `python -m underlap.run.rank START LOG PARENT` does what START says, and leaves a reason where it fails.

Nothing heavy is imported before the process is tied to the life of its parent: loading torch takes seconds, in which a parent
can be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underlap.errors import RunError, UnderlapError

if TYPE_CHECKING:
    from underlap.run.session import Session

START_S = 120.0
"""What ranks of one machine wait for another to be loaded: on a busy one torch takes a quarter of a minute."""

LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "Connection was likely closed")
"""What gloo and the store say where another process is gone."""

_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a started process is told."""

    entry: Callable[[Session, Any], None]
    argument: Any
    rank: int
    ranks: int
    timeout_s: float
    address: str
    port: int


def write(path: Path, start: Start, enter: Callable[[int], None] | None) -> None:
    """The file that `main` reads. What a rank enters comes first, as the rest loads torch."""
    with path.open("wb") as stream:
        pickle.dump((start.rank, enter), stream)
        pickle.dump(start, stream)


def main(path: str, log: str, parent: int) -> None:
    """The process. It never returns: destructors of process groups would wait for peers that may be gone."""
    # Its parent ends it; a Ctrl-C is not for it. If the parent dies, so does it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    # Written by C++ as well, so below Python.
    with Path(log).open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    with Path(path).open("rb") as stream:
        rank, enter = pickle.load(stream)  # noqa: S301 - the parent wrote it, into a folder of its own
        if enter is not None:
            enter(rank)
        start: Start = pickle.load(stream)  # noqa: S301  # written by the process that started this one
    from torch.distributed.elastic.multiprocessing.errors import record

    told = _Told()
    code = 1
    with contextlib.suppress(Exception):  # told in the error file
        record(_run, told)(start, told)
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with_parent(parent: int) -> None:
    """On Linux this process is killed when the one that started it ends, or now if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _run(start: Start, told: _Told) -> None:
    import torch.distributed as dist

    from underlap.run.session import Session

    signal.signal(signal.SIGTERM, asked_to_end)
    store = dist.TCPStore(start.address, start.port, is_master=False, timeout=timedelta(seconds=start.timeout_s))
    limit_threads()
    # From here on a rank that is late is at fault, and not its import of torch.
    store.set(f"started/{start.rank}", "")
    store.wait([f"started/{rank}" for rank in range(start.ranks)], timedelta(seconds=START_S))
    told.session = Session(store, start.rank, start.ranks, start.timeout_s)
    start.entry(told.session, start.argument)


def asked_to_end(*_: object) -> None:
    """Leave by an error, so that the record so far is kept; only once, as keeping it must not be cut off."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise RunError("asked to end")


def limit_threads() -> None:
    """One core per rank for products, as ranks share the machine."""
    import torch

    # What waits for the interpreter - the note that a collective is done - gets it soon.
    sys.setswitchinterval(0.0005)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


class _Told:
    """What torch's `record` calls: the error file has torch's form, and beside it what tells which rank is to blame."""

    def __init__(self) -> None:
        self.session: Session | None = None

    def initialize(self) -> None:
        """Nothing: torch's own prints the stack of every thread after a signal, over what C++ said last."""

    def record_exception(self, error: BaseException) -> None:
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if not path:
            return
        note = note_of(self.session, error)
        extra = {"timestamp": str(int(time.time())), "underlap": note}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": note["text"], "extraInfo": extra}}))


def note_of(session: Session | None, error: BaseException) -> dict[str, Any]:
    """What one rank knows of its failure: the text, and which kind it is."""
    ours = isinstance(error, UnderlapError)
    said = str(error)
    return {
        "ours": ours,
        "usage": ours and not isinstance(error, RunError),
        "doing": session.doing if session else "starting",
        "text": said if ours else f"{type(error).__name__}: {first_line(error)}",
        "timed_out": "imed out" in said or "timeout" in said.lower(),
        "lost": any(word in said for word in LOST),
        "asked": ours and said == "asked to end",
    }


def first_line(error: BaseException) -> str:
    """Of a message of torch, which can have a page of C++ behind it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
