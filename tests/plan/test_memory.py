"""The memory peak against a plain walker that keeps a dictionary of what is alive."""

from __future__ import annotations

from hypothesis import given, settings

from tests.plan.drawn import plans
from tests.schedule.scenarios import Drawn, scenarios
from underlap.expansion import expand
from underlap.hazards import memory_peak
from underlap.plan import Plan, Role

_Use = tuple[int, int, bool, bool, bool]
"""Row, row of its end, reads, writes, whole."""


def walked_peak(plan: Plan, role: Role) -> int:
    """Bytes at the fullest row: an instance is alive from a write that does not read it to the last use before the next such."""
    expansion = expand(plan, role)
    rows = expansion.rows
    uses: dict[tuple[str, int, int], dict[int, list[bool]]] = {}
    for row, instance, writes in zip(
        *(c.tolist() for c in (expansion.accesses.row, expansion.accesses.instance, expansion.accesses.writes)), strict=True
    ):
        name, micro_batch, layer = expansion.decode(instance)
        whole = True
        while (part := plan.buffers[name].part_of) is not None:
            name, whole = part[0], False
        reads, written, all_whole = uses.setdefault((name, micro_batch, layer), {}).setdefault(row, [False, False, True])
        uses[name, micro_batch, layer][row] = [reads or not writes, written or bool(writes), all_whole and whole]
    held = [0] * (len(rows) + 1)
    static = 0
    for (name, _, _), rows_of in uses.items():
        buffer = plan.buffers[name]
        if buffer.place != "device":
            continue
        if buffer.persistent:
            static += buffer.nbytes
            continue
        lives: list[list[int]] = []
        before: list[bool] | None = None
        for row, use in sorted(rows_of.items()):
            reads, writes, whole = use
            ends = max(row, int(rows.other[row]))
            rewritten = writes and not reads
            continues = before is not None and before[1] and not (whole and before[2])
            if before is None or (rewritten and not continues):
                lives.append([row, ends])
            lives[-1][1] = max(lives[-1][1], ends)
            before = use
        for born, dead in lives:
            for row in range(born, dead + 1):
                held[row] += buffer.nbytes
    return static + max(held)


@given(plans())
def test_the_peak_of_drawn_operations_is_that_of_a_plain_walk(plan: Plan) -> None:
    assert memory_peak(plan, expand(plan, plan.roles[0])) == walked_peak(plan, plan.roles[0])


@settings(max_examples=25, deadline=None)
@given(scenarios())
def test_the_peak_of_planned_scenarios_is_that_of_a_plain_walk(drawn: Drawn) -> None:
    made = drawn.plan()
    for role in made.roles:
        assert memory_peak(made, expand(made, role)) == walked_peak(made, role)
