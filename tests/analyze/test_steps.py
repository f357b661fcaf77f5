"""Steps: where they begin and end, which window they make, and what the options may ask for."""

from __future__ import annotations

import pytest

from tests.timelines import COMMUNICATION, COMPUTE, COPY, Call, Host, Op, build, info
from underlap.analyze.report import report
from underlap.errors import OptionError
from underlap.report import Report
from underlap.timeline import HostKind, Timeline

GRAPH = HostKind.LAUNCH
TWO_STEPS = (Host("ProfilerStep#1", 0, 10), Host("ProfilerStep#2", 10, 20))


def borders(found: Report) -> list[tuple[str, int, int]]:
    return [(step.step, step.start_ns, step.end_ns) for step in found.steps]


def three_steps() -> Timeline:
    host = [Host(f"ProfilerStep#{number}", 10 * number, 10 * number + 10) for number in (1, 2, 3)]
    ops = [
        Op(COMPUTE, 10, 16, launch=10),
        Op(COMPUTE, 20, 22, launch=20),
        Op(COMMUNICATION, 22, 26, 0, launch=21),
        Op(COMPUTE, 30, 39, launch=30),
    ]
    return build(ops, calls=[Call()], host=host)


def test_a_timeline_without_operations_has_no_step_and_no_window() -> None:
    found = report(build(host=TWO_STEPS, ranks=[info(0)]))

    assert (found.steps, found.ranks, found.summary, found.step_summary) == ([], [], None, None)


def test_graph_launches_without_operations_make_no_steps() -> None:
    host = [Host("cudaGraphLaunch", 0, 1, GRAPH), Host("cudaGraphLaunch", 5, 6, GRAPH)]

    assert report(build(host=host, ranks=[info(0)])).steps == []


def test_without_steps_the_window_is_the_whole_trace_and_says_why() -> None:
    found = report(build([Op(COMPUTE, 3, 9)]))

    assert (found.window.kind, found.ranks[0].start_ns, found.ranks[0].end_ns) == ("whole", 3, 9)
    assert "no step annotations" in found.window.definition


def test_one_step_ends_with_the_last_kernel_launched_in_it() -> None:
    found = report(build([Op(COMPUTE, 2, 6, launch=1), Op(COMPUTE, 11, 30, launch=9)], host=TWO_STEPS[:1]))

    assert borders(found) == [("ProfilerStep#1", 2, 30)]


def test_a_kernel_queued_beyond_the_annotation_counts_in_the_step_that_launched_it() -> None:
    ops = [
        Op(COMPUTE, 2, 6, launch=1),
        Op(COMMUNICATION, 8, 14, 0, launch=5),
        Op(COMPUTE, 15, 18, launch=11),
        Op(COMPUTE, 25, 30, launch=21),
    ]
    found = report(build(ops, calls=[Call()], host=TWO_STEPS))

    assert borders(found) == [("ProfilerStep#1", 2, 15), ("ProfilerStep#2", 15, 25)]
    assert [(row.step, row.start_ns, row.end_ns) for row in found.instances] == [("ProfilerStep#1", 8, 14)]
    assert found.window.outside_ns == 5


def test_an_operation_over_the_border_is_cut_there_and_counted_where_it_was_launched() -> None:
    ops = [
        Op(COMPUTE, 2, 6, launch=1),
        Op(COMMUNICATION, 8, 18, 0, lane="9", launch=5),
        Op(COMPUTE, 14, 20, launch=11),
    ]
    timeline = build(ops, calls=[Call()], host=TWO_STEPS)
    first, second = report(timeline).steps

    assert (first.communication_ns, first.exposed_ns, second.communication_ns, second.hidden_ns) == (6, 6, 4, 4)
    assert [report(timeline, step_numbers=[number]).ranks[0].communication_kernels for number in (1, 2)] == [1, 0]


def test_a_copy_launched_first_does_not_begin_the_step() -> None:
    found = report(build([Op(COPY, 1, 2, launch=0), Op(COMPUTE, 4, 6, launch=3)], host=TWO_STEPS[:1]))

    assert borders(found) == [("ProfilerStep#1", 4, 6)]


def test_without_launches_the_annotation_is_the_step() -> None:
    found = report(build([Op(COMPUTE, 2, 6), Op(COMPUTE, 8, 14)], host=TWO_STEPS))

    assert borders(found) == [("ProfilerStep#1", 0, 10), ("ProfilerStep#2", 10, 20)]
    assert [step.compute_ns for step in found.steps] == [6, 4]


def test_host_time_between_two_annotations_belongs_to_the_earlier_step() -> None:
    host = [Host("ProfilerStep#1", 0, 5), Host("ProfilerStep#2", 15, 20)]
    ops = [Op(COMPUTE, 1, 2, launch=0), Op(COMPUTE, 8, 9, launch=7), Op(COMPUTE, 16, 19, launch=15)]

    assert borders(report(build(ops, host=host))) == [("ProfilerStep#1", 1, 16), ("ProfilerStep#2", 16, 19)]


def test_each_device_has_its_own_borders() -> None:
    ops = [Op(COMPUTE, 2, 6, launch=1), Op(COMPUTE, 12, 14, launch=11)]
    ops += [Op(COMPUTE, 3, 9, launch=1, device=1), Op(COMPUTE, 13, 15, launch=12, device=1)]
    found = report(build(ops, host=TWO_STEPS))

    assert borders(found) == [
        ("ProfilerStep#1", 2, 12),
        ("ProfilerStep#2", 12, 14),
        ("ProfilerStep#1", 3, 13),
        ("ProfilerStep#2", 13, 15),
    ]
    assert [step.device for step in found.steps] == [0, 0, 1, 1]


def test_some_steps_make_a_window_with_a_gap() -> None:
    found = report(three_steps(), step_numbers=[3, 1])
    (row,) = found.ranks

    assert found.window.steps_used == ["ProfilerStep#1", "ProfilerStep#3"]
    assert (row.start_ns, row.end_ns, row.span_ns) == (10, 39, 19)
    assert (row.compute_ns, row.communication_ns, row.idle_ns, row.compute_kernels) == (15, 0, 4, 2)
    assert [step.used for step in found.steps] == [True, False, True]
    assert found.instances == []
    assert found.window.outside_ns == 6


def test_a_repeated_step_number_counts_once() -> None:
    assert report(three_steps(), step_numbers=[2, 2]) == report(three_steps(), step_numbers=[2])


@pytest.mark.parametrize("label", ["step 7", "iteration 7", "train_step_7", "Iteration: 7", "ProfilerStep#7"])
def test_the_usual_spellings_mark_a_training_step(label: str) -> None:
    found = report(build([Op(COMPUTE, 2, 6)], host=[Host(label, 0, 10)]), step_numbers=[7])

    assert found.window.steps_used == [label]


@pytest.mark.parametrize(
    "label", ["epoch 7", "optimizer.step", "stepwise 7 up", "ProfilerStep", "ProfilerStep#99999999999", f"step {'9' * 5000}"]
)
def test_other_annotations_mark_no_step(label: str) -> None:
    assert report(build([Op(COMPUTE, 2, 6)], host=[Host(label, 0, 10)])).steps == []


def test_serving_steps_are_numbered_by_position() -> None:
    host = [Host("execute_context_1(8)_generation_0(0)", 0, 10), Host("execute_context_0(0)_generation_4(4)", 10, 20)]
    found = report(build([Op(COMPUTE, 2, 6), Op(COMPUTE, 12, 13)], host=host), step_numbers=[1])

    assert found.window.steps_used == [host[1].name]
    assert found.ranks[0].compute_ns == 1


def test_training_annotations_win_over_serving_annotations() -> None:
    found = report(build([Op(COMPUTE, 2, 6)], host=[Host("execute_model", 0, 4), *TWO_STEPS]))

    assert found.window.steps_found == ["ProfilerStep#1", "ProfilerStep#2"]


def graph_replays() -> Timeline:
    host = [Host("cudaGraphLaunch", start, start + 1, GRAPH) for start in (0, 10, 20)]
    ops = [Op(COMPUTE, start + 2, start + 8, launch=start, graph=1) for start in (0, 10, 20)]
    return build(ops, host=host)


def test_graph_launches_are_steps_only_when_asked_for() -> None:
    default, asked = report(graph_replays()), report(graph_replays(), window="steps")

    assert default.window.kind == "whole"
    assert asked.window.steps_used == ["graph launch 0", "graph launch 1", "graph launch 2"]
    assert borders(asked) == [("graph launch 0", 2, 12), ("graph launch 1", 12, 22), ("graph launch 2", 22, 28)]


def test_graph_steps_of_a_rank_end_with_its_own_last_event() -> None:
    host = [Host("cudaGraphLaunch", start, start + 1, GRAPH, rank) for rank in (0, 1) for start in (0, 10)]
    ops = [Op(COMPUTE, 2, 18), Op(COMPUTE, 2, 50, rank=1)]
    found = report(build(ops, host=host), window="steps")

    assert [(step.rank, step.start_ns, step.end_ns) for step in found.steps] == [(0, 0, 10), (0, 10, 18), (1, 0, 10), (1, 10, 50)]


def test_a_single_graph_launch_is_no_step() -> None:
    assert report(build([Op(COMPUTE, 2, 8, launch=0)], host=[Host("cudaGraphLaunch", 0, 1, GRAPH)])).steps == []


def test_asking_for_a_step_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(OptionError, match=r"--steps asks for 4, 9; the trace has 1, 2, 3"):
        report(three_steps(), step_numbers=[9, 2, 4])


def test_asking_for_steps_of_a_trace_without_any_is_an_error() -> None:
    timeline = build([Op(COMPUTE, 0, 1)])
    with pytest.raises(OptionError, match="the trace has no steps"):
        report(timeline, window="steps")
    with pytest.raises(OptionError, match="the trace has no steps"):
        report(timeline, step_numbers=[0])


def test_steps_and_the_whole_trace_cannot_both_be_asked_for() -> None:
    with pytest.raises(OptionError, match="contradict"):
        report(three_steps(), window="whole", step_numbers=[1])


def test_a_rank_without_the_steps_of_the_window_is_left_out_and_noted() -> None:
    found = report(build([Op(COMPUTE, 2, 6), Op(COMPUTE, 2, 6, rank=1)], host=TWO_STEPS))

    assert [row.rank for row in found.ranks] == [0]
    assert [note.text for note in found.notes if note.code == "ranks_without_steps"] == [
        "not counted, without any of the steps of the window: rank 1"
    ]


def test_where_steps_between_the_chosen_ones_are_left_out_a_note_says_what_still_has_them() -> None:
    between = "steps_left_out_between"

    assert between in [note.code for note in report(three_steps(), step_numbers=[1, 3]).notes]
    assert between not in [note.code for note in report(three_steps(), step_numbers=[1, 2]).notes]


def test_annotations_that_nest_are_cut_so_that_no_time_counts_twice() -> None:
    host = [Host("iteration 0", 0, 30), Host("step 1", 10, 20), Host("step 2", 20, 28)]
    found = report(build([Op(COMPUTE, 0, 30)], host=host))

    assert borders(found) == [("iteration 0", 0, 10), ("step 1", 10, 20), ("step 2", 20, 28)]
    assert found.ranks[0].span_ns == found.ranks[0].compute_ns == 28


def test_annotations_that_begin_together_do_not_overlap() -> None:
    found = report(build([Op(COMPUTE, 0, 30)], host=[Host("step 1", 0, 9), Host("step 2", 0, 9)]))

    assert borders(found) == [("step 2", 0, 9)]


def test_a_later_step_that_runs_first_on_an_idle_stream_does_not_overlap_the_earlier() -> None:
    host = [Host(f"ProfilerStep#{number}", 10 * number, 10 * number + 10) for number in range(4)]
    ops = [
        Op(COMPUTE, 5, 50, launch=1),
        Op(COMPUTE, 50, 60, launch=11),
        Op(COMMUNICATION, 40, 45, 0, lane="9", launch=21),
        Op(COMPUTE, 60, 70, launch=31),
    ]
    found = report(build(ops, calls=[Call()], host=host))

    assert borders(found) == [("ProfilerStep#0", 5, 40), ("ProfilerStep#2", 40, 60), ("ProfilerStep#3", 60, 70)]
