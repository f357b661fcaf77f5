"""Dependences inferred from timing, tested on other steps: contradicted ones go, others hold in every step."""

import dataclasses

import numpy as np

from tests.analyze.drawn import COMMUNICATION, US, Op, Row, timeline
from underlap.analyze import graph, prediction, steps
from underlap.analyze.graph import EdgeKind
from underlap.timeline import HostKind, Timeline

STEP = 1000


def drawn(*gaps: float, length: float = 300) -> Timeline:
    """Per step a copy in lane 1 from 100 to 400, and a kernel in lane 0 that starts so much after (before) its end."""
    ops, rows = [], []
    for number, gap in enumerate(gaps):
        begin = number * STEP
        rows.append(Row(f"ProfilerStep#{number}", begin - 5, begin + STEP - 10, HostKind.ANNOTATION))
        ops += [
            Op(0, begin, begin + 20, launch=begin - 4),
            Op(1, begin + 100, begin + 400, launch=begin - 2, op_class=COMMUNICATION),
            Op(0, begin + 400 + gap, begin + 700 + gap, launch=begin - 1),
        ]
    return timeline(*ops, rows=tuple(rows))


def across(built: graph.Graph) -> list[tuple[int, int]]:
    chosen = built.edges.kind == EdgeKind.ACROSS
    return sorted(zip(built.edges.source[chosen].tolist(), built.edges.target[chosen].tolist(), strict=True))


def both(found: Timeline) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The edges across lanes that each step shows by itself, and those that hold over all steps."""
    return across(graph.build(found)), across(graph.build(found, step_of_op=steps.find(found).of_op))


def test_what_no_step_contradicts_holds_in_all_of_them() -> None:
    alone, together = both(drawn(2, 2, 2, 2))

    assert alone == together == [(1, 2), (4, 5), (7, 8), (10, 11)]


def test_a_step_in_which_the_later_one_starts_first_shows_a_coincidence() -> None:
    # In the third step the kernel runs from 150 us before the copy ends.
    alone, together = both(drawn(2, 2, -150, 2))

    assert alone == [(1, 2), (4, 5), (10, 11)]
    assert together == []


def test_a_start_within_the_error_of_the_clocks_contradicts_nothing() -> None:
    alone, together = both(drawn(2, 2, -0.5, 2))

    assert set(alone) <= set(together)
    assert (1, 2) in together


def test_a_step_in_which_it_held_nobody_up_has_the_dependence_too() -> None:
    # In the last step the kernel starts long after the copy, for another reason.
    found = drawn(2, 2, 2, 80)
    alone, together = both(found)
    built = graph.build(found, step_of_op=steps.find(found).of_op)
    last = np.flatnonzero((built.edges.kind == EdgeKind.ACROSS) & (built.edges.target == 11))

    assert (10, 11) not in alone
    assert (10, 11) in together
    # It does not explain that start: the lag is the usual one.
    assert (built.edges.lag_ns[last] < 20 * US).all()


def test_steps_with_another_number_of_the_name_are_not_compared() -> None:
    # The third step has one kernel more in lane 0: which one is which is not known.
    begins = [number * STEP for number in range(4)]
    ops = [Op(0, at, at + 20, launch=at - 4) for at in begins]
    ops += [Op(1, at + 100, at + 400, launch=at - 2, op_class=COMMUNICATION) for at in begins]
    ops += [Op(0, at + 402, at + 702, launch=at - 1) for at in begins if at != 2 * STEP]
    ops += [Op(0, 2 * STEP + at, 2 * STEP + at + 10, launch=2 * STEP - 1) for at in (250, 265)]
    rows = tuple(Row(f"ProfilerStep#{at}", at * STEP - 5, at * STEP + 990, HostKind.ANNOTATION) for at in range(4))

    assert both(drawn(2, 2, -150, 2))[1] == []
    assert both(timeline(*ops, rows=rows))[1] == [(4, 8), (5, 9), (7, 10)]


def test_one_step_alone_tests_nothing() -> None:
    found = drawn(2)

    assert both(found)[0] == both(found)[1]


def test_the_graph_that_predicts_a_step_knows_nothing_of_that_step() -> None:
    # Only the last step contradicts; predicting it from the one before, the graph still has the coincidence.
    found = drawn(2, 2, 2, -150)
    last = prediction.predict(found, steps.find(found), 0, 0)

    assert [one.step for one in last.found] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert last.not_comparable == 1
    assert all(abs(one.error) < 0.001 for one in last.found)


def test_an_untested_or_hardly_explained_graph_is_not_trusted_and_says_on_what_promises_rest() -> None:
    none = prediction.account(prediction.Predictions(found=(), not_comparable=0), 0, 0.5)
    good = prediction.Prediction(
        rank=0, from_step="a", step="b", before_ns=110, predicted_ns=101, observed_ns=100, matched_share=1.0
    )
    bad = prediction.Prediction(
        rank=0, from_step="a", step="b", before_ns=102, predicted_ns=120, observed_ns=100, matched_share=1.0
    )
    trusted = prediction.account(prediction.Predictions(found=(good,), not_comparable=0), 0, 0.9)
    worse = prediction.account(prediction.Predictions(found=(bad,), not_comparable=0), 0, 0.9)

    assert none.rests_on == (
        "a graph that no two comparable steps could test and a critical path of which known edges explain 50%"
    )
    assert (trusted.trusted, trusted.rests_on, trusted.better_than_no_change) == (True, None, True)
    assert worse.rests_on == "a graph that predicts the next step to 20.0%, where assuming no change errs by 2.0%"


def waited_for(*gaps: float) -> list[int]:
    """Per step a span of gloo from 50 to 400, and the thread that called it silent from 20 until so much after (before) its end.
    The spans that are waited for, by their rows: 1, 4, 7."""
    ops, rows = [], []
    for number, gap in enumerate(gaps):
        begin = number * STEP
        rows.append(Row(f"ProfilerStep#{number}", begin - 5, begin + STEP - 10, HostKind.ANNOTATION))
        ops += [
            Op(0, begin, begin + 20, launch=begin),
            Op(1, begin + 50, begin + 400, launch=begin + 19, op_class=COMMUNICATION, thread=1, call=number),
            Op(0, begin + 400 + gap, begin + 700 + gap, launch=begin + 400 + gap),
        ]
    found = timeline(*ops, rows=tuple(rows), calls=(0,) * len(gaps), launch_us=0)
    found = dataclasses.replace(found, ranks=tuple(dataclasses.replace(info, on_cpu=True) for info in found.ranks))
    edges = graph.build(found, step_of_op=steps.find(found).of_op).edges
    chosen = (edges.kind == EdgeKind.HANDOFF) & np.isin(edges.source, [3 * number + 1 for number in range(len(gaps))])
    return sorted(edges.source[chosen].tolist())


def test_a_span_whose_end_was_stamped_late_in_one_step_is_waited_for_in_the_others() -> None:
    # A thread of gloo that gets no core tells the one that waits, and stamps its end 100 us later.
    assert waited_for(30, -100, 30) == [1, 7]
    # One that went on long after it, for another reason, contradicts nothing either.
    assert waited_for(30, -100, 280) == [1, 7]


def test_where_as_many_steps_contradict_as_do_not_nobody_waited_for_a_span() -> None:
    assert waited_for(30, -100) == []
    assert waited_for(30, -100, -100) == []
