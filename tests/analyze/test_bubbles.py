"""Waiting between pipeline stages is the bubble of the schedule: the formula beside it, and nobody to blame."""

from collections.abc import Sequence

from tests.analyze.meetings import Kernel, Meeting, compute, group, meet, timeline

US = 1000


def pipeline(stages: int, batches: int, *, description: str | None = "mesh_pp", wrap: bool = False, steps: int = 2) -> Meeting:
    """Forward passes of 100 us per stage and micro-batch, handed on from stage to stage."""
    kernels: list[Kernel] = []
    borders = [step * 10_000 * US for step in range(steps + 1)]
    for begin in borders[:-1]:
        for batch in range(batches):
            for stage in range(stages):
                start = begin + (batch + stage) * 120 * US
                kernels.append(compute(stage, start, start + 100 * US, launch=start))
                last = stage == stages - 1
                if last and not wrap:
                    continue
                peer = 0 if last else stage + 1
                kernels.append(Kernel(stage, start + 100 * US, start + 120 * US, "send", peer=peer, launch=start))
                # The receiver asks for it as soon as it is free.
                asked = max(begin, start - 40 * US)
                kernels.append(Kernel(peer, asked, start + 120 * US, "recv", peer=stage, launch=asked))
    members: Sequence[int] = range(stages)
    return meet(
        timeline(
            kernels,
            [group(*members, description=description)],
            clocks=dict.fromkeys(members, 0),
            step_starts=dict.fromkeys(members, borders),
        ),
        None,
    )


def test_without_pipeline_calls_there_is_no_bubble() -> None:
    assert meet(timeline([Kernel(0, 0, 9), Kernel(1, 0, 9)])).bubbles() == ()


def test_stages_and_micro_batches_give_the_share_of_the_formula() -> None:
    (bubble,) = pipeline(2, 8).bubbles()

    assert (bubble.stages, bubble.micro_batches) == (2, 8)
    assert bubble.ideal_share == 1 / 9
    assert set(bubble.waiting_share) == {0, 1}


def test_more_stages_wait_longer_by_the_formula() -> None:
    (bubble,) = pipeline(4, 6).bubbles()

    assert bubble.ideal_share == 3 / 9


def test_no_stage_is_blamed_for_the_bubble() -> None:
    meeting = pipeline(3, 4)

    assert len(meeting.late()) > 0
    assert meeting.verdicts() == ()


def test_sends_past_the_neighbor_are_another_schedule_and_get_no_formula() -> None:
    (bubble,) = pipeline(3, 4, wrap=True).bubbles()

    assert bubble.ideal_share is None
    assert "not plain 1F1B" in bubble.how


def test_repeated_sends_on_an_unnamed_axis_are_taken_for_a_pipeline() -> None:
    (bubble,) = pipeline(2, 4, description=None).bubbles()

    assert bubble.ideal_share == 1 / 5


def test_one_send_per_step_on_an_unnamed_axis_is_no_pipeline() -> None:
    assert pipeline(2, 1, description=None).bubbles() == ()
