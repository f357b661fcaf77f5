"""Leaving out layers in the middle of many equal ones, and putting their time back in.

Layers are equal where every step that is about them uses the same blocks in the same order. A few at both ends of such a
region are kept; where the times between the kept ones no longer change, those left out take just as long.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from underlap.columns import Int64
from underlap.plan import Place, Role, Step


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """Where layers were left out of a pass over them: behind the step `at`, `missing` layers of `steps` steps each."""

    at: int
    steps: int
    missing: int


@dataclasses.dataclass(frozen=True, slots=True)
class Thinned:
    """A stretch as a role of its own, with fewer layers."""

    role: Role
    gaps: tuple[Gap, ...]

    def stretched(self, ends: Int64, same_ns: int) -> int | None:
        """The time of the whole stretch, from when each kept step ends; None where it has not settled at some gap."""
        total = int(ends[-1])
        for gap in self.gaps:
            last, before, first, behind = (
                int(ends[gap.at + gap.steps * move]) if gap.at + gap.steps * move >= 0 else None for move in (0, -1, -2, 1)
            )
            if before is None or first is None or last is None or behind is None:
                return None
            if abs((last - before) - (before - first)) > same_ns or abs((behind - last) - (last - before)) > same_ns:
                return None
            total += gap.missing * (last - before)
        return total

    def periods(self, ends: Int64) -> Iterator[tuple[int, int, int]]:
        """(begin, end, how often) of the time that stands for each gap."""
        for gap in self.gaps:
            yield int(ends[gap.at - gap.steps]), int(ends[gap.at]), gap.missing


def thinned(role: Role, steps: tuple[Step, ...], keep: int) -> Thinned:
    """The stretch with `keep` layers at both ends of each region of equal ones."""
    dropped = _dropped(steps, keep)
    whole = dataclasses.replace(role, program=steps)
    if not dropped:
        return Thinned(whole, ())
    kept = sorted({layer for chunk in role.chunks for layer in chunk} - dropped)
    number = {layer: at for at, layer in enumerate(kept)}
    chunks, begin = [], 0
    for chunk in role.chunks:
        size = sum(layer in number for layer in chunk)
        chunks.append(range(begin, begin + size))
        begin += size
    program: list[Step] = []
    gaps: list[Gap] = []
    missing: dict[int, int] = {}
    for step in steps:
        layer = step.place.layer
        if layer in dropped:
            missing[layer] = missing.get(layer, 0) + 1
            continue
        _close(gaps, missing, len(program) - 1)
        program.append(Step(step.block, _moved(step.place, number), _moved(step.second, number)))
    _close(gaps, missing, len(program) - 1)
    return Thinned(dataclasses.replace(role, program=tuple(program), chunks=tuple(chunks)), tuple(gaps))


def _close(gaps: list[Gap], missing: dict[int, int], at: int) -> None:
    if missing:
        gaps.append(Gap(at, max(missing.values()), len(missing)))
        missing.clear()


def _moved(place: Place, number: dict[int, int]) -> Place:
    return Place(place.micro_batch, number[place.layer]) if place.layer >= 0 else place


def _dropped(steps: tuple[Step, ...], keep: int) -> set[int]:
    """Layers in the middle of regions of equal ones. None where a step is about two places, or a region would hardly shrink."""
    if any(step.second.layer >= 0 or step.second.micro_batch >= 0 for step in steps):
        return set()
    signature: dict[int, list[tuple[str, int]]] = defaultdict(list)
    passes: dict[int, list[int]] = defaultdict(list)
    last = None
    number = -1
    for step in steps:
        if step.place.layer < 0:
            continue
        if step.place.layer != last:
            number += 1
            last = step.place.layer
            passes[last].append(number)
        signature[step.place.layer].append((step.block, step.place.micro_batch))
    dropped: set[int] = set()
    layers = sorted(signature)
    begin = 0
    for at in range(1, len(layers) + 1):
        if at < len(layers) and layers[at] == layers[at - 1] + 1 and _alike(signature, passes, layers[at - 1], layers[at]):
            continue
        region = layers[begin:at]
        if len(region) > 2 * keep + 2:
            dropped |= set(region[keep:-keep])
        begin = at
    return dropped


def _alike(signature: dict[int, list[tuple[str, int]]], passes: dict[int, list[int]], one: int, other: int) -> bool:
    """The same blocks, and neighbors in every pass."""
    if signature[one] != signature[other]:
        return False
    return all(abs(a - b) == 1 for a, b in zip(passes[one], passes[other], strict=True))
