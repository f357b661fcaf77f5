"""The net gain of hiding, family by family: whether hiding this communication costs more than it hides.

What compute loses is shared out by what ran beside: a kernel beside two families counts for both, as far as each covers it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underlap import intervals
from underlap.analyze.accounting import DeviceSets
from underlap.analyze.contention import Contention, NetGain, Slowdown, net_gain
from underlap.analyze.positions import Samples
from underlap.analyze.slowdown import Effect
from underlap.analyze.steps import Selection
from underlap.columns import NONE, Int32, Int64
from underlap.timeline import OpClass, Timeline


def family_gains(
    timeline: Timeline, selection: Selection, sets: dict[tuple[int, int], DeviceSets], family_of_call: Int32, found: Contention
) -> dict[int, NetGain]:
    """Family -> net gain, for the families of which something is hidden."""
    ops = timeline.ops
    family = np.append(family_of_call, NONE)[ops.collective]
    talks = np.isin(ops.op_class, (OpClass.COMMUNICATION, OpClass.WAIT))
    hidden: dict[int, int] = {}
    unions: dict[int, dict[tuple[int, int], Int64]] = {}
    for key, stretches in selection.stretches.items():
        own = talks & (ops.rank == key[0]) & (ops.device == key[1]) & (family >= 0)
        for number in np.unique(family[own]).tolist():
            rows = own & (family == number)
            union = intervals.union(ops.start_ns[rows], ops.end_ns[rows])
            beside = intervals.intersect(union, sets[key].compute)
            amount = int(intervals.covered(stretches[:, 0], stretches[:, 1], beside).sum())
            if amount:
                unions.setdefault(number, {})[key] = union
                hidden[number] = hidden.get(number, 0) + amount
    result = {}
    for number, amount in hidden.items():
        compute = found.compute if len(hidden) == 1 else _beside(timeline, list(sets), unions[number], found)
        rows_of_family = tuple(row for row in found.communication if row.family == number)
        result[number] = net_gain(amount, compute, rows_of_family)
    return result


def _beside(
    timeline: Timeline, devices: list[tuple[int, int]], unions: dict[tuple[int, int], Int64], found: Contention
) -> Slowdown:
    """What compute loses beside one family of several: the ratio of the kernels of which it covers the larger part."""
    samples, effect = found.samples, found.effect
    if found.compute.cost_ns is None or effect is None:
        return found.compute
    start, end = timeline.ops.start_ns[samples.op], timeline.ops.end_ns[samples.op]
    covered = np.zeros(len(samples.op), dtype=np.int64)
    for key, union in unions.items():
        here = samples.device == devices.index(key)
        covered[here] = intervals.covered(start[here], end[here], union)
    return _scaled(found.compute, effect, samples, covered)


def _scaled(compute: Slowdown, effect: Effect, samples: Samples, covered: Int64) -> Slowdown:
    ratio, _ = effect.ratio_of((2 * covered > samples.covered) & (covered > 0) | (samples.covered == 0))
    total = int(covered.sum())
    if ratio is None:
        reason = "too few kernels ran beside this family in some steps and alone in others"
        return dataclasses.replace(
            compute, reason=reason, cost_ns=None, cost_low_ns=None, cost_high_ns=None, without_estimate_ns=total
        )
    low, value, high = (round(total * (1 - 1 / part)) for part in (ratio.low, ratio.value, ratio.high))
    return dataclasses.replace(compute, cost_ns=value, cost_low_ns=low, cost_high_ns=high, without_estimate_ns=0)
