"""What each cause costs: the window replayed with one thing taken away, then with all of them.

    lever            taken away                                            a promise is at most
    late_peers       waiting for peers that arrive later                   all waiting
    stragglers       what a late rank does more than the first one         all waiting, of the rank that waits longest
    queue            standing behind another collective in a lane          exposed
    host             the host's own work, and delays after it              idle + exposed
    serialization    the order of compute and communication in one lane    exposed
    contention       what compute and communication slow each other        the stretch
    communication    transfers (hidden behind something independent)       exposed on the critical path
    all together                                                           window - lower bound

What no edge explains keeps its delay. The low end of a promise keeps unknown dependences: what had merely ended before an
operation started may have been needed by it. At its high end these are gone, so a range says how much hangs on them. With the
inferred ones, and the order of compute and communication in one lane, gone as well it is only the ceiling "if independent";
what sending nothing would win is a ceiling too, as no schedule does it; transfers half as long are a promise, with their
latencies halved as well. What stands behind a collective in its lane may need its result, so a promise has that order at its low
end. Gains do not add up: what is left is the interaction. A promise that rests on more than 20 % unexplained path is a range up
to its bound, or unknown where there is no bound; its low end counts on no more of the bound than the explained share.
Not modeled: what a lever costs, and whether there is a way to pull it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from underlap.analyze import queues, rebuilt
from underlap.analyze.critical_path import CriticalPath
from underlap.analyze.evened import Evened
from underlap.analyze.graph import EdgeKind, Grade, Graph
from underlap.analyze.interference import Interference
from underlap.analyze.rebuilt import Changes
from underlap.columns import Int64
from underlap.timeline import Timeline

EXPLAINED_WITHIN_NS = 10_000
TRUSTED_SHARE = 0.8
"""Of the critical path; with less of it explained a single number would promise too much."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """How much of the critical path lies at starts that an edge explains to 10 us."""

    real_ns: int
    """By edges that are known: data, sync, order."""
    inferred_ns: int
    """Only by edges that are inferred from timing."""
    path_ns: int

    @property
    def share(self) -> float | None:
        """real / path; None for an empty path."""
        return self.real_ns / self.path_ns if self.path_ns else None

    @property
    def trusted(self) -> bool:
        """Enough of it for a promise that is a single number."""
        return self.share is not None and self.share >= TRUSTED_SHARE

    def sure_of(self, bound_ns: int) -> int:
        """How much of a bound the low end of a promise may count on."""
        return bound_ns if self.trusted else int(bound_ns * (self.share or 0.0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the promises, in ns of the window; None where it is not known."""

    waiting_ns: int | None
    """The final rank's known waiting."""
    idle_ns: int
    """Of the final rank, like `exposed_ns`."""
    exposed_ns: int
    exposed_on_path_ns: int
    stretch_ns: int | None
    lower_bound_ns: int
    """No schedule is shorter."""
    longest_waiting_ns: int | None = None
    """Of the rank that waits longest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """Durations alone, per operation: what compute and communication would take without each other. Shape (len(ops),)."""

    low_ns: Int64
    high_ns: Int64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What the window would gain. `low_ns` and `high_ns` are equal for a single number, and None where unknown."""

    name: str
    low_ns: int | None
    high_ns: int | None
    bound_ns: int | None
    """What the promise was held to, None without a bound."""
    ceiling: bool
    """True: not a promise. Dependences that nobody knows were taken for absent."""
    reason: str
    """Why it is a range, unknown or zero; else empty."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """See the module docstring."""

    observed_ns: int
    levers: tuple[Lever, ...]
    """One at a time, in the order of causes."""
    joint: Lever
    """All but `stragglers`, which is the only one that takes compute away."""
    interaction_ns: int | None
    """joint - sum of the single ones (of their low ends); None where the joint gain is unknown."""
    if_independent: Lever
    """The ceiling of hiding."""
    if_nothing_sent: Lever
    """The ceiling of sending less."""
    if_half_transfer: Lever
    """Half the bytes, or twice the rate."""
    explained: Explained


def explained(graph: Graph, path: CriticalPath) -> Explained:
    """The explained share of a path."""
    edges = graph.edges
    arrival = graph.end_ns[edges.source] + edges.lag_ns
    near = np.zeros((2, len(graph) + 1), dtype=bool)
    close = graph.start_ns[edges.target] - arrival <= EXPLAINED_WITHIN_NS
    real = edges.grade < Grade.TIMING
    near[0, edges.target[close & real]] = True
    near[1, edges.target[close & ~real]] = True
    segments = path.segments
    lengths = segments.end_ns - segments.start_ns
    by_real, by_timing = near[0, segments.node], near[1, segments.node] & ~near[0, segments.node]
    return Explained(
        real_ns=int(lengths[by_real].sum()), inferred_ns=int(lengths[by_timing].sum()), path_ns=path.end_ns - path.start_ns
    )


def waterfall(
    timeline: Timeline,
    graph: Graph,
    path: CriticalPath,
    stretches: Mapping[tuple[int, int], Int64],
    limits: Limits,
    isolated: Isolated | None = None,
    evened: Evened | None = None,
    interference: Interference | None = None,
) -> Waterfall:
    """Every lever of the window, one at a time and jointly. With `interference`, compute is as much longer in each replay as the
    transfers take that run beside it there."""
    part = rebuilt.window(timeline, graph, stretches)
    observed = rebuilt.length(timeline, graph, part)
    rests = explained(graph, path)

    def gain(**changes: Any) -> int:
        return observed - rebuilt.length(timeline, graph, part, Changes(**{"interference": interference, **changes}))

    def lever(name: str, bound: int | None, **changes: Any) -> Lever:
        sure = {**changes, "serialized": True}
        return _promise(name, (gain(**sure), gain(**changes, possible=False)), bound, rests)

    alone = None
    # What a comparison of this recording with itself shows is more than what its cores tell.
    if isolated is None and limits.stretch_ns is None and interference is not None:
        alone = {"work_ns": _alone(timeline, graph, interference), "interference": None}
        inside = part.nodes[part.nodes < len(timeline.ops)]
        contention = _promise("contention", (gain(**alone),) * 2, int(interference.stretch_ns[inside].sum()), rests)
    else:
        contention = _contention(timeline, isolated, limits, gain, rests)
    no_waiting = "waiting is not known: peers are missing or unmatched"
    known = limits.waiting_ns is not None
    levers = (
        lever("late_peers", limits.waiting_ns, waiting=False) if known else _unknown("late_peers", None, no_waiting),
        lever("stragglers", limits.longest_waiting_ns, evened=evened)
        if evened is not None and limits.longest_waiting_ns is not None
        else _unknown("stragglers", None, no_waiting),
        _queue(timeline, graph, limits, gain, rests),
        lever("host", limits.idle_ns + limits.exposed_ns, host=0.0),
        _serialization(gain, limits, rests),
        contention,
        lever("communication", limits.exposed_on_path_ns, transfer=0.0),
    )
    everything: dict[str, Any] = {"waiting": False, "host": 0.0, "serialized": False, "transfer": 0.0, "queued": False}
    if isolated is not None:
        everything["work_ns"] = isolated.high_ns
    if alone is not None:
        everything |= alone
    joint = lever("all", max(observed - limits.lower_bound_ns, 0), **everything)
    single = sum(one.low_ns or 0 for one in levers if one.name != "stragglers")
    nothing_sent = _ceiling(
        "if_nothing_sent",
        gain(transfer=0.0, calls=False, possible=False),
        "transfers, and the host's calls for them, took no time at all"
        + ("; what they slow beside them is not in it" if interference is None else ", and nothing of the cores"),
    )
    half = lever("if_half_transfer", limits.exposed_on_path_ns, transfer=0.5)
    return Waterfall(
        observed_ns=observed,
        levers=levers,
        joint=joint,
        interaction_ns=None if joint.low_ns is None else joint.low_ns - single,
        if_independent=_ceiling(
            "if_independent",
            gain(possible=False, inferred=False, serialized=False),
            "dependences that are only inferred from timing, from the lane, or only possible, were taken for absent"
            + ("; what transfers take of the cores is in it" if interference is not None else ""),
        ),
        if_nothing_sent=nothing_sent,
        if_half_transfer=_within(half, nothing_sent),
        explained=rests,
    )


def _alone(timeline: Timeline, graph: Graph, interference: Interference) -> Int64:
    """Durations without waiting, those of computations without what transfers take."""
    size = len(timeline.ops)
    observed: Int64 = graph.end_ns[:size] - graph.start_ns[:size] - np.maximum(graph.wait_ns[:size], 0)
    return observed - interference.stretch_ns


def _ceiling(name: str, gain: int, reason: str) -> Lever:
    return Lever(name=name, low_ns=0, high_ns=max(gain, 0), bound_ns=None, ceiling=True, reason=reason)


def _serialization(gain: Callable[..., int], limits: Limits, rests: Explained) -> Lever:
    """Nobody knows whether what stands behind communication in its lane needs the result, so the low end keeps that order."""
    lever = _promise("serialization", (0, gain(serialized=False, possible=False)), limits.exposed_ns, rests)
    unknown = "whether what stands behind it in its lane needs the result is not known"
    return lever if lever.high_ns == 0 or not rests.trusted else dataclasses.replace(lever, reason=unknown)


def _queue(timeline: Timeline, graph: Graph, limits: Limits, gain: Callable[..., int], rests: Explained) -> Lever:
    """Without the queue it starts at once: with the link for itself at the high end, and at the low end with an equal share of
    it, beside everything it had stood behind."""
    _, target = queues.queued(timeline, graph)
    if len(target) == 0:
        return Lever(name="queue", low_ns=0, high_ns=0, bound_ns=limits.exposed_ns, ceiling=False, reason="")
    shared = gain(queued=False, work_ns=_shared(timeline, graph, target))
    alone = max(gain(queued=False, possible=False, shared=False), shared)
    least, most = (_promise("queue", (one, one), limits.exposed_ns, rests) for one in (shared, alone))
    reason = least.reason or "those that no longer queue may have to share the link"
    return dataclasses.replace(least, high_ns=most.high_ns, reason=reason if most.high_ns != least.low_ns else "")


def _shared(timeline: Timeline, graph: Graph, queued: Int64) -> Int64:
    """Durations without waiting, those of `queued` operations as if they shared the link with all that ran when they were
    launched or began before them. Shape (len(ops),)."""
    ops, size = timeline.ops, len(timeline.ops)
    work = graph.end_ns[:size] - graph.start_ns[:size] - np.maximum(graph.wait_ns[:size], 0)
    launched = graph.start_ns[:size].copy()
    launches = np.flatnonzero((graph.edges.kind == EdgeKind.LAUNCH) & (graph.edges.target < size))
    launched[graph.edges.target[launches]] = graph.end_ns[graph.edges.source[launches]]
    talks = np.flatnonzero(np.isin(ops.op_class, queues.COMMUNICATING))
    rows = np.unique(queued)
    for rank in np.unique(ops.rank[rows]).tolist():
        mine, own = rows[ops.rank[rows] == rank], talks[ops.rank[talks] == rank]
        begun = np.searchsorted(np.sort(graph.start_ns[own]), graph.start_ns[mine], side="left")
        over = np.searchsorted(np.sort(graph.end_ns[own]), launched[mine], side="right")
        work[mine] *= 1 + np.maximum(begun - over, 0)
    return work


def _promise(name: str, gains: tuple[int, int], bound: int | None, rests: Explained) -> Lever:
    """Gains (with what may be a dependence kept, and without) held to their bound; up to it where too little of the path is
    explained."""
    low, high = (max(gain if bound is None else min(gain, bound), 0) for gain in gains)
    high = max(low, high)
    if rests.trusted:
        reason = "" if low == high else "what had merely ended before may have been needed or not"
        return Lever(name=name, low_ns=low, high_ns=high, bound_ns=bound, ceiling=False, reason=reason)
    told = "the path is empty" if rests.share is None else f"only {rests.share:.0%} of the critical path is explained"
    if bound is None:
        return _unknown(name, None, told)
    low = min(low, rests.sure_of(bound))
    return Lever(name=name, low_ns=low, high_ns=bound, bound_ns=bound, ceiling=False, reason=told)


def _within(lever: Lever, ceiling: Lever) -> Lever:
    """At most what the ceiling says: half of something wins no more than all of it."""
    if lever.low_ns is None or lever.high_ns is None or ceiling.high_ns is None:
        return lever
    high = min(lever.high_ns, ceiling.high_ns)
    return dataclasses.replace(lever, low_ns=min(lever.low_ns, high), high_ns=high)


def _unknown(name: str, bound: int | None, reason: str) -> Lever:
    return Lever(name=name, low_ns=None, high_ns=None, bound_ns=bound, ceiling=False, reason=reason)


def _contention(
    timeline: Timeline, isolated: Isolated | None, limits: Limits, gain: Callable[..., int], rests: Explained
) -> Lever:
    """Isolated durations at both ends of what is known of them."""
    missing = "durations without the other's company are not known"
    if isolated is None:
        if limits.stretch_ns is None:
            return _unknown("contention", None, missing)
        return Lever(
            name="contention", low_ns=0, high_ns=limits.stretch_ns, bound_ns=limits.stretch_ns, ceiling=False, reason=missing
        )
    assert len(isolated.low_ns) == len(timeline.ops)
    gains = [gain(work_ns=work) for work in (isolated.low_ns, isolated.high_ns)]
    most, least = (_promise("contention", (won, won), limits.stretch_ns, rests) for won in gains)
    if most.high_ns is None or least.low_ns is None or least.low_ns == most.high_ns:
        return least
    reason = least.reason or "isolated durations are known as a range"
    return dataclasses.replace(least, high_ns=max(most.high_ns, least.low_ns), reason=reason)
