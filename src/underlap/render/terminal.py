"""A Report on one screen: what was analyzed, where the time went, which communication is exposed, what to know about it.

At most 24 lines of 100 columns; notes that find no room are counted, and are in the JSON. Times are means per row of `ranks`
where there are several. Every figure is one of the Report's: this file only chooses, orders, cuts and formats. The one sum
that it makes is over the families that it leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.text import Text

from underlap.render.families import family_lines
from underlap.render.plain import UNKNOWN, clean, decimals_for, milliseconds, percent, shorten, wrap
from underlap.report import PartSummary, Report, Summary
from underlap.wording import counted, ranges

LINES = 24
WIDTH = 100
LEAST_WIDTH = 60
NOTES = 5
NOTES_ROOM = 2
"""Lines that notes have at least."""
FAMILIES = 6
FAMILIES_BESIDE_FINDINGS = 3
FINDINGS = 3
CAUSES = 4
UNMATCHED_NAMES = 3
IDLE_SHOWN = 0.2
"""Idle share of the window from which its causes have a line."""
CONFIGURATION = 2


def print_report(report: Report, file: IO[str]) -> None:
    """Write the screen to a file: in color on a terminal unless NO_COLOR is set, else as plain text."""
    terminal = file.isatty()
    width = _width_of(file) if terminal else WIDTH
    text = render(report, width=width)
    if terminal and not os.environ.get("NO_COLOR"):
        Console(file=file, width=width, highlight=False).print(text, soft_wrap=True)
    else:
        file.write(text.plain + "\n")


def _width_of(file: IO[str]) -> int:
    try:
        columns = os.get_terminal_size(file.fileno()).columns
    except OSError:
        return WIDTH
    # A terminal that does not know its width says 0.
    return min(columns or WIDTH, WIDTH)


def render(report: Report, *, width: int = WIDTH) -> Text:
    """The screen, no line of it longer than `width` (60 at least). Names in it are printable ASCII, without markup."""
    width = max(width, LEAST_WIDTH)
    sections = [_headline(report, width)]
    sections[0] += _lines(report.headline or "", width, style="bold cyan", lines=3) if report.headline else []
    if report.summary is None:
        sections[0] += _lines("No operations in the window: there is nothing to account for.", width)
    else:
        decimals = decimals_for(report.summary.span.mean_ns)
        sections[0] += _steps(report, width, decimals)
        sections[0] += _parts(report, report.summary, width, decimals)
        sections[0] += _communication(report, report.summary, width, decimals)
        sections[0] += _causes(report, width)
        sections[0] += _idle(report, report.summary, width)
        sections[0] += _configuration(report, width)
        shown = FAMILIES if not report.findings else FAMILIES_BESIDE_FINDINGS
        sections.append(family_lines(report.families, shown=shown, width=width, decimals=decimals, rows=len(report.ranks)))
        unmatched = _unmatched(report, report.summary, width, decimals)
        sections.append(_findings(report, width, room=LINES - sum(map(len, sections)) - len(unmatched) - NOTES_ROOM))
        sections.append(unmatched)
    notes = _notes(report, width, room=max(NOTES_ROOM, LINES - sum(map(len, sections))))
    sections.append(sections.pop() + notes if len(sections) == 4 else notes)
    return Text("\n").join(_spaced(sections))


def _spaced(sections: Iterable[list[Text]]) -> list[Text]:
    """All lines, sections apart by an empty line as long as the screen has room for one."""
    filled = [section for section in sections if section]
    spare = LINES - sum(map(len, filled))
    lines: list[Text] = []
    for section in filled:
        if lines and spare > 0:
            lines.append(Text(""))
            spare -= 1
        lines += section
    return lines


def _headline(report: Report, width: int) -> list[Text]:
    provenance = report.provenance
    simulated = provenance.kind != "measured"
    kind = clean(provenance.kind).upper() if simulated else "measured"
    more = len(provenance.sources) - 1
    world = UNKNOWN if provenance.world_size is None else str(provenance.world_size)
    counted = provenance.ranks_counted
    files = "" if more < 1 else " + 1 file" if more == 1 else f" + {more} files"
    which = f"{_listed('rank', ranges(counted, ','), len(counted))} of {world}" if counted else "no ranks"
    tail = f"{files}, {which}, {_window(report)}"
    room = max(16, width - len(kind) - 2 - len(tail))
    file = shorten(clean(provenance.sources[0].file), room) if provenance.sources else "no file"
    return _lines(f"{kind}: {file}{tail}", width, style="bold yellow" if simulated else "bold")


def _listed(noun: str, listed: str, count: int) -> str:
    """Ranks 0-7; a list too long for the screen becomes its count."""
    if len(listed) > 24:
        return _counted(count, noun)
    return f"{noun} {listed}" if count == 1 else f"{noun}s {listed}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _window(report: Report) -> str:
    used, found = report.window.steps_used, len(report.window.steps_found)
    if report.window.kind != "steps" or not used:
        return "whole trace" + (f" ({found} {'step' if found == 1 else 'steps'} in it)" if found else "")
    numbers = [step.rpartition("#")[2] for step in used]
    listed = ranges([int(number) for number in numbers], ",") if all(map(str.isdecimal, numbers)) else ",".join(map(clean, used))
    named = _listed("step", listed, len(used))
    return named if str(len(used)) in named.split() else f"{named} ({len(used)} of {found})"


def _steps(report: Report, width: int, decimals: int) -> list[Text]:
    steps = report.step_summary
    if steps is None:
        return []
    median, least, most = (milliseconds(ns, decimals) for ns in (steps.median_ns, steps.min_ns, steps.max_ns))
    if steps.count == 1:
        return _lines(f"step {median} ms", width, style="bold")
    slowest = f"step {steps.slowest_step}" if steps.slowest_step.isdecimal() else shorten(clean(steps.slowest_step), 20)
    rank = f" on rank {steps.slowest_rank}" if len(report.ranks) > 1 else ""
    line = f"step {median} ms (median of {steps.count}, min-max {least}-{most}, slowest: {slowest}{rank})"
    return _lines(line, width, style="bold")


def _parts(report: Report, summary: Summary, width: int, decimals: int) -> list[Text]:
    several = len(report.ranks) > 1
    noun = "ranks" if len({row.rank for row in report.ranks}) == len(report.ranks) else "devices"
    window = f"window, mean of {len(report.ranks)} {noun}" if several else "window"
    rows = [(window, summary.span, "bold"), ("  compute", summary.compute, "")]
    if summary.fused.max_ns:
        rows.append(("  fused", summary.fused, ""))
    rows += [
        ("  exposed communication", summary.exposed, "red"),
        ("  copy", summary.copy, ""),
        ("  idle", summary.idle, ""),
    ]
    column = max(len(label) for label, _, _ in rows)
    digits = len(milliseconds(summary.span.mean_ns, decimals))
    lines: list[Text] = []
    for label, part, style in rows:
        line = f"{label:{column}}  {milliseconds(part.mean_ns, decimals):>{digits}} ms  {percent(part.share_of_span):>5} %"
        if several:
            line += f"  {milliseconds(part.min_ns, decimals)}-{milliseconds(part.max_ns, decimals)}"
            line += " (min-max)" if part is summary.span else ""
        if several and part is summary.exposed and summary.most_exposed_rank is not None:
            line += f", most on rank {summary.most_exposed_rank}"
        lines += _lines(line, width, style=style)
    return lines


def _communication(report: Report, summary: Summary, width: int, decimals: int) -> list[Text]:
    def time(part: PartSummary) -> str:
        return milliseconds(part.mean_ns, decimals)

    if not summary.communication.max_ns:
        fused = f" outside of fused kernels ({time(summary.fused)} ms)" if summary.fused.max_ns else ""
        return _lines(f"communication: none in the window{fused}", width)
    under_fused = f" + under fused {time(summary.under_fused)}" if summary.fused.max_ns else ""
    parts = f"hidden {time(summary.hidden)}{under_fused} + exposed {time(summary.exposed)} ms"
    total = f"communication {time(summary.communication)} = {parts};"
    if summary.wait is None:
        return _lines(f"{total} hidden {percent(summary.hidden_share)} % of kernel time, waiting inside", width, lines=3)
    share = f"hidden {percent(summary.hidden_transfer_share)} % of transfer"
    # The clocks beside it: what is waiting to the clocks may be too little, call by call, to be a cause.
    uncertain = max((row.clock_uncertainty_ns or 0 for row in report.ranks), default=0)
    clocks = f" (clocks uncertain by {milliseconds(uncertain, max(decimals, 3))} ms)" if uncertain else ""
    return _lines(f"{total} {time(summary.wait)} of it waiting for peers{clocks}; {share}", width, lines=3)


def _causes(report: Report, width: int) -> list[Text]:
    """The causes of exposed time with their shares, in one line where possible."""
    shown = report.causes[:CAUSES]
    if not shown:
        return []
    listed = ", ".join(f"{clean(cause.cause)} {percent(cause.share)} %" for cause in shown)
    more = len(report.causes) - len(shown)
    rest = f", {more} more" if more else ""
    unknown = "" if report.coverage in (None, 1.0) else f"; cause known for {percent(report.coverage)} %"
    return _lines(f"exposed because: {listed}{rest}{unknown}", width)


def _idle(report: Report, summary: Summary, width: int) -> list[Text]:
    """The causes of idle time in one line, where there is enough of it to act on."""
    if (summary.idle.share_of_span or 0) < IDLE_SHOWN:
        return []
    listed = ", ".join(f"{clean(row.cause)} {percent(row.share)} %" for row in report.idle_causes)
    return _lines(f"idle because: {listed}", width, lines=1) if listed else []


def _configuration(report: Report, width: int) -> list[Text]:
    """What the configuration says: rules that explain a verdict first, then what is switched on in vain."""
    if report.configuration is None:
        return []
    rules = [row for row in report.configuration.findings if row.explains][:CONFIGURATION]
    texts = [f"config: {clean(row.rule)} explains {clean(row.explains[0])}: {clean(row.change)}" for row in rules]
    vain = [row for row in report.configuration.engagement if row.engaged is False][:CONFIGURATION]
    texts += [f"config: {clean(row.feature)} is on, and not engaged: {clean(row.text)}" for row in vain]
    if not texts:
        rest = [row.rule for row in report.configuration.findings]
        texts = [f"config: {'nothing in it explains the verdicts' if not rest else clean(', '.join(rest)) + ' (see --json)'}"]
    return [line for text in texts for line in _lines(text, width)]


def _findings(report: Report, width: int, *, room: int) -> list[Text]:
    """What to try, as many as fit, each in two lines at most; and how many more there are."""
    shown: list[Text] = []
    left = len(report.findings)
    for finding in report.findings[:FINDINGS]:
        who = " ".join(clean(part) for part in (finding.axis, finding.collective) if part) or "communication"
        share = f"{percent(finding.share_of_window)} % of the window"
        lines = _lines(f"* {who}, {clean(finding.cause)}, {share}: {clean(finding.would_change or '')}", width)
        if len(shown) + len(lines) + (left > 1) > room:
            break
        shown += lines
        left -= 1
    if left and room > len(shown):
        shown.append(Text(f"+ {counted(left, 'more finding')} in --json", style="dim"))
    rests = report.step_prediction.rests_on if report.step_prediction else None
    lines = _lines(f"promises rest on {clean(rests)}", width, style="dim") if rests and shown else []
    return shown + (lines if len(shown) + len(lines) <= room else [])


def _unmatched(report: Report, summary: Summary, width: int, decimals: int) -> list[Text]:
    if not report.unmatched:
        return []
    where = " of all ranks" if len(report.ranks) > 1 else ""
    total = f"{milliseconds(summary.unmatched_ns, decimals)} ms in {_counted(summary.unmatched_kernels, 'kernel')}{where}"
    names = [shorten(clean(row.name), 26) for row in report.unmatched[:UNMATCHED_NAMES]]
    more = len(report.unmatched) - len(names)
    rest = f", {more} more" if more else ""
    return _lines(f"not classified (counted as compute): {total}: {', '.join(names)}{rest}", width, style="yellow")


def _notes(report: Report, width: int, *, room: int) -> list[Text]:
    """As many of the first notes as fit into so many lines, with the count of the others."""
    shown: list[Text] = []
    count = len(report.notes)
    for index, note in enumerate(report.notes[:NOTES]):
        lines = _lines(f"note: {clean(note.text)}", width)
        needed = len(lines) + (1 if index + 1 < count else 0)
        if len(shown) + needed > room:
            return [*shown, _more(count - index)]
        shown += lines
    return [*shown, _more(count - NOTES)] if count > NOTES else shown


def _more(count: int) -> Text:
    return Text(f"+ {count} more {'note' if count == 1 else 'notes'} in --json", style="dim")


def _lines(text: str, width: int, *, style: str = "", lines: int = 2) -> list[Text]:
    return [Text(line, style=style) for line in wrap(text, width, lines=lines)]
