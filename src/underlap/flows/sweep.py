"""The map of conditions: for which batch and sequence a policy of overlap pays, on each of several layouts."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import msgspec

from underlap import inputs
from underlap.answers import BreakEven, ReasonCount, Sweep, SweepPoint, Verdict
from underlap.errors import OptionError
from underlap.flows.quick import Outcome, Quick
from underlap.flows.simulate import SAME, Scenario, policies
from underlap.layout import layout_text
from underlap.policy import POLICY_AXES, AxisPolicy, Policy, policy_text
from underlap.schedule.applying import GROUPS
from underlap.workload import Decode, Train, Workload, workload_text

HIDDEN = 0.95
"""With at least so much of its communication hidden, a policy hides fully."""
MOST_POINTS = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """What one process works on at a time: points that have most of their simulation in common."""

    asked: Scenario
    policies: tuple[Policy, ...]
    seq: int
    batches: tuple[int, ...]


def sweep(asked: Sequence[Scenario], compare: str, *, batches: Sequence[int], seqs: Sequence[int], jobs: int = 1) -> Sweep:
    """Every policy of `compare` but the first against the first, at every batch and sequence, on the layout of each scenario.

    The scenarios differ in layout only. More `jobs` are processes, started by spawn: a script then needs its `__main__` guard.
    Raises OptionError for an empty or too large grid, and for unknown policies.
    """
    if not asked or not batches or not seqs:
        raise OptionError("sweep: nothing to sweep over: give a layout, batches and sequences")
    lines: list[_Line] = []
    names: dict[str, None] = {}
    for scenario in asked:
        found = policies(scenario, compare)
        if len(found) < 2:
            raise OptionError("sweep: nothing to compare with: name two policies or more, such as none,split_batch")
        names.update(dict.fromkeys(policy_text(policy) or "none" for policy in found[1:]))
        lines += [_Line(scenario, tuple(found), seq, tuple(sorted(set(batches)))) for seq in sorted(set(seqs))]
    count = sum(len(line.batches) * (len(line.policies) - 1) for line in lines)
    if count > MOST_POINTS:
        raise OptionError(f"sweep: {count} points: at most {MOST_POINTS} are computed; give fewer batches or sequences")
    points = [point for line in _computed(lines, jobs) for point in line]
    points.sort(key=_order(asked, list(names)))
    first = asked[0]
    return Sweep(
        model=first.model.name,
        cluster=first.cluster.name,
        workload=workload_text(with_size(first.workload, min(batches), min(seqs))),
        batches=sorted(set(batches)),
        seqs=sorted(set(seqs)),
        layouts=[layout_text(each.layout) for each in asked],
        policies=list(names),
        same_ratio=SAME,
        hidden_share=HIDDEN,
        points=points,
        break_even=list(break_even(points)),
        reasons=_reasons(points),
        does_not_support=[
            "points between or beyond those of the grid, or another mbs, precision, model or machine",
            "a measured speed-up: costs are a model, whose errors are in docs/accuracy.md",
            '"communication removed": every byte is still sent; what changes is when',
        ],
    )


def scenarios(asked: Scenario, layouts: str, gpus: int | None = None) -> list[Scenario]:
    """The scenario once for each layout of a list separated by ';'. Raises OptionError."""
    made: list[Scenario] = []
    for text in layouts.split(";"):
        layout = inputs.layout(text.strip())
        layout.check_gpus(gpus if gpus is not None else layout.world)
        layout.check_model(asked.model)
        made.append(dataclasses.replace(asked, layout=layout, cluster=asked.cluster.with_gpus(layout.world)))
    return made


def with_size(workload: Workload, batch: int, seq: int) -> Workload:
    """The workload with another batch (gbs, of training) and sequence (context, of decode)."""
    names = ("gbs", "seq") if isinstance(workload, Train) else ("batch", "context" if isinstance(workload, Decode) else "seq")
    return msgspec.structs.replace(workload, **dict(zip(names, (batch, seq), strict=True)))


def _order(asked: Sequence[Scenario], names: list[str]):  # type: ignore[no-untyped-def]  # a sort key
    layouts = [layout_text(each.layout) for each in asked]
    return lambda point: (layouts.index(point.layout), names.index(point.policy), point.seq, point.batch)


# ---- points


def _computed(lines: Sequence[_Line], jobs: int) -> Iterator[list[SweepPoint]]:
    if jobs <= 1 or len(lines) == 1:
        quick = Quick()
        yield from (_line(line, quick) for line in lines)
        return
    # spawn: whoever calls may have threads. Each process keeps what it has simulated.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(lines)), mp_context=context, initializer=_leave_interrupts) as pool:
        try:
            yield from pool.map(_line_of_process, lines)
        except BrokenProcessPool:
            # The system ends a process that takes too much memory, and the pool with it.
            raise OptionError("sweep: a process was ended from outside, perhaps for want of memory: try --jobs 1") from None


_QUICK = Quick()


def _leave_interrupts() -> None:
    """An interrupt is the caller's: it cancels what has not begun, and this process ends with the line that it is at."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _line_of_process(line: _Line) -> list[SweepPoint]:
    return _line(line, _QUICK)


def _line(line: _Line, quick: Quick) -> list[SweepPoint]:
    return [point for batch in line.batches for point in _points(line, batch, quick)]


def _points(line: _Line, batch: int, quick: Quick) -> Iterator[SweepPoint]:
    """One point per policy but the first."""
    base, *others = line.policies
    none: Outcome | None = None
    problem: tuple[Verdict, str] | None = None
    scenario = line.asked
    try:
        scenario = dataclasses.replace(line.asked, workload=with_size(line.asked.workload, batch, line.seq))
        none = _outcome(scenario, base, quick)
    except OptionError as error:
        problem = "invalid", str(error)
    except _DoesNotFit as error:
        problem = "memory", str(error)
    for policy in others:
        found = problem
        point = SweepPoint(
            layout=layout_text(line.asked.layout),
            policy=policy_text(policy) or "none",
            batch=batch,
            seq=line.seq,
            verdict="invalid",
        )
        if none is not None:
            try:
                outcome = _outcome(scenario, policy, quick)
            except OptionError as error:
                found = "invalid", str(error)
            except _DoesNotFit as error:
                found = "memory", str(error)
            else:
                yield _compared(point, policy, none, outcome)
                continue
        assert found is not None
        yield msgspec.structs.replace(point, verdict=found[0], reason=found[1])


class _DoesNotFit(Exception):  # noqa: N818  # not an error: a kind of point
    pass


def _outcome(asked: Scenario, policy: Policy, quick: Quick) -> Outcome:
    need, have = quick.memory(asked, policy), asked.cluster.topology.processor.memory_bytes
    if need > have:
        raise _DoesNotFit(f"the fullest rank needs {need / 1e9:.1f} GB of {have / 1e9:.1f} GB")
    return quick.outcome(asked, policy)


def _compared(point: SweepPoint, policy: Policy, none: Outcome, outcome: Outcome) -> SweepPoint:
    ratio = outcome.step_ns / none.step_ns
    names = {name for axis in POLICY_AXES if policy.of(axis) != AxisPolicy() for name in GROUPS[axis]}
    total = sum(outcome.groups[name][0] for name in names & set(outcome.groups))
    exposed = sum(outcome.groups[name][1] for name in names & set(outcome.groups))
    share = exposed / total if total else None
    reason = "; ".join(f"{one.axis}={one.name}: {one.reason}" for one in outcome.refused) or None
    return msgspec.structs.replace(
        point,
        verdict="refused" if reason is not None else verdict(ratio, share),
        reason=reason,
        step_ns=outcome.step_ns,
        none_step_ns=none.step_ns,
        step_ratio=ratio,
        exposed_share=outcome.exposed_ns / outcome.step_ns,
        none_exposed_share=none.exposed_ns / none.step_ns,
        axis_exposed_share=share,
        memory_bytes=outcome.memory_bytes,
    )


def verdict(ratio: float, axis_exposed_share: float | None) -> Verdict:
    """By the step first: what hides communication and makes the step no shorter does nothing."""
    if ratio > 1 + SAME:
        return "loses"
    if ratio >= 1 - SAME:
        return "does_nothing"
    return "hides_fully" if axis_exposed_share is not None and axis_exposed_share <= 1 - HIDDEN else "hides_partly"


# ---- what the points say together


def break_even(points: Sequence[SweepPoint]) -> Iterator[BreakEven]:
    """Every border between a shorter step and one that is not, along batches and along sequences.

    Points that could not be computed are stepped over: the border then lies between the nearest that could.
    """
    computed = [point for point in points if point.verdict in ("hides_fully", "hides_partly", "does_nothing", "loses")]
    for along, other in (("batch", "seq"), ("seq", "batch")):

        def line(point: SweepPoint, other: str = other) -> tuple[str, str, int]:
            return point.layout, point.policy, getattr(point, other)

        def place(point: SweepPoint, along: str = along) -> int:
            value = getattr(point, along)
            assert isinstance(value, int)
            return value

        for (layout, policy, at), members in itertools.groupby(sorted(computed, key=lambda p: (line(p), place(p))), key=line):
            for low, high in itertools.pairwise(members):
                pays = [point.verdict.startswith("hides") for point in (low, high)]
                if pays[0] != pays[1]:
                    yield BreakEven(
                        layout=layout,
                        policy=policy,
                        along=along,  # type: ignore[arg-type]  # one of the two
                        at=at,
                        low=place(low),
                        high=place(high),
                        pays="above" if pays[1] else "below",
                    )


def _reasons(points: Sequence[SweepPoint]) -> list[ReasonCount]:
    """Reasons that differ in their numbers only are one."""
    found: dict[tuple[Verdict, str], list[str]] = {}
    for point in points:
        if point.reason is not None:
            found.setdefault((point.verdict, re.sub(r"[0-9][0-9.]*", "#", point.reason)), []).append(point.reason)
    rows = [ReasonCount(verdict=key[0], reason=texts[0], points=len(texts)) for key, texts in found.items()]
    return sorted(rows, key=lambda row: -row.points)
