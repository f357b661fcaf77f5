"""The ranks of one machine: started by torch's elastic processes, watched, and gone before this returns, whatever happens.

Why not the elastic agent (`elastic_launch`, torchrun): once a rank has failed it waits 30 s for one that hangs, whatever its
`shutdown_timeout` says, as its `PContext.wait` closes without one (torch 2.13: 30.0 s after the failure beside a stopped rank;
`close(timeout=1)` takes 1.0 s). So `start_processes` with its sessions and error files is used, and its `wait` is not.
Under torchrun or srun nothing is started: see `place_in_job`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from underlap.errors import DisagreementError, OptionError, RunError, ToldElsewhereError, UnderlapError
from underlap.run.rank import Start, asked_to_end, end_with_parent, first_line, limit_threads, note_of, write
from underlap.run.session import Session

GRACE_S = 2.0
"""What the others get to say what they saw, once one rank has failed."""

JOB_GRACE_S = 5.0
"""The same in a job, where one that is slow to say it would say it once more."""

END_S = 4.0
"""What a rank gets to keep its record, once it is asked to end."""

PROGRESS = ("underlap run: ", "underlap calibrate: ")
"""How lines of rank 0 begin that are for the user. Others stay in its log."""

Entry = Callable[[Session, Any], None]
"""What a rank does. It must be importable by name; its argument must be picklable."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What torch's processes turn into a SignalException."""


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
    with tempfile.TemporaryDirectory(prefix="underlap-run-") as name, _signals() as before:
        folder, context, progress = Path(name), None, None
        try:
            store = how.at_switch(lambda: _store(how)) if how.at_switch is not None else _store(how)
            context = _started(entry, arguments, how, store.port, folder)
            # What is ignored on purpose (nohup, a shell's background) stays ignored.
            _on_signals(signal.SIG_IGN, *(number for number, handler in before.items() if handler is signal.SIG_IGN))
            progress = TailLog("rank", {0: str(_log(folder, 0))}, sys.stderr, {0: ""}, log_line_filter=_for_the_user).start()
            ranks = [context.subprocess_handlers[rank].proc for rank in range(how.ranks)]
            if how.on_start is not None:
                how.on_start([process.pid for process in ranks])
            _watch(ranks)
            _judge(ranks, context.error_files, how, folder)
        except SignalException as asked:
            if asked.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise RunError(f"ended by {asked.sigval.name}") from None
        finally:
            # The end is bounded: whoever asks again in the meantime gets nothing sooner, and might leave ranks behind.
            _on_signals(signal.SIG_IGN, *_SIGNALS)
            if context is not None:
                context.close(timeout=END_S)
            if progress is not None:
                progress.stop()


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
        raise RunError(f"no store at port {how.port}: {first_line(error)}") from None


def _started(entry: Entry, arguments: list[Any], how: Local, port: int, folder: Path) -> Any:
    commands, environments = {}, {}
    for rank in range(how.ranks):
        start = Start(
            entry=entry,
            argument=arguments[rank],
            rank=rank,
            ranks=how.ranks,
            timeout_s=how.timeout_s,
            address=how.address,
            port=port,
        )
        write(folder / f"start{rank}", start, how.enter)
        _log(folder, rank).touch()
        commands[rank] = ("-P", "-m", "underlap.run.rank", folder / f"start{rank}", _log(folder, rank), os.getpid())
        # What this process can import, they can: `entry` is found by name.
        environments[rank] = {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    # Each rank writes its log itself: torch leaves those of processes that ended by themselves open.
    places = DefaultLogsSpecs(log_dir=str(folder / "errors"))
    return start_processes("rank", sys.executable, commands, environments, places)


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


def _for_the_user(line: str) -> bool:
    return line.startswith(PROGRESS)


@contextlib.contextmanager
def _signals() -> Iterator[dict[signal.Signals, Any]]:
    """The handlers that hold outside. Torch's processes set others, and tell each end that is asked for on standard error."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    told = logging.getLogger("torch.distributed.elastic.multiprocessing")
    level = told.level
    told.setLevel(logging.CRITICAL)
    try:
        yield before
    finally:
        told.setLevel(level)
        for number, handler in before.items():
            # None: set from outside of Python, and not for it to set again.
            if handler is not None:
                _on_signals(handler, number)


def _on_signals(handler: Any, *numbers: signal.Signals) -> None:
    """Python sets handlers in the main thread only; in another one torch has set none either."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, handler)


# ---- watching


def _watch(ranks: list[Any]) -> None:
    """Return once all have ended, or soon after one has not ended well."""
    failed_at: float | None = None
    while any(process.poll() is None for process in ranks):
        if failed_at is None and any(process.poll() not in (None, 0) for process in ranks):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
            return
        time.sleep(0.05)


def _judge(ranks: list[Any], error_files: dict[int, str], how: Local, folder: Path) -> None:
    """Raises the error that tells most, unless all have ended well."""
    exits = [process.poll() for process in ranks]
    if not any(exits) and None not in exits:
        return
    notes: dict[int, dict[str, Any]] = {}
    for rank in range(how.ranks):
        # One that is killed as it writes leaves half a file.
        with contextlib.suppress(OSError, ValueError):
            notes[rank] = json.loads(Path(error_files[rank]).read_text())["message"]["extraInfo"]["underlap"]
    killed = [rank for rank, code in enumerate(exits) if (code or 0) < 0]
    if killed:
        rank = killed[0]
        seen = "".join(f"; rank {other} was {note['doing']}" for other, note in notes.items())
        raise RunError(f"rank {rank} was killed by {signal.Signals(-exits[rank]).name}{seen}{_last_words(_log(folder, rank))}")
    silent = [rank for rank, code in enumerate(exits) if code is None]
    found = blamed(notes, silent, how.timeout_s)
    if found is None:
        rank = next(rank for rank, code in enumerate(exits) if code)
        found = RunError(f"rank {rank} ended with exit code {exits[rank]}{_last_words(_log(folder, rank))}")
    raise found


def _last_words(log: Path) -> str:
    """What a rank that left no reason said last on standard error, as C++ does before it aborts."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip() and not _for_the_user(line)]
        return f"; it said last: {said[-1][:300]}" if said else ""
    return ""


def blamed(notes: dict[int, dict[str, Any]], silent: list[int], timeout_s: float) -> UnderlapError | None:
    """From what ranks noted of their failure: one with a reason of its own, one that did not answer, one that was lost."""
    own = [(rank, note) for rank, note in notes.items() if note["ours"] and not note["asked"]]
    if own:
        rank, note = own[0]
        text = note["text"] if note["text"].startswith("rank ") else f"rank {rank}: {note['text']}"
        return UnderlapError(text) if note["usage"] else RunError(text)
    named = ", ".join(map(str, silent))
    timed_out = [(rank, note) for rank, note in notes.items() if note["timed_out"]]
    if silent and timed_out:
        waiting, note = timed_out[0]
        return RunError(f"rank {named} did not answer within {timeout_s:g} s: rank {waiting} was {note['doing']}")
    fresh = [(rank, note) for rank, note in notes.items() if not note["lost"] and not note["asked"]]
    if fresh:
        rank, note = fresh[0]
        return RunError(f"rank {rank}: {note['text']} (while {note['doing']})")
    if silent and notes:
        rank, note = next(iter(notes.items()))
        return RunError(f"rank {named} was lost: rank {rank} was {note['doing']}")
    if notes:
        rank, note = next(iter(notes.items()))
        return RunError(f"rank {rank}: {note['text']} (while {note['doing']})")
    return None


# ---- in a job that others started


def place_in_job(environment: dict[str, str]) -> tuple[int, int] | None:
    """(rank, world) where torchrun or srun started this process, else None. Raises OptionError for what neither sets."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE")
    elif "SLURM_PROCID" in environment and _whole(environment, "SLURM_NTASKS", 1) > 1:
        names = ("SLURM_PROCID", "SLURM_NTASKS")
    else:
        return None
    rank, world = (_whole(environment, name) for name in names)
    if not 0 <= rank < world:
        raise OptionError(f"{names[0]} and {names[1]}: expected a rank from 0 to one less than the number of ranks")
    if "MASTER_PORT" in environment and not 0 < _whole(environment, "MASTER_PORT") < 65_536:
        raise OptionError("MASTER_PORT: expected a port from 1 to 65535")
    return rank, world


def _whole(environment: dict[str, str], name: str, default: int | None = None) -> int:
    """The number in a variable, whose value is never shown."""
    if name not in environment and default is not None:
        return default
    try:
        return int(environment[name])
    except ValueError:
        raise OptionError(f"{name}: expected a whole number, as torchrun or srun sets it") from None


def local_rank(environment: dict[str, str], rank: int) -> int:
    """A rank's number on its machine, which is that of its GPU: what torchrun or srun says, else ranks are all on this one."""
    if place_in_job(environment) is None:
        return rank
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if name in environment:
            return _whole(environment, name)
    return rank


def local_ranks(environment: dict[str, str], world: int) -> int:
    """How many ranks this machine has: what torchrun or srun says, else all of them."""
    if place_in_job(environment) is None:
        return world
    if "LOCAL_WORLD_SIZE" in environment:
        return _whole(environment, "LOCAL_WORLD_SIZE")
    # 4(x2),3: the first machines have the most.
    found = re.match(r"(\d+)", environment.get("SLURM_TASKS_PER_NODE", ""))
    return int(found[1]) if found else world


@contextlib.contextmanager
def joined(rank: int, world: int, timeout_s: float) -> Iterator[Session]:
    """This process's place in a job: MASTER_ADDR and MASTER_PORT name the store.

    Raises RunError where nobody answers; where ranks fail, on one of them with the rank that is to blame, and
    ToldElsewhereError on the others.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise RunError(f"rank {rank}: {name} is not set: expected the address of rank 0, as torchrun sets it")
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("WORLD_SIZE", str(world))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # An agent that is killed takes nobody with it. (srun does so itself.)
        end_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, asked_to_end)
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world, timeout=timedelta(seconds=timeout_s))))
    except (RuntimeError, OSError) as error:
        raise RunError(f"rank {rank} found no store: {_store_error(error)}") from None
    limit_threads()
    session = Session(store, rank, world, timeout_s)
    try:
        yield session
    except (UnderlapError, RuntimeError) as error:
        # The others' end must not cut off what is said here.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        found = _of_all(session, error)
        atexit.register(_leave, 1 if isinstance(found, RunError) else 2)
        raise found from None
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _store_error(error: Exception) -> str:
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if "EADDRINUSE" in str(error) or "in use" in str(error):
        return f"port {os.environ['MASTER_PORT']} is in use: set MASTER_PORT to another one, on every rank"
    return f"nobody answers at {where}, where rank 0 is expected: {first_line(error)}"


def _of_all(session: Session, error: Exception) -> UnderlapError:
    """What happened to the job, on the first rank that knows; ToldElsewhereError on the others."""
    notes = {session.rank: note_of(session, error)}
    # Then all have come and are about to find the same. Rank 0, which may hold the store they find it in, tells and goes last.
    disagreed = isinstance(error, DisagreementError)
    patience = session.timeout_s if disagreed else JOB_GRACE_S
    try:
        session.store.set(f"failed/{session.rank}", json.dumps(notes[session.rank]))
        if disagreed and session.rank:
            return ToldElsewhereError(f"rank {session.rank} failed, and rank 0 says why")
        deadline = time.monotonic() + patience
        while len(notes) < session.world and time.monotonic() < deadline:
            for rank in set(range(session.world)) - set(notes):
                if session.store.check([f"failed/{rank}"]):
                    notes[rank] = json.loads(session.store.get(f"failed/{rank}"))
            time.sleep(0.02)
        if session.store.add("told", 1) > 1:
            return ToldElsewhereError(f"rank {session.rank} failed, and another rank said why")
    except RuntimeError:
        # The store is gone with the process that holds it: this rank speaks for itself.
        pass
    silent = [rank for rank in range(session.world) if rank not in notes]
    own = notes[session.rank]
    return blamed(dict(sorted(notes.items())), silent, session.timeout_s) or RunError(f"rank {session.rank}: {own['text']}")


def _leave(code: int) -> None:
    """Destructors of process groups wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
