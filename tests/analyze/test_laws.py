"""Laws of the account: what must hold for any Timeline, whatever the figures are."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle.accounting import PARTS, Row, account, whole
from tests.strategies import timelines
from underlap.analyze import groups
from underlap.analyze.report import report
from underlap.report import FamilyRow, RankRow, Report, StepRow, from_json, to_json
from underlap.timeline import UNKNOWN_NS, OpClass, Timeline, concatenate, renumber

LAW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
WINDOWS = (None, "whole")
ANNOTATED = ("training", "serving")
KINDS = {
    OpClass.COMPUTE: "compute",
    OpClass.COMMUNICATION: "communication",
    OpClass.WAIT: "communication",
    OpClass.FUSED: "fused",
    OpClass.COPY: "copy",
}
SUMMED = ("span", *PARTS)
FAMILY_TIMES = ("communication_ns", "hidden_ns", "under_fused_ns", "exposed_ns", "exposed_share_ns", "fused_ns")


def parts_of(row: RankRow | StepRow) -> dict[str, int]:
    return {name: getattr(row, f"{name}_ns") for name in SUMMED}


def times_of(families: list[FamilyRow]) -> dict[Any, list[int]]:
    return {(row.axis, row.collective): [getattr(row, name) for name in FAMILY_TIMES] for row in families}


def without_order(found: Report) -> dict[str, Any]:
    """A Report's tables as multisets, for Timelines whose ranks or calls come in another order."""
    tables = ("ranks", "families", "steps", "lanes", "instances", "unmatched")
    return {name: Counter(map(repr, getattr(found, name))) for name in tables} | {
        "window": found.window,
        "summary": found.summary,
        "provenance": found.provenance,
    }


def without_absolute_times(found: Report) -> Report:
    instances = [msgspec.structs.replace(row, perfetto_ts="") for row in found.instances]
    return msgspec.structs.replace(found, origin_ns="", instances=instances)


def busy(rows: list[Row], stretches: list[tuple[int, int]]) -> int:
    found = account(rows, stretches)
    return found.wall - found.parts["idle"]


def file_of(timeline: Timeline, rank: int, later: int) -> Timeline:
    """One rank as a file of its own: its lanes and threads only, and times relative to a later origin."""
    own = timeline.of_ranks({rank})
    lanes, threads = ([at for at, entry in enumerate(entries) if entry.rank == rank] for entries in (own.lanes, own.threads))
    place = {name: np.full(len(getattr(own, name)), -1, dtype=np.int32) for name in ("lanes", "threads")}
    place["lanes"][lanes], place["threads"][threads] = np.arange(len(lanes)), np.arange(len(threads))
    launch = np.where(own.ops.launch_ns == UNKNOWN_NS, UNKNOWN_NS, own.ops.launch_ns - later)
    return dataclasses.replace(
        own,
        origin_ns=own.origin_ns + later,
        lanes=tuple(own.lanes[at] for at in lanes),
        threads=tuple(own.threads[at] for at in threads),
        ops=own.ops.replace(
            start_ns=own.ops.start_ns - later,
            end_ns=own.ops.end_ns - later,
            launch_ns=launch,
            lane=place["lanes"][own.ops.lane],
            thread=place["threads"][own.ops.thread],
        ),
        host=own.host.replace(
            start_ns=own.host.start_ns - later,
            end_ns=own.host.end_ns - later,
            thread=place["threads"][own.host.thread],
        ),
    )


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines())
def test_the_parts_add_up_to_the_wall_of_each_device_and_step(window: str | None, timeline: Timeline) -> None:
    found = report(timeline, window=window)

    for row in [*found.ranks, *found.steps]:
        assert row.compute_ns + row.fused_ns + row.exposed_ns + row.copy_ns + row.idle_ns == row.span_ns
        assert min(parts_of(row).values()) >= 0


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines())
def test_communication_is_hidden_or_under_fused_or_exposed(window: str | None, timeline: Timeline) -> None:
    found = report(timeline, window=window)

    for row in [*found.ranks, *found.steps, *found.families]:
        assert row.communication_ns == row.hidden_ns + row.under_fused_ns + row.exposed_ns


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines())
def test_no_more_is_hidden_than_there_is_compute(window: str | None, timeline: Timeline) -> None:
    found = report(timeline, window=window)

    for row in [*found.ranks, *found.steps]:
        assert row.hidden_ns <= row.compute_ns
        assert row.under_fused_ns <= row.fused_ns


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines())
def test_the_shares_of_the_families_add_up_to_exposed(window: str | None, timeline: Timeline) -> None:
    found = report(timeline, window=window)

    assert sum(row.exposed_share_ns for row in found.families) == sum(row.exposed_ns for row in found.ranks)
    for row in found.families:
        assert 0 <= row.exposed_share_ns <= row.exposed_ns


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines())
def test_any_timeline_has_the_figures_of_the_slice_walk(window: str | None, timeline: Timeline) -> None:
    found = report(timeline, window=window)
    settled = groups.settle(timeline, None)
    ops, families = timeline.ops, Counter[Any]()
    for row in found.ranks:
        stretches = [(row.start_ns, row.end_ns)]
        if found.window.kind == "steps":
            used = [step for step in found.steps if step.used and (step.rank, step.device) == (row.rank, row.device)]
            stretches = [(step.start_ns, step.end_ns) for step in used]
        rows = []
        for at in np.flatnonzero((ops.rank == row.rank) & (ops.device == row.device)).tolist():
            call = int(ops.collective[at])
            axis = settled.axis[settled.axis_of[call]].name if call >= 0 else None
            family = (axis, timeline.name_of(int(settled.table.collective[call]))) if call >= 0 else None
            rows.append(Row(KINDS[OpClass(ops.op_class[at])], int(ops.start_ns[at]), int(ops.end_ns[at]), family))
        expected = account(rows, stretches)
        assert parts_of(row) == {"span": expected.wall, **expected.parts}
        for family, amounts in expected.families.items():
            families.update({(family, f"{name}_ns"): value for name, value in amounts.items()})

    got = {((row.axis, row.collective), name): getattr(row, name) for row in found.families for name in FAMILY_TIMES}
    assert {key: value for key, value in families.items() if value} == {key: value for key, value in got.items() if value}


@LAW
@given(timeline=timelines())
def test_lanes_and_time_outside_are_those_of_the_slice_walk(timeline: Timeline) -> None:
    found, ops, outside = report(timeline), timeline.ops, 0
    lanes: dict[tuple[int, int, str], dict[str, int]] = {}
    for rank, device in sorted({(lane.rank, lane.device) for lane in timeline.lanes}):
        rows: dict[str, list[Row]] = {}
        for at in np.flatnonzero((ops.rank == rank) & (ops.device == device)).tolist():
            row = Row(KINDS[OpClass(ops.op_class[at])], int(ops.start_ns[at]), int(ops.end_ns[at]), (None, None))
            rows.setdefault(timeline.lanes[ops.lane[at]].label, []).append(row)
        everything = [row for own in rows.values() for row in own]
        used = [step for step in found.steps if step.used and (step.rank, step.device) == (rank, device)]
        stretches = whole(everything) if found.window.kind == "whole" else [(step.start_ns, step.end_ns) for step in used]
        outside += busy(everything, whole(everything)) - busy(everything, stretches)
        for label, own in rows.items() if stretches else []:
            lanes[rank, device, label] = {
                f"{kind}_ns": account([row for row in own if row.kind == kind], stretches).parts[kind]
                for kind in ("compute", "fused", "communication", "copy")
            }

    assert found.window.outside_ns == outside
    for lane in found.lanes:
        assert {name: getattr(lane, name) for name in next(iter(lanes.values()))} == lanes[lane.rank, lane.device, lane.lane]
    assert len(found.lanes) == len(lanes)


@LAW
@given(timeline=timelines())
def test_the_steps_of_a_device_do_not_overlap(timeline: Timeline) -> None:
    found = report(timeline)
    for device in {(step.rank, step.device) for step in found.steps}:
        own = sorted((step.start_ns, step.end_ns) for step in found.steps if (step.rank, step.device) == device)

        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(own))


@LAW
@given(timeline=timelines(ANNOTATED))
def test_the_steps_add_up_to_the_window_made_of_them(timeline: Timeline) -> None:
    found = report(timeline)

    assert (found.window.kind == "steps") == bool(found.steps)
    for row in found.ranks if found.steps else []:
        own = [parts_of(step) for step in found.steps if (step.rank, step.device) == (row.rank, row.device)]

        assert {name: sum(step[name] for step in own) for name in SUMMED} == parts_of(row)


@LAW
@given(timeline=timelines())
def test_adjacent_steps_add_up_to_the_stretch_from_first_to_last(timeline: Timeline) -> None:
    found, ops = report(timeline), timeline.ops
    for rank, device in {(step.rank, step.device) for step in found.steps}:
        own = sorted((row for row in found.steps if (row.rank, row.device) == (rank, device)), key=lambda row: row.start_ns)
        gap = next((at for at, (before, step) in enumerate(itertools.pairwise(own), 1) if before.end_ns != step.start_ns), None)
        chain = own[:gap]
        mine = np.flatnonzero((ops.rank == rank) & (ops.device == device)).tolist()
        rows = [Row(KINDS[OpClass(ops.op_class[at])], int(ops.start_ns[at]), int(ops.end_ns[at]), (None, None)) for at in mine]

        together = account(rows, [(chain[0].start_ns, chain[-1].end_ns)])
        assert together.parts == {name: sum(getattr(step, f"{name}_ns") for step in chain) for name in PARTS}


@LAW
@given(timeline=timelines(), shift=st.integers(-(1 << 55), 1 << 55))
def test_another_origin_changes_nothing_but_absolute_times(timeline: Timeline, shift: int) -> None:
    before = report(timeline)
    after = report(dataclasses.replace(timeline, origin_ns=timeline.origin_ns + shift))

    assert int(after.origin_ns) == int(before.origin_ns) + shift
    for old, new in zip(before.instances, after.instances, strict=True):
        assert int(new.perfetto_ts) == int(old.perfetto_ts) + shift
    assert without_absolute_times(before) == without_absolute_times(after)


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines(), shift=st.integers(-(1 << 55), 1 << 55))
def test_shifting_every_clock_moves_points_in_time_and_no_duration(window: str | None, timeline: Timeline, shift: int) -> None:
    ops, host = timeline.ops, timeline.host
    launch = np.where(ops.launch_ns == UNKNOWN_NS, UNKNOWN_NS, ops.launch_ns + shift)
    moved = dataclasses.replace(
        timeline,
        ops=ops.replace(start_ns=ops.start_ns + shift, end_ns=ops.end_ns + shift, launch_ns=launch),
        host=host.replace(start_ns=host.start_ns + shift, end_ns=host.end_ns + shift),
    )
    before, after = report(timeline, window=window), report(moved, window=window)

    assert [parts_of(row) for row in before.ranks] == [parts_of(row) for row in after.ranks]
    assert [row.start_ns + shift for row in before.ranks] == [row.start_ns for row in after.ranks]
    assert [(row.step, row.start_ns + shift, parts_of(row)) for row in before.steps] == [
        (row.step, row.start_ns, parts_of(row)) for row in after.steps
    ]
    for table in ("summary", "step_summary", "families", "lanes", "unmatched", "notes", "window"):
        assert getattr(before, table) == getattr(after, table)
    assert [(row.start_ns + shift, row.hidden_ns, row.exposed_ns, row.step, row.outlier) for row in before.instances] == [
        (row.start_ns, row.hidden_ns, row.exposed_ns, row.step, row.outlier) for row in after.instances
    ]


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines(), data=st.data())
def test_cutting_an_operation_in_two_changes_no_total_and_no_share(
    window: str | None, timeline: Timeline, data: st.DataObject
) -> None:
    ops = timeline.ops
    if len(ops) == 0:
        return
    at = data.draw(st.integers(0, len(ops) - 1))
    cut = data.draw(st.integers(int(ops.start_ns[at]), int(ops.end_ns[at])))
    rows = np.append(np.arange(len(ops)), at)
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    end[at], start[-1] = cut, cut
    halves = dataclasses.replace(timeline, ops=ops.take(rows).replace(start_ns=start, end_ns=end))
    before, after = report(timeline, window=window), report(halves, window=window)

    assert [parts_of(row) for row in before.ranks] == [parts_of(row) for row in after.ranks]
    assert [parts_of(row) for row in before.steps] == [parts_of(row) for row in after.steps]
    assert times_of(before.families) == times_of(after.families)
    assert before.lanes == after.lanes
    assert [row.duration_ns for row in before.instances] == [row.duration_ns for row in after.instances]


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines(), random=st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing_in_the_report(window: str | None, timeline: Timeline, random: Any) -> None:
    orders = [list(range(len(table))) for table in (timeline.ops, timeline.host)]
    for order in orders:
        random.shuffle(order)
    shuffled = dataclasses.replace(
        timeline,
        ops=timeline.ops.take(np.array(orders[0], dtype=np.int64)),
        host=timeline.host.take(np.array(orders[1], dtype=np.int64)),
    )

    assert report(shuffled, window=window) == report(timeline, window=window)


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines(), random=st.randoms(use_true_random=False))
def test_permuting_the_ranks_permutes_the_rows(window: str | None, timeline: Timeline, random: Any) -> None:
    old = [info.rank for info in timeline.ranks]
    new = old.copy()
    random.shuffle(new)
    mapping = dict(zip(old, new, strict=True))
    before, after = report(timeline, window=window), report(renumber(timeline, mapping), window=window)

    assert {(mapping[row.rank], row.device): parts_of(row) for row in before.ranks} == {
        (row.rank, row.device): parts_of(row) for row in after.ranks
    }
    assert [(row.rank, row.device) for row in after.ranks] == sorted((row.rank, row.device) for row in after.ranks)
    assert Counter((mapping[row.rank], row.step, row.start_ns, row.idle_ns) for row in before.steps) == Counter(
        (row.rank, row.step, row.start_ns, row.idle_ns) for row in after.steps
    )
    assert Counter((mapping[row.rank], row.device, row.lane, row.compute_ns) for row in before.lanes) == Counter(
        (row.rank, row.device, row.lane, row.compute_ns) for row in after.lanes
    )
    assert Counter((mapping[row.rank], row.start_ns, row.hidden_ns) for row in before.instances) == Counter(
        (row.rank, row.start_ns, row.hidden_ns) for row in after.instances
    )


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines(), data=st.data())
def test_a_rank_alone_has_the_row_that_it_has_among_others(window: str | None, timeline: Timeline, data: st.DataObject) -> None:
    together = report(timeline, window=window)
    rank = data.draw(st.sampled_from([info.rank for info in timeline.ranks]))
    alone = report(timeline.of_ranks({rank}), window=window)
    own = [row for row in together.ranks if row.rank == rank]

    # A rank without steps has no row in a window made of steps.
    assert alone.ranks == own or (alone.window.kind, together.window.kind, own) == ("whole", "steps", [])
    if alone.window.kind != together.window.kind:
        return
    assert alone.steps == [row for row in together.steps if row.rank == rank]
    assert alone.lanes == [row for row in together.lanes if row.rank == rank]


@pytest.mark.parametrize("window", WINDOWS)
@LAW
@given(timeline=timelines(), random=st.randoms(use_true_random=False))
def test_ranks_put_together_again_give_the_same_report(window: str | None, timeline: Timeline, random: Any) -> None:
    order = [info.rank for info in timeline.ranks]
    random.shuffle(order)
    # One part keeps the origin, which is the earliest, so that times stay comparable.
    joined = concatenate([file_of(timeline, rank, at * random.randint(0, 99)) for at, rank in enumerate(order)])

    assert joined.origin_ns == timeline.origin_ns
    assert without_order(report(joined, window=window)) == without_order(report(timeline, window=window))


@LAW
@given(timeline=timelines())
def test_a_report_survives_its_json(timeline: Timeline) -> None:
    found = report(timeline)

    assert from_json(to_json(found)) == found
    assert to_json(from_json(to_json(found))) == to_json(found)
