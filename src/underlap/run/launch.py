"""The ranks of one machine: started by torch.multiprocessing, watched, and gone before this returns, whatever happens.

torch's elastic launcher gives a rank that hangs 30 s before it kills it, which is longer than the timeouts here; so its
processes are used, but not its agent. Under torchrun or srun nothing is started: see `place_in_job`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as processes

from underlap.errors import RunError, UnderlapError
from underlap.run.session import Session

GRACE_S = 1.5
"""What the others get to say what they saw, once one rank has failed."""

Entry = Callable[[Session, Any], None]
"""What a rank does. It must be importable by name; its argument must be picklable."""

_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """How to start ranks on this machine."""

    ranks: int
    timeout_s: float
    """Of every meeting and collective."""
    address: str = "127.0.0.1"
    """Of the store, which this process holds, as the ranks and this process reach it."""
    port: int = 0
    """Of the store; 0: any that is free."""
    at_switch: Callable[[Callable[[], Any]], Any] | None = None
    """Gives what a function gives that is called where the store's address is, if that is another network than this process's."""
    on_start: Callable[[list[int]], None] | None = None
    """Told the process ids, by rank."""
    enter: Callable[[int], None] | None = None
    """Called in each started process with its rank before anything else, so before a socket is open. Picklable."""


def launch(entry: Entry, arguments: list[Any], how: Local) -> None:
    """Run `entry` with arguments[rank] on each rank. Raises RunError with the rank that failed and why; no process is left."""
    with tempfile.TemporaryDirectory(prefix="underlap-run-") as folder:
        store = how.at_switch(lambda: _store(how)) if how.at_switch is not None else _store(how)
        context = processes.start_processes(
            _rank,
            args=(entry, arguments, store.port, how, folder),
            nprocs=how.ranks,
            join=False,
            start_method="spawn",
        )
        try:
            if how.on_start is not None:
                how.on_start([process.pid for process in context.processes])
            _watch(context.processes, how, Path(folder))
        finally:
            _end(context.processes)


def _store(how: Local) -> Any:
    """The store lives here rather than in rank 0, so that it outlasts the ranks and its port cannot be taken in between."""
    try:
        return dist.TCPStore(
            how.address, how.port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=how.timeout_s)
        )
    except (RuntimeError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise RunError(
                f"port {how.port} is in use: name another one with --port, or leave it out for any that is free"
            ) from None
        raise RunError(f"no store at port {how.port}: {_first_line(error)}") from None


def _rank(rank: int, entry: Entry, arguments: list[Any], port: int, how: Local, folder: str) -> None:
    """A started process."""
    # The parent ends its ranks; a Ctrl-C that reaches all of them must not make each say so. If the parent dies, so do they.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _asked_to_end)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    session: Session | None = None
    try:
        if how.enter is not None:
            how.enter(rank)
        store = dist.TCPStore(how.address, port, is_master=False, timeout=timedelta(seconds=how.timeout_s))
        limit_threads()
        session = Session(store, rank, how.ranks, how.timeout_s)
        entry(session, arguments[rank])
    except BaseException as error:  # noqa: BLE001 - handed to the parent, which raises it
        _hand_in(Path(folder), rank, session, error)
        sys.stderr.flush()
        # Destructors of process groups wait for peers that may be gone.
        os._exit(1)


def _asked_to_end(*_: object) -> None:
    """Leave by an error, so that the record so far is kept."""
    raise RunError("asked to end")


def limit_threads() -> None:
    """One core per rank for products, as ranks share the machine."""
    import torch

    # What waits for the interpreter - the note that a collective is done - gets it soon.
    sys.setswitchinterval(0.0005)
    # Said here, as the environment is read when torch is loaded, which may have been before it was changed. Two threads on one
    # core would wait for each other, with a priority of the system's a whole share of its time.
    given = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(given) if given.isdecimal() and int(given) else 1)


def _hand_in(folder: Path, rank: int, session: Session | None, error: BaseException) -> None:
    ours = isinstance(error, UnderlapError)
    doing = session.doing if session else "starting"
    text = str(error) if ours else f"{type(error).__name__}: {_first_line(error)}"
    note = {
        "ours": ours,
        "usage": ours and not isinstance(error, RunError),
        "doing": doing,
        "text": text,
        "timed_out": "imed out" in str(error) or "timeout" in str(error).lower(),
        "lost": any(word in str(error) for word in ("closed by peer", "reset by peer", "Broken pipe", "Connection refused")),
    }
    with contextlib.suppress(OSError):
        (folder / f"rank{rank}.json").write_text(json.dumps(note))


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


# ---- watching


def _watch(ranks: list[Any], how: Local, folder: Path) -> None:
    """Return once all have ended well; raise RunError soon after one has not."""
    failed_at: float | None = None
    first_bad: int | None = None
    while True:
        alive = [process for process in ranks if process.exitcode is None]
        bad = [rank for rank, process in enumerate(ranks) if process.exitcode not in (None, 0)]
        if bad and failed_at is None:
            failed_at, first_bad = time.monotonic(), bad[0]
        if not alive or (failed_at is not None and time.monotonic() - failed_at > GRACE_S):
            break
        wait([process.sentinel for process in alive], timeout=0.1)
    if first_bad is not None:
        raise _blamed(ranks, folder, how)


def _blamed(ranks: list[Any], folder: Path, how: Local) -> UnderlapError:
    """The error that tells most: a rank that was killed, one with a reason of its own, one that did not answer."""
    notes: dict[int, dict[str, Any]] = {}
    for rank in range(len(ranks)):
        path = folder / f"rank{rank}.json"
        if path.exists():
            notes[rank] = json.loads(path.read_text())
    killed = [(rank, -process.exitcode) for rank, process in enumerate(ranks) if (process.exitcode or 0) < 0]
    if killed:
        rank, number = killed[0]
        seen = "".join(f"; rank {other} was {note['doing']}" for other, note in notes.items())
        return RunError(f"rank {rank} was killed by {signal.Signals(number).name}{seen}")
    own = [(rank, note) for rank, note in notes.items() if note["ours"]]
    if own:
        rank, note = own[0]
        text = note["text"] if note["text"].startswith("rank ") else f"rank {rank}: {note['text']}"
        return UnderlapError(text) if note["usage"] else RunError(text)
    silent = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
    timed_out = [(rank, note) for rank, note in notes.items() if note["timed_out"]]
    if silent and timed_out:
        waiting, note = timed_out[0]
        named = ", ".join(map(str, silent))
        return RunError(f"rank {named} did not answer within {how.timeout_s:g} s: rank {waiting} was {note['doing']}")
    fresh = [(rank, note) for rank, note in notes.items() if not note["lost"]] or list(notes.items())
    if fresh:
        rank, note = fresh[0]
        return RunError(f"rank {rank}: {note['text']} (while {note['doing']})")
    codes = ", ".join(f"rank {rank}: {process.exitcode}" for rank, process in enumerate(ranks))
    return RunError(f"a rank ended without a word: exit codes {codes}")


def _end(ranks: list[Any]) -> None:
    """No process is left: asked first, and killed if it does not listen (one that is stopped cannot)."""
    for process in ranks:
        if process.exitcode is None:
            process.terminate()
    deadline = time.monotonic() + 1.0
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join(5)


# ---- in a job that others started


def place_in_job(environment: dict[str, str]) -> tuple[int, int] | None:
    """(rank, world) where torchrun or srun started this process, else None."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return int(environment["RANK"]), int(environment["WORLD_SIZE"])
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        return int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
    return None


@contextlib.contextmanager
def joined(rank: int, world: int, timeout_s: float) -> Iterator[Session]:
    """This process's place in a job: MASTER_ADDR and MASTER_PORT name the store. Raises RunError where nobody answers."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise RunError(f"rank {rank}: {name} is not set: expected the address of rank 0, as torchrun sets it")
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("WORLD_SIZE", str(world))
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world, timeout=timedelta(seconds=timeout_s))))
    except (RuntimeError, OSError) as error:
        raise RunError(f"rank {rank} found no store: {_first_line(error)}") from None
    limit_threads()
    session = Session(store, rank, world, timeout_s)
    try:
        yield session
    except UnderlapError:
        raise
    except RuntimeError as error:
        raise RunError(f"rank {rank}: {_first_line(error)} (while {session.doing})") from None
