"""Words that mix hidden with removed are flagged, and right ones are left alone."""

from __future__ import annotations

import pytest

from tests.judge.reports import claim
from underlap.claim import AsStated, Bytes
from underlap.flows.claims import catalog
from underlap.judge.wording import CORRECT, CORRECT_REMOVED, CORRECT_SHORTENED, mixed


def flagged(statement, **fields):
    return [flag.words for flag in mixed(claim(statement=statement, **fields))]


@pytest.mark.parametrize(
    "statement",
    [
        "Overlap has effectively eliminated all-reduce communication.",
        "Async TP makes communication free.",
        "With prefetching, communication comes for free.",
        "Our scheduler hides the all-to-all, so communication costs nothing.",
        "We overlap dispatch with compute and remove the all-to-all.",
        "Overlap gives near-zero all-to-all communication overhead.",
        "The result is communication-free training through overlap.",
        "Overlap not only hides but eliminates communication.",
        "Pipelining the ring results in no additional communication cost.",
        "Overlapped all-gathers vanish.",
        "Communication disappears behind compute.",
        "It hides communication and so gets rid of all traffic.",
        "TP communication is virtually free with overlap.",
        "The overlap eliminates 96% of TP communication.",
        "Communication is hidden and thus eliminated.",
        "By overlapping, TP becomes almost communication free.",
        "Overlap does not slow compute and eliminates the reduce-scatter.",
    ],
)
def test_communication_that_is_said_to_be_gone_is_flagged(statement):
    (flag,) = mixed(claim(statement=statement))

    assert flag.words in statement
    assert (flag.field, flag.instead) == ("statement", CORRECT)
    assert CORRECT.startswith("Hidden communication still sends the same bytes")


@pytest.mark.parametrize(
    "statement",
    [
        "Overlap hides communication; it does not remove it.",
        "Communication is hidden, not removed.",
        "Overlap never eliminates communication, it covers it.",
        "Hidden communication is not free.",
        "Overlap isn't free communication.",
        "Overlap does not make communication free.",
        "Overlap hides 80% of communication without removing bytes.",
        "It hides communication rather than eliminating it.",
        "No bytes are removed by overlap.",
        "Neither overlap nor prefetch removes communication.",
        "Communication cannot be eliminated by overlap.",
        "Communication is far from free under overlap.",
        "We do not claim that overlap eliminates communication.",
    ],
)
def test_a_denial_is_not_flagged(statement):
    assert flagged(statement) == []


@pytest.mark.parametrize(
    "statement",
    [
        "Overlap removes communication from the critical path.",
        "Overlap eliminates exposed communication.",
        "Prefetch eliminates waiting for the all-gather.",
        "Overlap removes the bubble before the all-to-all.",
        "Overlapping frees SMs after the collective.",
        "Copy-engine collectives are free of SM contention while they overlap.",
        "The gain of overlap vanishes for small messages.",
        "Overlap hides communication and removes launch overhead.",
        "Zero-copy all-gather overlaps with compute.",
        "Overlap makes communication free of contention.",
    ],
)
def test_time_contention_and_gains_may_go_away(statement):
    assert flagged(statement) == []


def test_removal_is_the_right_word_where_bytes_are_removed():
    assert flagged("FP8 dispatch removes half of the bytes.") == []
    statement = "Overlap with FP8 dispatch removes half of the bytes."
    assert flagged(statement, bytes=Bytes(unchanged=False)) == []
    assert flagged(statement, effect=["removed", "hidden"]) == []
    assert flagged(statement, bytes=Bytes(unchanged=True)) == ["removes"]


def test_hidden_is_the_wrong_word_for_fewer_or_faster_bytes():
    (flag,) = mixed(claim(statement="FP8 hides half of the all-to-all.", bytes=Bytes(unchanged=False)))
    assert (flag.words, flag.instead) == ("hides", CORRECT_REMOVED)
    (flag,) = mixed(claim(statement="A quicker kernel hides the all-reduce.", effect=["shortened"]))
    assert (flag.words, flag.instead) == ("hides", CORRECT_SHORTENED)
    assert flagged("A quicker kernel; nothing is hidden.", effect=["shortened"]) == []


def test_the_words_of_the_source_are_read_too():
    as_stated = AsStated(metric="share of communication eliminated by overlap")
    (flag,) = mixed(claim(as_stated=as_stated))

    assert (flag.field, flag.words) == ("as_stated.metric", "eliminated")


def test_in_the_catalog_only_one_title_is_flagged():
    found = [(entry.id, flag.field, flag.words) for entry in catalog() for flag in mixed(entry)]

    assert found == [("domino-up-to-1p3", "source.title", "Communication-Free")]
