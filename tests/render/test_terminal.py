"""The screen of a hand-written Report: its size, its words, and that no name can steer the terminal."""

from __future__ import annotations

import io
import os
import pty
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render import hand_written
from tests.render.hand_written import HOSTILE, MS, family, many_ranks_report, one_rank_report, part, replace
from underlap.render import terminal
from underlap.render.terminal import print_report, render
from underlap.report import CauseRow, FindingRow, IdleCauseRow, NoteRow, PartSummary, UnmatchedRow, Verdict


@pytest.fixture(params=hand_written.ALL.values(), ids=hand_written.ALL.keys())
def report(request):
    return request.param()


def screen(report, width=100):
    return render(report, width=width).plain


class Screen(io.StringIO):
    """A terminal without a device behind it."""

    def isatty(self):
        return True


def test_a_screen_has_at_most_24_lines_of_100_columns(report):
    lines = screen(report).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("width", [20, 60, 61, 72, 80, 99])
def test_no_line_is_wider_than_a_narrow_terminal(report, width):
    assert max(map(len, screen(report, width).splitlines())) <= max(width, 60)


def test_a_screen_is_printable_ascii(report):
    assert re.fullmatch(r"[ -~\n]+", screen(report))


def test_a_trace_without_operations_says_so_and_why():
    text = screen(hand_written.empty_report())
    assert "No operations in the window" in text
    assert "was the profiler given CUDA activity?" in text
    assert "no ranks" in text


def test_a_rank_without_communication_has_no_hidden_share():
    text = screen(hand_written.quiet_report())
    assert "communication: none in the window" in text
    assert "hidden" not in text


def test_one_rank_has_no_range_over_ranks():
    text = screen(one_rank_report())
    assert "measured: rank0_trace.json.gz, rank 0 of 64, steps 2-5 (4 of 6)" in text
    assert "step 43.10 ms (median of 4, min-max 42.80-44.95, slowest: step 5)" in text
    assert "mean" not in text
    assert "most on rank" not in text


def test_the_hidden_share_comes_with_its_sum_and_its_denominator():
    text = screen(one_rank_report())
    assert "communication 69.60 = hidden 38.00 + exposed 31.60 ms; hidden 54.6 % of kernel time, waiting inside" in text


def test_many_ranks_show_means_ranges_and_the_most_exposed_rank():
    text = screen(many_ranks_report())
    assert "measured: rank0_trace.json.gz + 7 files, ranks 0-7 of 64," in text
    assert "window, mean of 8 ranks  172.40 ms  100.0 %  169.80-175.00 (min-max)" in text
    assert "exposed communication   31.60 ms   18.3 %  29.00-34.20, most on rank 3" in text
    assert "ms, payload: mean as above; calls, kernels: all ranks" in text


def test_rows_of_several_devices_per_rank_are_not_called_ranks():
    rows = [hand_written.rank_row(0, device) for device in range(2)]
    assert "mean of 2 devices" in screen(replace(many_ranks_report(), ranks=rows))


def test_fused_time_appears_only_where_there_is_some():
    assert "fused" not in screen(one_rank_report())
    text = screen(many_ranks_report())
    assert "  fused                    5.20 ms" in text
    assert "+ under fused 1.30 +" in text


def test_without_steps_the_window_stands_alone():
    window = replace(hand_written.steps_window(), kind="whole", steps_found=[], steps_used=[])
    text = screen(one_rank_report(window=window, step_summary=None))
    assert "whole trace" in text
    assert "median" not in text
    assert "window                   172.40 ms" in text


def test_simulated_figures_are_marked():
    base = one_rank_report()
    text = screen(replace(base, provenance=replace(base.provenance, kind="simulated")))
    assert text.startswith("SIMULATED: ")


def test_unknown_is_a_question_mark_with_an_explanation_and_never_zero():
    unknown = family(None, None, count=None, mean_payload_bytes=None, hidden_share=None, busbw_kernel_gbps=None)
    base = one_rank_report(families=[unknown])
    text = screen(replace(base, provenance=replace(base.provenance, world_size=None)))
    row = next(line for line in text.splitlines() if line.startswith("?"))
    assert row.split() == ["?", "?", "?", "256", "?", "30.00", "?", "27.20", "?"]
    assert "? = not known" in text
    assert "rank 0 of ?" in text


def test_an_axis_that_is_not_known_lists_its_candidates():
    assert "dp or cp?" in screen(one_rank_report(families=[family(None, axis_candidates=["dp", "cp"])]))


def test_six_families_are_shown_and_the_rest_is_one_line():
    text = screen(many_ranks_report(families=9))
    assert text.count(">= 85.3") == 4
    assert "+ 3 more families, 0.43 ms exposed" in text
    assert "more famil" not in screen(many_ranks_report(families=6))
    assert "+ 1 more family, " in screen(many_ranks_report(families=7))


def test_a_lower_bound_is_rounded_down():
    assert ">= 85.9" in screen(one_rank_report(families=[family(busbw_kernel_gbps=85.99)]))


def test_libraries_other_than_nccl_are_named():
    assert "all_reduce (gloo)" in screen(one_rank_report(families=[family("dp", "all_reduce", library=["gloo"])]))


def test_a_narrow_terminal_keeps_kernel_time_hidden_share_and_exposed_time():
    heading = next(line for line in screen(many_ranks_report(), 60).splitlines() if line.startswith("axis"))
    assert heading.split() == ["axis", "collective", "kernel", "ms", "hidden", "%", "exposed", "ms"]


def test_a_time_that_rounds_to_nothing_is_not_shown_as_nothing():
    base = one_rank_report()
    tiny = replace(part(0), mean_ns=2000, max_ns=2000, share_of_span=1e-5)
    text = screen(replace(base, summary=replace(base.summary, exposed=tiny)))
    assert re.search(r"exposed communication +<0\.01 ms +<0\.1 %", text)


def test_a_share_just_below_one_is_not_shown_as_one():
    text = screen(one_rank_report(families=[family(hidden_share=0.99999)]))
    assert ">99.9" in text


def test_short_windows_are_shown_to_the_microsecond():
    base = one_rank_report(step_summary=None)
    short = replace(part(0), mean_ns=1_234_567, min_ns=1_234_567, max_ns=1_234_567, share_of_span=1.0)
    assert "1.235 ms" in screen(replace(base, summary=replace(base.summary, span=short)))


def test_unclassified_kernels_are_named_with_their_time():
    rows = [UnmatchedRow(name="my_kernel", kernels=3, total_ns=400_000)]
    base = one_rank_report(unmatched=rows)
    text = screen(replace(base, summary=replace(base.summary, unmatched_ns=400_000, unmatched_kernels=3)))
    assert "not classified (counted as compute): 0.40 ms in 3 kernels: my_kernel" in text


def test_at_most_five_notes_are_shown_and_the_others_are_counted():
    notes = [NoteRow(code=str(n), text=f"Thing {n}.") for n in range(7)]
    text = screen(one_rank_report(notes=notes))
    assert [f"note: Thing {n}." in text for n in range(7)] == [True] * 5 + [False] * 2
    assert text.endswith("+ 2 more notes in --json")


def test_notes_without_room_are_counted():
    text = screen(many_ranks_report(notes=3))
    shown = text.count("note: ")
    assert shown >= 1
    assert f"+ {3 - shown} more note" in text


def test_a_long_note_takes_two_lines():
    text = screen(one_rank_report(notes=[NoteRow(code="long", text="word " * 200)]))
    assert text.splitlines()[-1].endswith(" ...")
    assert text.count("word") < 45


def test_many_single_ranks_are_counted_instead_of_listed():
    base = one_rank_report()
    text = screen(replace(base, provenance=replace(base.provenance, ranks_counted=list(range(0, 64, 2)))))
    assert "32 ranks of 64" in text


def test_names_in_the_trace_cannot_bring_escapes_or_markup():
    stream = Screen()
    print_report(hand_written.hostile_report(), stream)
    text = stream.getvalue()
    # What is left are the colors that we set ourselves.
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not set("\x07\r\x9b\u202e") & set(text)
    assert "[bold red]x[/]" in text
    assert HOSTILE not in text


def test_a_pipe_gets_plain_text():
    stream = io.StringIO()
    print_report(many_ranks_report(), stream)
    assert stream.getvalue() == screen(many_ranks_report()) + "\n"


def test_a_terminal_gets_colors_and_the_same_words(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Screen()
    print_report(many_ranks_report(), stream)
    assert "\x1b[" in stream.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()) == screen(many_ranks_report()) + "\n"


def test_no_color_means_no_escapes_at_all(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Screen()
    print_report(many_ranks_report(), stream)
    assert "\x1b" not in stream.getvalue()


def test_the_width_is_that_of_the_terminal_from_60_to_100(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    for columns, expected in [(80, 80), (40, 60), (300, 100), (0, 100)]:
        monkeypatch.setattr(terminal.os, "get_terminal_size", lambda fd, columns=columns: os.terminal_size((columns, 50)))
        leader, follower = pty.openpty()
        with os.fdopen(leader, "rb", buffering=0) as end, os.fdopen(follower, "w") as stream:
            print_report(one_rank_report(), stream)
            stream.flush()
            written = end.read(100_000).decode().replace("\r\n", "\n")
        assert written == screen(one_rank_report(), expected) + "\n"


@settings(deadline=None)
@given(data=st.data(), width=st.integers(60, 100), exponent=st.integers(0, 13), rows=st.integers(1, 3))
def test_no_name_and_no_magnitude_breaks_the_frame(data, width, exponent, rows):
    name = st.one_of(st.text(), st.text("ab <>:,()_[]\x1b\n", max_size=200))
    base = many_ranks_report()
    most = PartSummary(mean_ns=10**exponent, min_ns=10**exponent, max_ns=10**exponent, share_of_span=1.0)
    parts = dict.fromkeys(("span", "compute", "fused", "communication", "hidden", "under_fused", "exposed", "copy", "idle"), most)
    drawn = replace(
        base,
        provenance=replace(base.provenance, sources=[hand_written.source(0, data.draw(name) or "x")] * 2),
        summary=replace(base.summary, **parts, unmatched_ns=10**exponent, most_exposed_rank=99_999),
        ranks=base.ranks[:rows],
        families=[
            family(
                data.draw(st.none() | name),
                data.draw(st.none() | name),
                axis_candidates=data.draw(st.lists(name, max_size=3)),
                library=data.draw(st.lists(name, max_size=2)),
                mean_communication_ns=10**exponent,
                kernels=10**6,
            )
            for _ in range(data.draw(st.integers(0, 8)))
        ],
        unmatched=[UnmatchedRow(name=data.draw(name), kernels=1, total_ns=1) for _ in range(data.draw(st.integers(0, 4)))],
        notes=[NoteRow(code="n", text=data.draw(name)) for _ in range(data.draw(st.integers(0, 7)))],
    )
    text = screen(drawn, width)
    assert re.fullmatch(r"[ -~\n]+", text)
    assert max(map(len, text.splitlines())) <= width
    assert width < 100 or len(text.splitlines()) <= 24


def test_the_renderer_shows_the_figures_of_the_report_and_derives_none():
    base = many_ranks_report()
    changed = replace(base, ranks=[replace(row, exposed_ns=999 * MS, idle_ns=0) for row in base.ranks])
    assert screen(changed) == screen(base)


def explained(base, **changes):
    """The report with a headline, causes, findings and verdicts."""
    verdict = Verdict(
        outcome="exposed",
        cause="late_launch",
        causes=[CauseRow(cause="late_launch", exposed_ns=MS, share=1.0)],
        evidence=None,
        recoverable_ns=MS,
        would_change="submit earlier",
        price=None,
        unknown=[],
    )
    finding = FindingRow(
        text="dp all_reduce, late_launch: 1.00 ms",
        axis="dp",
        collective="all_reduce",
        cause="late_launch",
        exposed_ns=MS,
        share_of_window=0.123,
        would_change="submit earlier",
        price=None,
    )
    causes = [CauseRow(cause=cause, exposed_ns=MS, share=share) for cause, share in (("late_launch", 0.75), ("unknown", 0.25))]
    return replace(
        base,
        headline="The host is the limit.",
        causes=causes,
        coverage=0.75,
        findings=[finding] * 5,
        families=[replace(family, verdict=verdict) for family in base.families],
        **changes,
    )


def test_the_headline_comes_right_after_what_was_analyzed():
    assert screen(explained(one_rank_report())).splitlines()[1] == "The host is the limit."


def test_causes_are_listed_with_the_share_that_has_one():
    line = next(line for line in screen(explained(one_rank_report())).splitlines() if line.startswith("exposed because"))
    assert line == "exposed because: late_launch 75.0 %, unknown 25.0 %; cause known for 75.0 %"


@pytest.mark.parametrize(("share", "shown"), [(0.2, True), (0.19, False)])
def test_causes_of_idle_time_have_a_line_where_idle_is_large(share, shown):
    report = one_rank_report()
    idle = replace(report.summary.idle, share_of_span=share)
    rows = [IdleCauseRow(cause=cause, idle_ns=MS, share=part) for cause, part in (("host_busy", 0.9), ("input", 0.1))]
    text = screen(replace(report, summary=replace(report.summary, idle=idle), idle_causes=rows))

    assert ("idle because: host_busy 90.0 %, input 10.0 %" in text.splitlines()) == shown


def test_findings_say_what_to_try_and_leave_room_for_notes():
    text = screen(explained(many_ranks_report()))
    assert "* dp all_reduce, late_launch, 12.3 % of the window: submit earlier" in text
    assert text.count("* dp all_reduce") <= 3
    assert len(text.splitlines()) <= 24
    assert "note" in text


def test_the_first_cause_of_a_family_is_a_column_where_any_has_one():
    assert "first cause" in screen(explained(one_rank_report()))
    assert "first cause" not in screen(one_rank_report())


def test_known_waiting_replaces_the_remark_that_it_is_inside():
    base = one_rank_report()
    wait = PartSummary(mean_ns=MS, min_ns=MS, max_ns=MS, share_of_span=0.1)
    text = screen(replace(base, summary=replace(base.summary, wait=wait, hidden_transfer_share=0.25)))
    assert "1.00 of it waiting for peers; hidden 25.0 %" in " ".join(text.split())
    assert "waiting inside" not in text


def test_waiting_stands_beside_what_the_clocks_are_uncertain_by():
    base = one_rank_report()
    wait = PartSummary(mean_ns=MS, min_ns=MS, max_ns=MS, share_of_span=0.1)
    ranks = [replace(row, clock_uncertainty_ns=1500) for row in base.ranks]
    text = screen(replace(base, ranks=ranks, summary=replace(base.summary, wait=wait, hidden_transfer_share=0.25)))
    assert "1.00 of it waiting for peers (clocks uncertain by 0.002 ms); hidden 25.0 %" in " ".join(text.split())
