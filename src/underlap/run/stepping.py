"""One step of an engine behind a barrier, and what it took of the machine."""

from __future__ import annotations

import time

from underlap.run.core import Core
from underlap.run.engine import Engine
from underlap.run.meter import Meter
from underlap.run.session import Session
from underlap.run.times import Record
from underlap.trial import LeftOut


class Stepper:
    """Runs steps on this rank. All ranks call it at once."""

    def __init__(self, session: Session, meter: Meter, core: Core | None) -> None:
        self.session, self.meter, self.core = session, meter, core

    def __call__(self, engine: Engine, doing: str, left_out: LeftOut | None = None) -> Record:
        """A step, recorded. `doing` is what an error says it was in."""
        session, core = self.session, self.core
        session.doing = f"starting {doing}"
        self.meter.begin()
        session.doing = doing
        before, begun = time.process_time_ns() - time.thread_time_ns(), time.thread_time_ns()
        unused = core.unused() if core is not None else None
        try:
            record = engine.recorded_step(left_out)
        except RuntimeError:
            session.doing = f"{doing}, in {engine.failed_at}"
            raise
        record.library_cpu_ns = time.process_time_ns() - time.thread_time_ns() - before
        later = core.unused() if core is not None else None
        if unused is not None and later is not None:
            record.stolen_ns = later.stolen_ns - unused.stolen_ns
            busy = record.duration_ns - (later.idle_ns - unused.idle_ns) - record.stolen_ns
            record.core_ns = busy - (time.thread_time_ns() - begun)
        return record
