"""What a reader has to know about figures across ranks: what could not be matched, which clocks were moved, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from underlap.analyze.calls import CallTimes
from underlap.analyze.groups import Calls
from underlap.bandwidth import bus_factor
from underlap.columns import Int64
from underlap.timeline import Group, Note, Timeline
from underlap.wording import are, counted, listed, ranges

if TYPE_CHECKING:
    from underlap.analyze.rendezvous import Rendezvous

_SHOWN = 3


def collect(timeline: Timeline, calls: Calls, times: CallTimes, met: Rendezvous) -> tuple[Note, ...]:
    """All notes about the meeting of ranks."""
    found = [
        *(_unmatched(calls, met) if len(timeline.ranks) > 1 else []),
        _missing(timeline, calls, times, met),
        *_moved(met),
        _apart(met),
        _within_uncertainty(met),
    ]
    return tuple(note for note in found if note is not None)


def _unmatched(calls: Calls, met: Rendezvous) -> list[Note]:
    worst = sorted(met.unmatchable, key=lambda entry: -entry.calls)
    notes = []
    for entry in worst[:_SHOWN]:
        who = f"of group {_name(calls.groups[entry.group])} " if entry.group >= 0 else ""
        what = f"{counted(entry.calls, 'call')} {who}{are(entry.calls)} not matched over ranks"
        text = f"{what}, so that waiting is unknown: {entry.reason}"
        notes.append(Note(code="calls_unmatched", text=text))
    if len(worst) > _SHOWN:
        rest = worst[_SHOWN:]
        text = f"{counted(sum(entry.calls for entry in rest), 'call')} of {len(rest)} more groups are not matched over ranks"
        notes.append(Note(code="calls_unmatched", text=text))
    return notes


def _name(group: Group) -> str:
    return group.description or group.name or (f"of ranks {ranges(sorted(group.ranks))}" if group.ranks else "?")


def _missing(timeline: Timeline, calls: Calls, times: CallTimes, met: Rendezvous) -> Note | None:
    """Calls whose group has members that are not in the input, and what the slowest of them could be."""
    members = np.append(met.instances.members, 0)[met.instance]
    expected = np.append(met.instances.expected, 0)[met.instance]
    rows = np.flatnonzero((met.instance >= 0) & (met.wait < 0) & (members != expected))
    if len(rows) == 0:
        return None
    total = times.duration[rows].sum() / 1e6
    here = {info.rank for info in timeline.ranks}
    absent: set[int] = set()
    for group in np.unique(calls.table.group[rows]).tolist():
        absent.update(set(calls.groups[group].ranks or ()) - here)
    which = listed("rank", sorted(absent)) if absent else "the other members"
    text = (
        f"waiting is unknown for {counted(len(rows), 'call')} ({total:.3f} ms): members of their groups are not in the input. "
        f"The traces of {which} for the same steps would tell"
    )
    slow = _slowest(timeline, calls, times, rows)
    return Note(code="waiting_unknown", text=text + (f". {slow}" if slow else ""))


def _slowest(timeline: Timeline, calls: Calls, times: CallTimes, rows: Int64) -> str | None:
    """The call that took longest, as a rate; whether it is slow or waits is what one side cannot tell."""
    sized = rows[(calls.table.payload_bytes[rows] > 0) & (times.duration[rows] > 0)]
    if len(sized) == 0:
        return None
    row = int(sized[times.duration[sized].argmax()])
    name = timeline.name_of(int(calls.table.collective[row]))
    factor = bus_factor(name, calls.groups[calls.table.group[row]].size)
    if factor is None:
        return None
    payload, length = int(calls.table.payload_bytes[row]), int(times.duration[row])
    return (
        f"Longest: {name} of {payload / 1e6:.1f} MB on rank {int(calls.table.rank[row])}, {length / 1e6:.3f} ms, "
        f"which is {payload / length:.1f} GB/s ({factor * payload / length:.1f} GB/s of bus bandwidth) if all of it is transfer: "
        "a slow link or a late peer, not known which"
    )


def _moved(met: Rendezvous) -> list[Note]:
    """One note per distance that clocks were moved by."""
    clocks, notes = met.clocks, []
    moved = (clocks.offset_ns != 0) | (clocks.drift_ppb != 0)
    for offset, drift in np.unique(np.column_stack((clocks.offset_ns, clocks.drift_ppb))[moved], axis=0).tolist():
        own = moved & (clocks.offset_ns == offset) & (clocks.drift_ppb == drift)
        drifting = f", drifting by {drift / 1e3:.3f} us per second" if drift else ""
        ranks = listed("rank", clocks.ranks[own].tolist())
        text = (
            f"the clock of {ranks} is {offset / 1e6:.6f} ms ahead{drifting} of that of rank "
            f"{int(clocks.ranks[clocks.component == clocks.component[own][0]].min())}; it was corrected by the ends of common "
            f"collectives, which then agree within {clocks.residual_ns[own].max() / 1e3:.1f} us"
        )
        notes.append(Note(code="clock_moved", text=text))
    return notes


def _apart(met: Rendezvous) -> Note | None:
    """Ranks of matched groups whose clocks cannot be compared."""
    components = np.unique(met.clocks.component)
    blind = (met.instances.members > 1) & (met.instances.uncertainty_ns < 0)
    if len(components) < 2 or not blind.any():
        return None
    text = (
        f"the clocks of {len(components)} parts of the job cannot be compared: no collective that ends at one moment, and no "
        f"exchange in both directions, links them; waiting is unknown for {counted(int(blind.sum()), 'instance')} across them"
    )
    return Note(code="clocks_apart", text=text)


def _within_uncertainty(met: Rendezvous) -> Note | None:
    """Said where most of the waiting lies in calls that wait for less than their clocks are uncertain by."""
    known = (met.wait > 0) & (met.uncertainty >= 0)
    total, doubtful = int(met.wait[known].sum()), int(met.wait[known & (met.wait <= met.uncertainty)].sum())
    if total == 0 or 2 * doubtful < total:
        return None
    text = (
        f"{doubtful / total:.0%} of the waiting ({doubtful / 1e6:.3f} of {total / 1e6:.3f} ms) lies in calls that wait for less "
        f"than the times of two ranks are uncertain by (up to {met.uncertainty[known].max() / 1e6:.3f} ms): doubtful there"
    )
    return Note(code="waiting_uncertain", text=text)
