"""The event kernel of `replay`: one source, run by plain Python on lists or, compiled by numba, on arrays.

It knows no lanes (they have become edges) and raises nothing: it says how many operations ended, and the caller judges.
"""

from __future__ import annotations

import functools
import heapq
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from underlap.columns import Int64


class Prepared(NamedTuple):
    """The network as the kernel wants it: who waits for whom, lanes as edges, all in one CSR by source."""

    first: Any
    target: Any
    lag: Any
    work: Any
    rendezvous: Any
    first_member: Any
    members: Any
    """The operations themselves, then the members of each rendezvous."""


class State(NamedTuple):
    """What the kernel changes."""

    start: Any
    begin: Any
    end: Any
    ready: Any
    """The latest of what the operation waits for, so far."""
    pending: Any
    """How many of those are still to end."""
    version: Any
    """0 before it begins; counts its changes of rate afterwards."""
    missing: Any
    """Per rendezvous: members still to arrive."""
    gathered: Any
    """Per rendezvous: the last arrival so far."""


class Sharing(NamedTuple):
    """Rates and what is running, for the second provider. Empty for the first."""

    on: Any
    kind: Any
    device: Any
    units: Any
    curve: Any
    """First entry of its curve in `curves`, -1 for none."""
    curves: Any
    width: Any
    """Entries per curve."""
    late: Any
    """1 where what does not fit at its start is done after the rest (blocks of a persistent kernel)."""
    stall: Any
    """How long it still stands before the blocks that did not fit have run, at most."""
    link: Any
    demand: Any
    share: Any
    """What it gets of its demand of a link, in (0, 1]."""
    memory: Any
    memory_share: Any
    """What it gets of its demand of memory bandwidth, in (0, 1]."""
    rate: Any
    remaining: Any
    since: Any
    held: Any
    """How many units each kind holds, by device: 2 * device + (kind - 1)."""
    heads: Any
    """First running operation of each device, then of each link, then of each device's memory."""
    after: Any
    """Next running operation on the same device; after n more entries the same for links, after 2 n for memory."""
    before: Any
    proportional: Any
    """True where what an operation takes from the other kind goes with its share of the link, and only while it works."""
    saved: Any
    """Per operation: how much longer it takes where its link has not been idle."""
    lead: Any
    """Per operation: of its time, what it leaves its link idle for at the begin."""
    depth: Any
    """Per link: what a pause can gather at most, as time of the link; a pause gathers as much as it lasts."""
    gathered: Any
    """Per link: what had been gathered when it was last used."""
    idle_since: Any
    """Per link."""


Engine = Callable[[Prepared, State, Sharing], tuple[int, Int64, Int64, Int64]]


def plain(prepared: Prepared, state: State, sharing: Sharing) -> tuple[int, Int64, Int64, Int64]:
    """The kernel as plain Python: on lists, which it reads several times faster than arrays."""
    lists = [
        type(group)(*(part.tolist() if isinstance(part, np.ndarray) else part for part in group))
        for group in (prepared, state, sharing)
    ]
    done = _kernel(*lists)
    start, begin, end = (np.array(column, dtype=np.int64) for column in lists[1][:3])
    return done, start, begin, end


@functools.cache
def compiled() -> Engine | None:
    """The kernel compiled by numba, or None where numba is not installed. The first call takes seconds; then it is cached."""
    try:
        import numba
    except ModuleNotFoundError:
        return None
    namespace = dict(globals())
    for function in (_list, _slower, _rerate, _share, _hold, _burst, _change, _kernel):
        copy = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
        namespace[function.__name__] = numba.njit(cache=True)(copy)
    kernel = namespace["_kernel"]

    def engine(prepared: Prepared, state: State, sharing: Sharing) -> tuple[int, Int64, Int64, Int64]:
        return kernel(prepared, state, sharing), state.start, state.begin, state.end

    return engine


def _kernel(plan: Any, state: Any, sharing: Any) -> int:  # noqa: C901, PLR0912, PLR0915  # calls per event would double its time
    """Runs until nothing is left that can start; returns how many operations ended."""
    first, targets, lags, work = plan.first, plan.target, plan.lag, plan.work
    rendezvous, first_member, members = plan.rendezvous, plan.first_member, plan.members
    start, begin, end = state.start, state.begin, state.end
    ready, pending, version = state.ready, state.pending, state.version
    shared = sharing.on
    done = 0
    events = [(ready[op], op, 0) for op in range(len(pending)) if pending[op] == 0]
    if shared:
        heapq.heapify(events)
    while len(events) > 0:
        # With given durations every time is final when it is known, so the order of events does not matter.
        time, op, at = heapq.heappop(events) if shared else events.pop()
        if at != version[op]:
            continue  # an end predicted before a change of rate
        low, high = op, op + 1
        if shared and at > 0 and sharing.stall[op] > 0.0 and sharing.rate[op] == 0.0:
            _rerate(op, time, version, sharing, events)
            continue  # it has stood as long as it can
        if at == 0:
            start[op] = time
            if shared and sharing.units[op] > 0:
                # Once resident it holds its units, even while it waits for the others of its rendezvous.
                _hold(op, time, 1, version, sharing, events)
            group = rendezvous[op]
            if group >= 0:
                state.gathered[group] = max(time, state.gathered[group])
                state.missing[group] -= 1
                if state.missing[group] > 0:
                    continue
                time = state.gathered[group]
                low, high = first_member[group], first_member[group + 1]
        for place in range(low, high):
            member = members[place]
            ended = time
            if at == 0:
                begin[member] = time
                if shared:
                    _change(member, time, 1, work, version, sharing, events)
                    continue
                ended = time + work[member]
            elif shared:
                _change(member, time, -1, work, version, sharing, events)
            end[member] = ended
            done += 1
            for edge in range(first[member], first[member + 1]):
                target = targets[edge]
                moment = ended + lags[edge]
                if moment > ready[target]:  # noqa: PLR1730  # max() is slower
                    ready[target] = moment
                left = pending[target] - 1
                pending[target] = left
                if left == 0:
                    event = (ready[target], target, 0)
                    if shared:
                        heapq.heappush(events, event)
                    else:
                        events.append(event)
    return done


def _change(op: int, time: int, sign: int, work: Any, version: Any, sharing: Any, events: Any) -> None:
    """An operation begins (+1) or ends (-1): everything on its device and link gets a new rate and a new predicted end."""
    devices, size = len(sharing.held) // 2, len(work)
    device, link = sharing.device[op], sharing.link[op]
    if sign > 0:
        sharing.remaining[op], sharing.rate[op], sharing.since[op] = float(work[op]), 0.0, time
        if link >= 0 and sharing.depth[link] > 0.0:
            sharing.remaining[op] += _burst(op, link, devices, time, sharing)
    else:
        version[op] += 1
    if device >= 0:
        _list(sharing, device, op, 0, sign)
        if sharing.memory[op] > 0:
            memory = len(sharing.heads) - devices + device
            _list(sharing, memory, op, 2 * size, sign)
            _share(sharing, memory, 2 * size, sharing.memory, sharing.memory_share)
        if sign < 0 and sharing.units[op] > 0:
            sharing.held[2 * device + sharing.kind[op] - 1] -= sharing.units[op]
    if link >= 0:
        _list(sharing, devices + link, op, size, sign)
        _share(sharing, devices + link, size, sharing.demand, sharing.share)
        if sign < 0 and sharing.heads[devices + link] < 0:
            sharing.idle_since[link] = time
        other = sharing.heads[devices + link]
        while other >= 0:
            _rerate(other, time, version, sharing, events)
            other = sharing.after[size + other]
    if device >= 0:
        other = sharing.heads[device]
        while other >= 0:
            _rerate(other, time, version, sharing, events)
            other = sharing.after[other]
    if sign > 0 and version[op] == 0:
        _rerate(op, time, version, sharing, events)


def _burst(op: int, link: int, devices: int, time: int, sharing: Any) -> float:
    """What an operation that begins has to take longer because its link has not gathered all that it could save."""
    idle = 0.0
    if sharing.heads[devices + link] < 0:
        idle = float(time - sharing.idle_since[link]) + sharing.lead[op]
    there = min(sharing.depth[link], sharing.gathered[link] + idle)
    used = min(there, sharing.saved[op])
    sharing.gathered[link] = there - used
    return float(sharing.saved[op] - used)


def _slower(op: int, sharing: Any) -> float:
    """How many times longer it takes with what the other kind holds of its device."""
    device, kind = sharing.device[op], sharing.kind[op]
    if device < 0 or kind == 0 or sharing.curve[op] < 0:
        return 1.0
    if sharing.proportional:
        taken, other = 0.0, sharing.heads[device]
        while other >= 0:
            if sharing.kind[other] == 3 - kind:
                taken += sharing.units[other] * sharing.share[other]
            other = sharing.after[other]
        return float(sharing.curves[sharing.curve[op] + min(int(taken + 0.5), sharing.width - 1)])
    # Kind 1 is slowed by what kind 2 holds and the other way around.
    held = min(sharing.held[2 * device + 2 - kind], sharing.width - 1)
    return float(sharing.curves[sharing.curve[op] + held])


def _hold(op: int, time: int, sign: int, version: Any, sharing: Any, events: Any) -> None:
    """An operation takes (+1) its units of its device: what runs there gets a new rate."""
    device = sharing.device[op]
    sharing.held[2 * device + sharing.kind[op] - 1] += sign * sharing.units[op]
    other = sharing.heads[device]
    while other >= 0:
        _rerate(other, time, version, sharing, events)
        other = sharing.after[other]


def _rerate(op: int, time: int, version: Any, sharing: Any, events: Any) -> None:
    """Settle what was done at the old rate, and predict the end at the new one."""
    rate = min(sharing.share[op], sharing.memory_share[op])
    slower = _slower(op, sharing)
    if sharing.late[op] == 1:
        # The last blocks begin once there is room: when the other kind lets go, or when the first blocks are through.
        if version[op] == 0:
            sharing.stall[op] = (slower - 1.0) * sharing.remaining[op]
        elif sharing.rate[op] == 0.0:
            sharing.stall[op] -= time - sharing.since[op]
        if slower > 1.0 and sharing.stall[op] > 0.5:
            if version[op] > 0 and sharing.rate[op] == 0.0 and sharing.since[op] == time:
                return
            sharing.rate[op], sharing.since[op] = 0.0, time
            version[op] += 1
            heapq.heappush(events, (time + math.ceil(sharing.stall[op]), op, version[op]))
            return
        sharing.stall[op] = 0.0
    else:
        rate = min(rate, 1.0 / slower)
    if rate == sharing.rate[op]:
        return
    left = sharing.remaining[op] - sharing.rate[op] * (time - sharing.since[op])
    left = max(left, 0.0)
    sharing.remaining[op], sharing.rate[op], sharing.since[op] = left, rate, time
    version[op] += 1
    # Whole nanoseconds, upwards; a millionth of one is rounding.
    heapq.heappush(events, (time + math.ceil(left / rate - 1e-6), op, version[op]))


def _share(sharing: Any, head: int, base: int, demand: Any, share: Any) -> None:
    """Max-min fair shares of a link or memory: who wants less than an equal part gets all of it, the rest is split again."""
    free, hungry, op = 1.0, 0, sharing.heads[head]
    while op >= 0:
        share[op] = 0.0
        hungry += 1
        op = sharing.after[base + op]
    while hungry > 0:
        equal, satisfied, taken = free / hungry, 0, 0.0
        op = sharing.heads[head]
        while op >= 0:
            if share[op] == 0.0 and demand[op] <= equal:
                share[op] = 1.0
                satisfied += 1
                taken += demand[op]
            op = sharing.after[base + op]
        if satisfied == 0:
            op = sharing.heads[head]
            while op >= 0:
                if share[op] == 0.0:
                    share[op] = equal / demand[op]
                op = sharing.after[base + op]
            return
        free -= taken
        hungry -= satisfied


def _list(sharing: Any, head: int, op: int, base: int, sign: int) -> None:
    """Put an operation into (+1) the list of those that run on a device or link, or take it out (-1)."""
    if sign > 0:
        after = sharing.heads[head]
        sharing.after[base + op] = after
        sharing.before[base + op] = -1
        if after >= 0:
            sharing.before[base + after] = op
        sharing.heads[head] = op
        return
    before, after = sharing.before[base + op], sharing.after[base + op]
    if before >= 0:
        sharing.after[base + before] = after
    else:
        sharing.heads[head] = after
    if after >= 0:
        sharing.before[base + after] = before
