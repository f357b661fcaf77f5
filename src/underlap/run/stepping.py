"""One step of an engine behind a barrier, and what it took of the machine."""

from __future__ import annotations

import resource
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
        user_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        spent = core.spent() if core is not None else None
        try:
            record = engine.recorded_step(left_out)
        except RuntimeError:
            session.doing = f"{doing}, in {engine.failed_at}"
            raise
        record.library_cpu_ns = time.process_time_ns() - time.thread_time_ns() - before
        later = core.spent() if core is not None else None
        own_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - user_s
        if spent is not None and later is not None:
            during = later.since(spent)
            record.stolen_ns = during.stolen_ns
            record.others_ns = during.user_ns - round(own_s * 1e9)
            busy = record.duration_ns - during.idle_ns - during.stolen_ns
            record.core_ns = busy - (time.thread_time_ns() - begun) - record.others_ns
        return record
