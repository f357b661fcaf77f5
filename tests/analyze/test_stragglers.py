"""Whether lateness belongs to one rank: only where chance does not explain it, and never after one step."""

from tests.analyze.meetings import Kernel, Meeting, group, meet, timeline

US = 1000
ONE_CLOCK = dict.fromkeys(range(8), 0)


def steps_with_late(late: list[int], ranks: int) -> Meeting:
    """One all-reduce per step, for which one rank comes 500 us late; a common one before makes it no late entry."""
    kernels = [Kernel(rank, 0, 10 * US) for rank in range(ranks)]
    for at, last in enumerate(late):
        begin = (at + 1) * 10_000 * US
        for rank in range(ranks):
            start = begin + (500 * US if rank == last else 0)
            kernels.append(Kernel(rank, start, begin + 600 * US, launch=start))
    borders = [-1, *(at * 10_000 * US for at in range(1, len(late) + 2))]
    source = timeline(kernels, [group(*range(ranks))], clocks=ONE_CLOCK, step_starts=dict.fromkeys(range(ranks), borders))
    return meet(source, None)


def test_nobody_late_gives_no_verdict() -> None:
    assert steps_with_late([], 2).verdicts() == ()


def test_one_step_makes_no_straggler() -> None:
    overall, family = steps_with_late([3], 4).verdicts()

    assert (overall.kind, overall.straggler) == ("undecided", None)
    assert "one step makes no straggler" in overall.how
    assert overall.ranks[0].rank == 3
    assert overall.ranks[0].first_cause == "launched_late"
    assert family.family == (None, "all_reduce")


def test_a_long_side_that_swaps_between_iterations_is_no_fixed_straggler() -> None:
    overall, *_ = steps_with_late([0, 1], 2).verdicts()

    assert (overall.kind, overall.straggler) == ("moving", None)
    assert [(rank.rank, rank.times_last) for rank in overall.ranks] == [(0, 1), (1, 1)]


def test_the_same_rank_of_many_in_every_step_is_a_straggler() -> None:
    overall, *_ = steps_with_late([5, 5, 5], 8).verdicts()

    assert (overall.kind, overall.straggler) == ("stable", 5)
    assert "rank 5 is waited for longest in 3 of 3 steps" in overall.how
    assert overall.ranks[0].caused_ns == 3 * 7 * 500 * US


def test_of_two_ranks_a_few_equal_steps_may_be_chance() -> None:
    few, *_ = steps_with_late([1, 1, 1, 1], 2).verdicts()
    many, *_ = steps_with_late([1, 1, 1, 1, 1, 1], 2).verdicts()

    assert (few.kind, many.kind) == ("undecided", "stable")


def test_ranks_that_take_turns_are_moving() -> None:
    overall, *_ = steps_with_late([0, 1, 2, 3], 4).verdicts()

    assert overall.kind == "moving"
