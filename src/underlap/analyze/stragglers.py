"""Who keeps the others waiting, per family and overall, and whether it is always the same rank.

A straggler is a rank that is waited for longest in so many steps that chance does not explain it; one step never makes
one, and neither does a late entry into the window, nor a pipeline's bubble.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from underlap.analyze.calls import CallTimes
from underlap.analyze.families import FamilyKey
from underlap.analyze.lateness import CAUSES, Late
from underlap.analyze.rendezvous import Rendezvous
from underlap.analyze.steps import Steps
from underlap.columns import NONE, Int32, Int64

_FEWEST_STEPS = 3
_BY_CHANCE = 0.1
"""A rank that is the worst this improbably often is no accident."""
_NEGLIGIBLE = 0.02


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """What one rank did to the others."""

    rank: int
    times_last: int
    """Instances in which it was waited for longest, beyond what the clocks are uncertain by."""
    caused_ns: int
    """Waiting of all ranks for it, entries apart."""
    entry_caused_ns: int
    """Waiting for it in the instance in which it entered the window late."""
    late_ns: int
    """Sum of its lateness, entries included; the causes add up to it."""
    causes: dict[str, int]
    """Cause -> nanoseconds, as in `Late`."""
    first_cause: str | None
    """The largest of them, the entry apart; None where what the entry leaves is negligible."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the lateness of a family, or of all, belongs to one rank."""

    family: FamilyKey | None
    """None for all families together."""
    instances: int
    """Instances with a known last rank."""
    ranks: tuple[LateRank, ...]
    """Most waiting caused first, entries included."""
    kind: str
    """stable, moving or undecided."""
    straggler: int | None
    """The rank, where stable."""
    how: str
    """How that was decided."""


def verdicts(
    late: Late,
    met: Rendezvous,
    times: CallTimes,
    steps: Steps,
    families: tuple[Sequence[FamilyKey], Int32],
    pipeline: NDArray[np.bool_],
) -> tuple[Verdict, ...]:
    """The verdict over all families, then one per family in which a rank was late. Pipeline calls count in none of them."""
    keys, family_of_call = families
    count = len(met.instances)
    family = np.full(count, NONE, dtype=np.int64)
    step = np.full(count, NONE, dtype=np.int64)
    bubble = np.zeros(count, dtype=bool)
    rows = np.flatnonzero((met.instance >= 0) & times.counted)
    family[met.instance[rows]] = family_of_call[rows]
    bubble[met.instance[rows]] = pipeline[rows]
    counted = np.zeros(count, dtype=bool)
    counted[met.instance[rows]] = True
    # An instance belongs to the step in which its first rank launched it.
    reached = rows[::-1]
    step[met.instance[reached]] = steps.of_op[times.first_op[reached]]
    counted &= ~bubble & (met.instances.last_rank >= 0)
    blamed = late.take(~bubble[late.instance])
    present = np.unique(family[blamed.instance]).tolist()
    chosen = [None, *present] if len(blamed) else []
    found = []
    for number in chosen:
        inside = counted if number is None else counted & (family == number)
        own = blamed if number is None else blamed.take(family[blamed.instance] == number)
        found.append(_verdict(None if number is None else keys[number], own, met, np.flatnonzero(inside), step))
    return tuple(found)


def _verdict(key: FamilyKey | None, late: Late, met: Rendezvous, instances: Int64, step: Int64) -> Verdict:
    entry = met.instances.entry[late.instance] > 0
    ranks = tuple(_of_rank(late, entry, rank) for rank in np.unique(late.rank).tolist())
    ranks = tuple(sorted(ranks, key=lambda row: (-row.caused_ns - row.entry_caused_ns, row.rank)))
    size = int(met.instances.members[instances].max(initial=1))
    kind, straggler, how = _decide(late.take(~entry), step[late.instance[~entry]], size)
    return Verdict(family=key, instances=len(instances), ranks=ranks, kind=kind, straggler=straggler, how=how)


def _of_rank(late: Late, entry: NDArray[np.bool_], rank: int) -> LateRank:
    own = late.rank == rank
    sums = dict(zip(CAUSES, late.causes()[own].sum(axis=0).tolist(), strict=True))
    least = max(1, _NEGLIGIBLE * int(late.late_ns[own].sum()))
    rest = {name: amount for name, amount in sums.items() if name != "window_entry" and amount >= least}
    return LateRank(
        rank=rank,
        times_last=int(own.sum()),
        caused_ns=int(late.caused_ns[own & ~entry].sum()),
        entry_caused_ns=int(late.caused_ns[own & entry].sum()),
        late_ns=int(late.late_ns[own].sum()),
        causes=sums,
        first_cause=max(rest, key=lambda name: rest[name]) if rest else None,
    )


def _decide(late: Late, step: Int64, ranks: int) -> tuple[str, int | None, str]:
    """(kind, straggler, how) from the rank that causes most waiting in each step."""
    numbers = np.unique(step[step >= 0]).tolist()
    if not numbers:
        return "undecided", None, "the trace marks no steps to compare" if len(late) else "nobody is late but at the entry"
    worst = []
    for number in numbers:
        own = step == number
        caused: Counter[int] = Counter()
        for rank, amount in zip(late.rank[own].tolist(), late.caused_ns[own].tolist(), strict=True):
            caused[rank] += amount
        worst.append(max(caused, key=lambda rank: (caused[rank], -rank)))
    (rank, times), *_ = Counter(worst).most_common(1)
    text = f"rank {rank} is waited for longest in {times} of {len(numbers)} steps"
    if len(numbers) == 1:
        return "undecided", None, f"{text}; one step makes no straggler"
    chance = _chance(times, len(numbers), ranks)
    text = f"{text}; by chance that happens to some rank of {ranks} with a probability of {chance:.2g}"
    if len(numbers) >= _FEWEST_STEPS and chance < _BY_CHANCE:
        return "stable", rank, text
    if times < len(numbers):
        return "moving", None, text
    return "undecided", None, f"{text}; more steps would tell"


def _chance(times: int, steps: int, ranks: int) -> float:
    """Probability that some rank is the worst in that many steps or more if each step's worst is drawn at random."""
    tail = sum(math.comb(steps, at) * (ranks - 1) ** (steps - at) for at in range(times, steps + 1)) / ranks**steps
    return float(min(1.0, ranks * tail))
