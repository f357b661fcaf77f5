"""Whether ranks drift apart within a step: the collectives of a step are the later met the further into it they are.

Expert parallel decode shows it: each layer's dispatch waits a little longer than the last, as a slow rank loses time in every
layer and nothing between makes up for it. Said of a family with enough calls per step, from the skew of matched calls, by
thirds of the step. What is not modeled: why the rank loses time (see `late`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from underlap.analyze.calls import CallTimes
from underlap.analyze.families import FamilyKey
from underlap.analyze.rendezvous import Rendezvous
from underlap.analyze.steps import Steps
from underlap.columns import Int32
from underlap.timeline import Note

_FEWEST = 12
"""Calls per step, to have some in each third."""
_GROWTH = 3
_MOSTLY = 0.8
"""The same rank must be last in so much of the last third, else the ranks only jitter more."""


def notes(families: tuple[list[FamilyKey], Int32], steps: Steps, times: CallTimes, met: Rendezvous) -> tuple[Note, ...]:
    """One note for the family whose skew grows most within its steps; none where it does not grow threefold."""
    instances = met.instances
    calls = np.flatnonzero((met.instance >= 0) & times.counted & (times.first_op >= 0))
    known = (instances.start_skew_ns >= 0) & (instances.last_rank >= 0) & (instances.entry == 0)
    calls = calls[known[met.instance[calls]]]
    # One call stands for each instance: step, family and place are alike on all of its ranks.
    meeting, first = np.unique(met.instance[calls], return_index=True)
    rows = calls[first]
    family, step = families[1][rows], steps.of_op[times.first_op[rows]]
    found: list[tuple[float, Note]] = []
    for number in np.unique(family).tolist():
        thirds: list[list[int]] = [[], [], []]
        last: Counter[int] = Counter()
        uncertain = 0
        for which in np.unique(step[family == number]).tolist():
            own = np.flatnonzero((family == number) & (step == which))
            own = own[np.argsort(times.start[rows[own]], kind="stable")]
            if len(own) < _FEWEST:
                continue
            for third, part in enumerate(np.array_split(meeting[own], 3)):
                thirds[third] += instances.start_skew_ns[part].tolist()
            last.update(instances.last_rank[part].tolist())
            uncertain = max(uncertain, int(instances.uncertainty_ns[part].max()))
        if not last:
            continue
        early, middle, late = (float(np.median(part)) for part in thirds)
        rank, count = last.most_common(1)[0]
        if late <= max(_GROWTH * early, uncertain) or not early <= middle <= late or count < _MOSTLY * sum(last.values()):
            continue
        name = " ".join(part for part in families[0][number] if part) or "communication"
        text = (
            f"rank {rank} drifts within the step: the ranks arrive {early / 1e6:.3f} ms apart in the first third of the "
            f"{name} calls of a step, {middle / 1e6:.3f} in the second and {late / 1e6:.3f} in the last (medians), "
            f"where it comes last in {count} of {sum(last.values())}"
        )
        found.append((late - early, Note(code="drift_in_step", text=text)))
    return tuple(note for _, note in sorted(found, key=lambda entry: -entry[0])[:1])
