"""The lever `stragglers`: what a late rank does more than the first one, and nothing else, is taken off."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analyze.meetings import Kernel, compute, meet, timeline
from underlap.analyze import graph, rebuilt
from underlap.analyze.evened import Evened, evened
from underlap.analyze.rebuilt import Changes

US = 1000
ONE_CLOCK = dict.fromkeys(range(8), 0)


def evened_of(kernels: list[Kernel]) -> tuple[Evened, float, float]:
    """What is taken off, and the length of the window before and after, in microseconds."""
    drawn = timeline(kernels, clocks=ONE_CLOCK)
    found = meet(drawn)
    built = graph.build(drawn, graph.Waits(instance=found.met.instance, wait_ns=found.met.wait, offset_ns={}))
    less = evened(drawn, built, found.calls, found.times, found.met, found.late())
    part = rebuilt.window(drawn, built, found.selection.stretches)
    lengths = [rebuilt.length(drawn, built, part, changes) / US for changes in (Changes(), Changes(evened=less))]
    return less, lengths[0], lengths[1]


def steps_of(works: list[tuple[int, int]], transfer: int = 100) -> list[Kernel]:
    """Two ranks that compute so many microseconds each, and meet; all launched long before."""
    kernels, begin = [Kernel(rank, -transfer * US, 0, launch=-9000 * US) for rank in (0, 1)], 0
    for pair in works:
        end = begin + max(pair) + transfer
        for rank, work in enumerate(pair):
            kernels.append(compute(rank, begin * US, (begin + work) * US, launch=-9000 * US))
            kernels.append(Kernel(rank, (begin + work) * US, end * US, launch=-9000 * US))
        begin = end
    return kernels


def test_where_nobody_is_late_nothing_is_taken_off() -> None:
    less, before, after = evened_of(steps_of([(300, 300), (200, 200)]))

    assert less.work_ns.sum() == less.host_ns.sum() == 0
    assert before == after


@pytest.mark.parametrize("more", [1, 50, 700])
def test_a_rank_that_always_computes_more_gives_back_what_it_computes_more(more: int) -> None:
    less, before, after = evened_of(steps_of([(300, 300 + more)] * 4))

    assert less.work_ns.sum() == 4 * more * US
    assert before - after == 4 * more


def test_ranks_that_are_late_in_turns_both_give_back() -> None:
    _, before, after = evened_of(steps_of([(300, 500), (600, 300), (300, 500)]))

    assert before - after == 200 + 300 + 200


def test_compute_that_the_first_rank_did_while_it_waited_is_not_more_compute_of_the_late_one() -> None:
    # Rank 0 arrives early at each meeting and computes while it waits; rank 1 computes as much, but only after each meeting.
    kernels, begin = [Kernel(rank, -100 * US, 0, launch=-9000 * US) for rank in (0, 1)], 0
    for _ in range(3):
        end = begin + 400 + 100
        kernels.append(Kernel(0, begin * US, end * US, launch=-9000 * US))
        kernels.append(compute(0, begin * US, (begin + 400) * US, launch=-9000 * US))
        kernels.append(compute(1, begin * US, (begin + 400) * US, launch=-9000 * US))
        kernels.append(Kernel(1, (begin + 400) * US, end * US, launch=-9000 * US))
        begin = end
    less, before, after = evened_of(kernels)

    # Between the second and third arrival, both compute 400 us; only the first meeting looks like more.
    assert less.work_ns[np.argsort(kernels_start(kernels))].sum() <= 400 * US
    assert 0 <= before - after <= 400


def kernels_start(kernels: list[Kernel]) -> list[int]:
    return [kernel.start for kernel in kernels]
