"""Notes: what can make the figures wrong comes first, each thing once."""

from __future__ import annotations

from tests.timelines import COMMUNICATION, COMPUTE, FUSED, WAIT, Call, Op, build, info
from underlap.analyze.report import report
from underlap.timeline import Note, Timeline

CUT = Note(code="truncated", text="rank0.json: cut short")


def codes(timeline: Timeline) -> list[str]:
    return [note.code for note in report(timeline).notes]


def text(timeline: Timeline, code: str) -> str:
    (found,) = [note.text for note in report(timeline).notes if note.code == code]
    return found


def test_a_complete_trace_of_one_rank_needs_no_note() -> None:
    assert codes(build([Op(COMPUTE, 0, 5)], ranks=[info(0, world=1)])) == []


def test_a_job_of_one_rank_is_not_missing_communication() -> None:
    assert "no_communication" not in codes(build([Op(COMPUTE, 0, 5)], ranks=[info(0)]))


def test_a_job_of_many_ranks_without_communication_says_so_loudly_and_first() -> None:
    ops = [Op(COMPUTE, 0, 9, name="mystery_long"), Op(COMPUTE, 10, 12, name="mystery_short"), Op(COMPUTE, 20, 60, name="gemm")]
    timeline = build(ops, ranks=[info(0, world=8)], unknown={"mystery_long", "mystery_short"}, notes=[CUT])

    assert codes(timeline)[0] == "no_communication"
    said = text(timeline, "no_communication")
    assert said.startswith("NO COMMUNICATION RECOGNIZED in a job of 8 ranks")
    assert "known family: mystery_long, mystery_short." in said
    assert "gemm" not in said
    assert "--names" in said


def test_the_longest_unknown_kernels_are_named_and_long_names_are_cut() -> None:
    ops = [Op(COMPUTE, 10 * at, 10 * at + at, name=f"k{at}" * (40 if at == 5 else 1)) for at in range(1, 6)]
    timeline = build(ops, ranks=[info(0, world=2)], unknown={op.name for op in ops})

    assert f"family: {('k5' * 40)[:57]}..., k4, k3. " in text(timeline, "no_communication")


def test_no_communication_and_no_unknown_kernel_names_none() -> None:
    assert "family: none." in text(build([Op(COMPUTE, 0, 5)], ranks=[info(0, world=2)]), "no_communication")


def test_any_kernel_that_communicates_silences_the_warning() -> None:
    for op_class in (COMMUNICATION, FUSED, WAIT):
        timeline = build([Op(op_class, 0, 5, 0)], calls=[Call()], ranks=[info(0, world=8)])

        assert "no_communication" not in codes(timeline)


def test_ranks_that_are_not_in_the_input_are_counted() -> None:
    ops = [Op(COMPUTE, 0, 5, rank=rank) for rank in (0, 1, 2, 5)]
    timeline = build(ops, ranks=[info(rank, world=8) for rank in (0, 1, 2, 5)])

    assert text(timeline, "missing_ranks") == "only 4 ranks of 8 in the input (0-2, 5)"


def test_files_that_disagree_about_the_world_size_are_said_to() -> None:
    timeline = build([Op(COMPUTE, 0, 5)], ranks=[info(0, world=2), info(1, world=4)])

    assert text(timeline, "world_size_differs") == "the files disagree about the world size ([2, 4]); it is unknown"


def test_kernels_that_do_not_say_their_collective_are_counted_with_their_time() -> None:
    timeline = build([Op(COMMUNICATION, 0, 2_500_000, 0)], calls=[Call(None)], ranks=[info(0)])

    assert text(timeline, "collective_unknown").startswith("1 communication kernel (2.500 ms)")


def test_the_share_of_time_without_bytes_is_told() -> None:
    ops = [Op(COMMUNICATION, 0, 75, 0), Op(COMMUNICATION, 100, 125, 1)]
    timeline = build(ops, calls=[Call(), Call(payload=8)], ranks=[info(0)])

    assert text(timeline, "bytes_unknown") == "bytes are unknown for 75.0% of the communication kernel time"


def test_the_longest_of_the_outliers_is_named() -> None:
    ops = [Op(COMMUNICATION, 10_000_000 * at, 10_000_000 * at + (4_000_000 if at == 3 else 1_000_000), at) for at in range(4)]
    timeline = build(ops, calls=[Call(payload=8)] * 4, ranks=[info(0)])

    assert text(timeline, "outliers") == "1 call took over 3x the median of equal size; longest: all_reduce on rank 0, 4.000 ms"


def test_the_reader_s_notes_come_before_those_about_the_figures() -> None:
    timeline = build([Op(COMMUNICATION, 0, 5, 0)], calls=[Call(None)], ranks=[info(0)], notes=[CUT, CUT])

    assert codes(timeline) == ["truncated", "collective_unknown", "bytes_unknown"]
