"""Recorded traces of several ranks: the figures that were worked out from them by other means, or a reason for none."""

import pytest
import yaml

from tests.analyze.meetings import TRACES, Meeting, meet_trace

MS, US = 1_000_000, 1_000


@pytest.fixture(scope="module")
def dlrm() -> Meeting:
    return meet_trace("dlrm_v100_8ranks")


def share_of_waiting(meeting: Meeting, rank: int) -> float:
    own = meeting.calls.table.rank == rank
    return float(100 * meeting.met.wait[own].sum() / meeting.times.duration[own].sum())


def test_dlrm_ranks_mostly_wait(dlrm: Meeting) -> None:
    shares = [share_of_waiting(dlrm, rank) for rank in range(8)]

    assert shares == pytest.approx([96.2, 98.1, 93.9, 97.9, 96.7, 96.6, 93.9, 87.9], abs=0.1)


def test_dlrm_clocks_agree_and_are_not_moved(dlrm: Meeting) -> None:
    assert dlrm.met.clocks.offset_ns.tolist() == [0] * 8
    assert dlrm.met.clocks.component.tolist() == [0] * 8
    assert 1 * US <= dlrm.met.clocks.residual_ns.min() <= dlrm.met.clocks.residual_ns.max() <= 7 * US
    assert "clock_moved" not in dlrm.notes()


def test_dlrm_start_skews_are_exact_and_ends_lie_within_microseconds(dlrm: Meeting) -> None:
    instances = dlrm.met.instances

    assert (instances.start_skew_ns // US).tolist() == [7624, 1101, 168, 125, 223, 534, 584, 885]
    assert 1 * US <= instances.end_skew_ns.min() <= instances.end_skew_ns.max() <= 7 * US


def test_dlrm_rank_7_is_last_in_five_of_eight_and_is_no_straggler_from_one_step(dlrm: Meeting) -> None:
    assert dlrm.met.instances.last_rank.tolist() == [7, 7, 7, 7, 7, 5, 5, 4]

    overall, *_ = dlrm.verdicts()

    assert (overall.kind, overall.straggler, overall.instances) == ("undecided", None, 8)
    assert [(rank.rank, rank.times_last) for rank in overall.ranks] == [(7, 5), (5, 2), (4, 1)]
    assert "one step makes no straggler" in overall.how


def test_dlrm_first_skew_is_a_late_entry_and_the_next_cause_is_the_late_host(dlrm: Meeting) -> None:
    assert dlrm.met.instances.entry.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert dlrm.met.instances.entry_ns[0] == 7513 * US

    entry = dlrm.met.instance == 0
    share = [
        round(
            100
            * dlrm.met.wait[entry & (dlrm.calls.table.rank == rank)].sum()
            / dlrm.met.wait[dlrm.calls.table.rank == rank].sum()
        )
        for rank in range(8)
    ]
    assert share == [38, 69, 15, 64, 76, 77, 15, 0]

    overall, *_ = dlrm.verdicts()
    first = overall.ranks[0]
    assert (first.rank, first.causes["window_entry"], first.first_cause) == (7, 7513 * US, "launched_late")
    assert [rank.first_cause for rank in overall.ranks] == ["launched_late"] * 3


def test_dlrm_parts_add_up_on_every_rank(dlrm: Meeting) -> None:
    for rank in range(8):
        split, key = dlrm.split(rank), dlrm.device(rank)
        parts = dlrm.sets[key].amounts(dlrm.selection.stretches[key])
        assert split is not None
        assert split.hidden_transfer + split.hidden_wait == parts["hidden"].sum()
        assert split.exposed_transfer + split.exposed_wait == parts["exposed"].sum()


def test_dlrm_late_peers_explain_nearly_all_of_the_exposed_time(dlrm: Meeting) -> None:
    splits = [dlrm.split(rank) for rank in range(8)]

    assert sum(split.exposed_wait for split in splits if split) / MS == pytest.approx(45.3, abs=0.1)
    assert sum(split.exposed_transfer for split in splits if split) / MS == pytest.approx(1.6, abs=0.1)


@pytest.mark.parametrize(
    ("file", "waiting", "late", "calls"),
    [("mfu_2gpu_before.sqlite", (10.90, 2.48), 1, 33), ("mfu_2gpu_after.sqlite", (4.27, 18.22), 0, 31)],
)
def test_nsight_pair_the_late_side_is_named_and_its_host_is_late(
    file: str, waiting: tuple[float, float], late: int, calls: int
) -> None:
    meeting = meet_trace(f"nsys_2gpu/{file}")

    assert tuple(sum(meeting.waits(rank)) / MS for rank in (0, 1)) == pytest.approx(waiting, abs=0.005)
    assert len(meeting.met.instances) == calls
    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]

    overall, *_ = meeting.verdicts()
    assert overall.ranks[0].rank == late
    assert overall.ranks[0].first_cause == "launched_late"
    assert (overall.kind, overall.straggler) == ("undecided", None)
    assert "taken to be the whole job" in meeting.calls.notes[0].text


def test_nsight_pair_nearly_all_of_the_skew_is_on_the_host_side() -> None:
    late = [meet_trace(f"nsys_2gpu/mfu_2gpu_{name}.sqlite").late() for name in ("before", "after")]

    assert sum(table.launched_late.sum() for table in late) / sum(table.late_ns.sum() for table in late) > 0.97


def test_of_sampled_ranks_nothing_is_claimed_and_the_first_difference_is_named() -> None:
    meeting = meet_trace("recsys_sampled_2of128")

    assert len(meeting.met.instances) == 0
    assert (meeting.met.wait == -1).all()
    assert [meeting.split(rank) for rank in (0, 1)] == [None, None]
    assert meeting.verdicts() == ()
    assert "the trace does not say their group, and the ranks do not make the same calls" in meeting.notes()["calls_unmatched"]


@pytest.mark.parametrize("name", ["ddp_a100", "vllm_tp8_b200", "ddp_mi300x", "recsys_a100"])
def test_one_rank_alone_cannot_say_what_is_waiting_but_bounds_the_transfer(name: str) -> None:
    meeting = meet_trace(name)

    assert (meeting.met.wait == -1).all()
    assert meeting.split(int(meeting.calls.table.rank[0])) is None
    known = meeting.met.transfer_at_most >= 0
    assert known.any()
    assert (meeting.met.transfer_at_most[known] <= meeting.times.duration[known]).all()


def test_a_slow_all_reduce_of_one_rank_is_slow_or_waits_and_what_would_tell_is_said() -> None:
    note = meet_trace("ddp_mi300x").notes()["waiting_unknown"]

    assert "The traces of ranks 1-7 for the same steps would tell" in note
    assert "1.9 GB/s" in note
    assert "a slow link or a late peer, not known which" in note


def test_fsdp_over_gloo_is_matched_and_its_uncertainty_is_that_of_its_ends() -> None:
    meeting = meet_trace("gloo_axes/fsdp2")
    truth = yaml.safe_load((TRACES / "gloo_axes/truth.yaml").read_text())["fsdp2"]
    per_step = truth["by_construction"]["ops"]

    assert len(meeting.met.instances) == len(truth["steps"]) * (per_step["all_gather"] + per_step["reduce_scatter"])
    assert meeting.met.clocks.offset_ns.tolist() == [0, 0]
    assert meeting.met.clocks.residual_ns.max() > MS
    assert "waiting_uncertain" in meeting.notes()
    overall, *_ = meeting.verdicts()
    assert (overall.straggler, truth["expected"]["late_rank"]) == (None, None)


def test_uneven_experts_over_gloo_make_the_rank_with_more_tokens_late_by_its_compute() -> None:
    meeting = meet_trace("gloo_axes/moe_ep")

    assert len(meeting.met.instances) == 16
    assert sum(meeting.waits(0)) > 200 * sum(meeting.waits(1))
    late = meeting.late()
    assert set(late.rank.tolist()) == {1}
    # It receives more, so it leaves the exchange before later, and then it computes more.
    assert late.more_compute.sum() > 70 * MS
    assert late.released_later.sum() > 70 * MS
    assert abs(late.launched_late.sum()) < 0.02 * late.late_ns.sum()
    # Two ranks, four steps: chance is not excluded.
    assert [verdict.straggler for verdict in meeting.verdicts()] == [None, None]


def test_a_pipeline_over_gloo_shows_the_ideal_bubble_beside_the_measured_one() -> None:
    meeting = meet_trace("gloo_axes/pp_1f1b")
    (bubble,) = meeting.bubbles()

    assert (bubble.stages, bubble.micro_batches) == (2, 8)
    assert bubble.ideal_share == pytest.approx(0.111, abs=0.0005)
    assert all(0 < share < 0.3 for share in bubble.waiting_share.values())
    assert meeting.verdicts() == ()


def test_groups_that_a_trace_leaves_open_stay_unmatched_with_the_reason() -> None:
    meeting = meet_trace("gloo_axes/tp_sp_4r")

    assert (meeting.met.wait == -1).all()
    assert "the trace does not say their group" in meeting.reasons[0]


def test_every_collective_of_gloo_that_can_be_matched_is_matched() -> None:
    meeting = meet_trace("gloo_2ranks")

    names = [meeting.timeline.name_of(int(number)) for number in meeting.met.instances.collective]
    assert {"all_gather", "all_to_all", "barrier", "broadcast"} <= set(names)
    assert meeting.reasons == []


def test_no_host_name_reaches_the_timeline() -> None:
    meeting = meet_trace("gloo_axes/fsdp2")

    assert [info.clock for info in meeting.timeline.ranks] == [0, 0]
