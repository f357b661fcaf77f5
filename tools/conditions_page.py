"""The text and the figure of docs/conditions.md, from what was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from string import Template
from typing import NamedTuple

from conditions_cases import CASES, HIDDEN, INDEPENDENT, QUICKER, REPETITIONS, Row

from underlap.run.ceilings import LEVER
from underlap.trial import LeftOut

HEAD = f"""\
<!-- Written by tools/conditions.py from real runs: do not edit, run make conditions again. Figures differ from run to run. -->

# The conditions of overlap, measured

Overlap is a schedule, and pays under three conditions: independence (nothing waits for the result yet), headroom (compute and
communication do not take the same resource), length (the compute is at least as long as the communication). Here each is kept
and broken, with `underlap run --ab --fabric --priority` on two ranks.

* compute, communication: of the baseline, which does one after the other, so alone; unions in a step, mean per rank. ratio: the
  one over the other. slower rank: the compute of the rank that computes longest. taken: what communication
  takes of a rank's core in the baseline's step: gloo's threads and the kernel's work for the links, which overlap puts beside
  what the core computes. Told in steps of 10 ms, so means.
* baseline, policy: the step of the slowest rank, from a barrier to its last operation; ms, medians of {REPETITIONS}
  repetitions in turns, or of as many as stand behind a shape. policy / baseline: the median of the ratios of neighbors,
  with the order statistics that hold it with 95 %.
* bound: max(compute of the slower rank + taken, communication), at the pace of the baseline: a step below it computed quicker.
  above: how far the policy's step is above it. Expected: at most 8 %, 12 % at the corner (ratio 0.8 to 1.25), where each message
  has independent compute beside it.
* link: what the bytes of a rank take at the rate of its link, headers included. While ranks compute, an idle link saves up
  128 KiB that then pass at once. The baseline has such pauses and the policy has none, so that its messages take up to
  `link`. above with link: how far the step is above the bound with link in place of communication, where that is longer.
* regime, by the established outcome: **hidden**, a gain, and {100 * HIDDEN:.0f} % or more of the shorter of compute and
  communication left the step; **quicker**, more than {100 * QUICKER:.0f} % did, so that compute became quicker as well;
  **partly**, a gain of less; **nothing**, all of the interval within 5 % of 1; **loss**. Undecided:
  the interval allows more than one.
* hides: communication covered by compute over all communication, of the baseline and of the policy.
* wire: bytes on the links with the policy over those of the baseline.
* spread: the middle half of the steps over their median, the larger of both. Over 10 % a comparison is run again,
  at most twice and for as long as ten minutes allow; the run that spreads least stands here. others: share of the steps for which
  other programs, or other virtual machines, had the cores.

"""

TOLERANCE = 0.15
HOLDING = ("map", "axes")
"""Sections in which the conditions are meant to hold."""
SECTIONS = {
    "map": """## The map

Prefill of dense models, tp=2, without a policy and with `tp=split_batch`. Attention and feed-forward take about as long, so that
each message has as much compute beside it as the next; widths and links of 100 Mbit/s to 2 Gbit/s set the ratio. At its left end
compute is a tenth of the step, and at its right end communication is less: little can leave it. Rows are named by the ratio that
was meant, which the machine's pace moves. `map 10` has nearly all of its compute in the feed-forward.

![{alt}](conditions.svg)

""",
    "training": """## Message by message

Length has to hold for each message, not for the sum. In a training step the forward has half of the messages and a third of the
compute, and attention has less of it than the feed-forward: what is too long in one place does not help in another.

""",
    "axes": """## Other collectives and passes

TP sends all-reduces (above); here all-to-alls between experts, gradients in buckets, and parameters gathered ahead, in training
and in a prefill.

""",
    "size": """## A small batch

A model as wide as that of `train 1.1`, with 32 tokens in place of 1024: messages of 32 KiB (halves of 16), whose time is latency,
and products that a split makes slow.

""",
    "headroom": """## Who may interrupt whom

`train 1.1` with gloo's threads below the one that computes (`--priority compute`): they run once it waits, so that what is
called and not waited for is not sent yet, and less of it is out of the way.

""",
    "contention": """## Links that nothing holds to a rate

Then a transfer is copying by the cores that compute: what communication takes is a large part of it, which overlap moves and
does not hide.
`short` has short messages: over a link of a rate they are worth hiding; over one without, halves cost more than they hide.

""",
    "planted": """## Planted causes

What `underlap analyze` says, and what removing the cause changed when it was measured. Named is the cause in the recorded step,
the most typical one; a promise is the median of those that each measured step makes by itself. Times are ms per step; exposed
causes are means per rank.

""",
}


def page(rows: Sequence[Row]) -> tuple[str, str]:
    """(Markdown, SVG)."""
    by_section = {name: [one for one in rows if one.section == name] for name in SECTIONS}
    text = HEAD + _summary(rows)
    for name, intro in SECTIONS.items():
        found = by_section[name]
        if not found:
            continue
        text += intro.replace("{alt}", _alt(by_section["map"])) + _table(found) + "\n"
        if name == "contention":
            free = [one for one in found if one.links == "unshaped"]
            lost = sum(one.regime == "loss" for one in free)
            text += f"A loss is what is often told of this: {lost} of the {len(free)} without a rate came out as one.\n"
            text += "".join(map(_quicker, free)) + "\n"
        if name == "planted":
            text += _planted({one.name: one for one in rows}) + "\n"
    return text + _tail(rows), _figure(by_section["map"])


# ---- tables

COLUMNS = (
    *(
        "case",
        "links",
        "ratio",
        "compute",
        "slower rank",
        "communication",
        "link",
        "taken",
        "baseline",
        "policy",
        "policy / baseline",
        "regime",
    ),
    *("bound", "above %", "above with link %", "hides %", "wire", "spread %", "others %", "runs"),
)


def _table(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |\n", "|---" * len(COLUMNS) + "|\n"]
    for one in rows:
        cells = (
            one.name,
            one.links,
            f"{one.over:.2f}",
            f"{one.compute:.0f}",
            f"{one.slowest_compute:.0f}",
            f"{one.communication:.0f}",
            "" if one.link is None else f"{one.link:.0f}",
            f"{one.core:.0f}",
            f"{one.base:.0f}",
            f"{one.step:.0f}",
            f"{one.ratio:.3f} ({one.ratio_low:.3f} to {one.ratio_high:.3f})",
            one.regime,
            f"{one.bound:.0f}",
            f"{100 * one.above:+.1f}{' (more than expected)' if one.section in HOLDING and one.above > one.allowed else ''}",
            f"{100 * one.above_link:+.1f}",
            f"{100 * one.base_hidden / one.communication:.0f}, {100 * one.hidden / one.sent:.0f}",
            f"{one.wire[1] / one.wire[0]:.4f}",
            f"{100 * one.spread:.1f}",
            f"{100 * one.others:.1f}",
            str(one.attempts),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    shapes = "".join(map(_shape, rows))
    return "".join(lines) + "\n" + shapes


BOTH = 2


class Planted(NamedTuple):
    """A cause, where it was analyzed, and what removing it did."""

    what: str
    row: Row
    which: int
    """0: of the baseline's record; 1: of the policy's; BOTH: of the one with the steps of both."""
    causes: tuple[str, ...]
    """Any of these named first is right. None of BOTH: see `right`."""
    lever: str
    change: float
    """By how many ms the step was shorter without it."""
    policy: float | None = None
    """By how many ms it is with the policy."""
    interval: tuple[float, float] | None = None
    """What holds the change with 95 %, where it is of steps in turns."""

    @property
    def right(self) -> bool:
        """Whether it is what most of the exposed time has as its cause; of contention, which exposes nothing, whether it is
        established."""
        if self.which == BOTH:
            return self.row.slower is not None
        causes = self.row.causes[self.which]
        return bool(causes) and causes[0][0] in self.causes

    @property
    def promise(self) -> tuple[float, float] | None:
        """(low, high) in ms."""
        if self.which == BOTH:
            return None if self.row.slower is None else self.row.slower[1:]
        return self.row.promises[self.which].get(self.lever)

    @property
    def said(self) -> float | None:
        """What is held against the change: the high end of a promise; of a cost with an interval, its value."""
        if self.which == BOTH:
            return None if self.row.slower is None else self.row.slower[0]
        return None if self.promise is None else self.promise[1]

    @property
    def kept(self) -> bool | None:
        """Whether it is within 15 % of the change. None where there is no promise, or nothing to win."""
        return None if self.said is None or self.change <= 0 else abs(self.said / self.change - 1) <= TOLERANCE

    @property
    def inside(self) -> bool | None:
        """Whether the change lies within the promise, give or take 15 %."""
        if self.promise is None or self.change <= 0:
            return None
        return self.promise[0] * (1 - TOLERANCE) <= self.change <= self.promise[1] * (1 + TOLERANCE)


def _planted(rows: dict[str, Row]) -> str:
    head = (
        "cause",
        "analyzed",
        "named first",
        "right",
        "lever",
        "promised",
        "measured change",
        "by the policy",
        "off %",
        "within 15 %",
        "in range",
    )
    found = _changes(rows)
    lines = [f"| {' | '.join(head)} |\n", "|---" * len(head) + "|\n", *map(_line, found)]
    named, kept = sum(one.right for one in found), sum(one.kept is True for one in found)
    inside = sum(one.inside is True for one in found)
    return f"""\
{"".join(lines)}
Named first (contention: established) in {named} of {len(found)}: `fabric_bound` counts for too little compute, as it says
that the link was full all along. The high end of the promise (of contention: the cost) is within {100 * TOLERANCE:.0f} % of
the change in {kept}, the change in the range of the promise (give or take as much) in {inside}; a promise whose low end is
0 says at most so much. What is dependent here is the baseline itself: the change is that of a step which waits for no
result before its end, in turns with the baseline's (`--ceilings`: what it computes is wrong); beside it what the policy
wins, which leaves the ends exposed, and halves. Contention exposes nothing and is no cause of exposure: it is found where
the steps of both plans are in one record (`--record`, folder both), as compute that is slower beside communication.
"""


def _changes(rows: dict[str, Row]) -> list[Planted]:
    found: list[Planted] = []

    def left_out(name: str, left: LeftOut, said: str, causes: tuple[str, ...]) -> None:
        one = rows.get(name)
        if one is not None and left in one.won:
            value, low, high = one.won[left]
            which = 0 if left == "waits" else 1
            policy = one.base - one.step if which == 0 else None
            found.append(Planted(f"{said} ({name})", one, which, causes, LEVER[left], value, policy, (low, high)))

    def against(name: str, other: str, said: str, causes: tuple[str, ...], lever: str) -> None:
        if name in rows and other in rows:
            found.append(Planted(f"{said} ({name}; {other})", rows[name], 1, causes, lever, rows[name].step - rows[other].step))

    for name in INDEPENDENT:
        left_out(name, "waits", "dependence; without waiting for results", ("dependent",))
    little = ("too_little_compute", "fabric_bound")
    left_out("little compute", "messages", "too little compute; without sending", little)
    left_out("little compute", "half_transfers", "too little compute; links of twice the rate", little)
    left_out("slow link", "half_transfers", "a link of half the rate; links of twice the rate", ("fabric_bound",))
    slowed = "two thirds of rank 1's core taken by another process; not taken"
    against("slowed rank", "even ranks", slowed, ("late_peer",), "stragglers")
    if "buckets" in rows:
        one = rows["buckets"]
        value, low, high = one.more_compute
        said = "contention; against the same compute alone (buckets)"
        found.append(Planted(said, one, BOTH, (), "contention", value, None, (low, high)))
    return found


def _line(planted: Planted) -> str:
    promised, off = "unknown", ""
    if planted.promise is not None and planted.said is not None:
        low, high = planted.promise
        promised = f"{high:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
        off = f"{100 * (planted.said / planted.change - 1):+.0f}" if planted.change > 0 else ""
    said = {True: "yes", False: "no", None: "-"}
    record = ("baseline", "policy", "both")[planted.which]
    change = f"{planted.change:.0f}"
    if planted.interval is not None:
        change += f" ({planted.interval[0]:.0f} to {planted.interval[1]:.0f})"
    policy = "" if planted.policy is None else f"{planted.policy:.0f}"
    cells = (planted.what, record, _named(planted), said[planted.right], planted.lever, promised, change, policy, off)
    return f"| {' | '.join(cells)} | {said[planted.kept]} | {said[planted.inside]} |\n"


def _named(planted: Planted) -> str:
    """The first two causes of what is exposed, or that compute is slower."""
    if planted.which == BOTH:
        return "compute is slower beside communication" if planted.right else "no difference established"
    causes, late = planted.row.causes[planted.which], planted.row.late[planted.which]
    whole = sum(amount for _, amount in causes)
    named = ", ".join(f"{cause} {100 * amount / whole:.0f} %" for cause, amount in causes[:2]) or "nothing exposed"
    return named + (f" ({late})" if late and "late_peer" in [cause for cause, _ in causes[:2]] else "")


def _quicker(row: Row) -> str:
    if row.regime != "quicker":
        return ""
    less = -row.more_compute[0]
    return f"Of the step of `{row.name}` more went than its communication takes: its compute took {less:.0f} ms less.\n"


def _shape(row: Row) -> str:
    parts = [f"{row.name}: {row.shape}", row.layout, row.workload, row.policy]
    if row.priority != "communication":
        parts.append(f"priority {row.priority}")
    count = next(case.repetitions for case in CASES if case.name == row.name)
    if count != REPETITIONS:
        parts.append(f"{count} repetitions")
    return f"* {'; '.join(parts)}\n"


# ---- words


def _summary(rows: Sequence[Row]) -> str:
    fitting = [one for one in rows if one.section in HOLDING]
    within = [one for one in fitting if one.above <= one.allowed]
    of_link = [one for one in fitting if one.above_link <= one.allowed]
    regimes = Counter(one.regime for one in rows if one.section != "planted")
    listed = ", ".join(
        f"{name} {regimes[name]}" for name in ("hidden", "quicker", "partly", "nothing", "loss", "undecided") if regimes[name]
    )
    hides = max(one.base_hidden / one.communication for one in rows)
    again = sum(one.attempts > 1 for one in rows)
    equal = sum(one.bytes_equal for one in rows)
    return f"""\
Of {sum(regimes.values())} comparisons: {listed}. {len(within)} of the {len(fitting)} in which each message has independent
compute beside it (the map, and other passes) end within what is expected above the bound; {len(of_link)} where the bound
knows the rate of the link. A baseline hides {100 * hides:.1f} % of its communication at most. Bytes handed in are equal
with and without the policy in {equal} of {len(rows)}, and agree with the plan; {again} comparisons were run again.

"""


def _tail(rows: Sequence[Row]) -> str:
    return f"""\
## What this does not show

* Where a step stays above the bound: the messages of the embedding, of the head, and the last half of each direction have nothing
  independent beside them (with `split_batch` and tp 3 of 4 x layers + 2 in training, 1.5 of 2 x layers + 1 in a prefill); halves
  take a latency more; while the first half computes, and in the loss and the optimizer, the link is idle.
* That a link is full can be told (`fabric_bound`), not that it is slower than another: two ranks wait for it alike, and nothing
  says what rate it should have.
* gloo on CPUs: nothing of NCCL kernels, of multiprocessors shared with compute, or of NVLink. Ring attention and pipelines are
  held to correctness, bytes and order only (tests/run), as messages between two ranks hang with this priority.

Measured with {"; ".join(dict.fromkeys(one.made_with for one in rows))}, in {len({(one.links, one.slowed) for one in rows})} kinds
of launches; SCHED_FIFO for both threads, gloo's above the one that computes, where no other priority stands behind a shape.
"""


# ---- the figure

WIDE, HIGH = 720, 420
LEFT, TOP, RIGHT, BOTTOM = 70, 30, 20, 60
LOW_X, HIGH_X, LOW_Y, HIGH_Y = 0.08, 16.0, 0.4, 1.2
COLORS = {
    "hidden": "#1b7837",
    "quicker": "#2166ac",
    "partly": "#7fbf7b",
    "nothing": "#8a8a8a",
    "loss": "#b2182b",
    "undecided": "#c9a227",
}
SVG = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $wide $high" role="img" aria-label="$alt" font-family="sans-serif"
font-size="12"> <rect width="$wide" height="$high" fill="#ffffff"/>
$grid
<polyline points="$curve" fill="none" stroke="#444444" stroke-dasharray="5 4"/>
$points
<text x="$middle" y="$foot" text-anchor="middle">compute / communication (logarithmic)</text>
<text x="18" y="$center" text-anchor="middle" transform="rotate(-90 18 $center)">step with split batch / step of the
baseline</text>
$legend
</svg>
""")


def _x(ratio: float) -> float:
    return LEFT + (WIDE - LEFT - RIGHT) * math.log(ratio / LOW_X) / math.log(HIGH_X / LOW_X)


def _y(ratio: float) -> float:
    return TOP + (HIGH - TOP - BOTTOM) * (HIGH_Y - ratio) / (HIGH_Y - LOW_Y)


def _alt(rows: Sequence[Row]) -> str:
    said = "; ".join(f"{one.over:.2f}: {one.ratio:.2f} ({one.regime})" for one in rows)
    return f"Step with split batch over step of the baseline, by compute over communication. {said}"


def _figure(rows: Sequence[Row]) -> str:
    grid = []
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        at = _x(tick)
        grid.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HIGH - BOTTOM}" stroke="#e5e5e5"/>')
        grid.append(f'<text x="{at:.1f}" y="{HIGH - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in (0.4, 0.6, 0.8, 1.0, 1.2):
        at = _y(tick)
        grid.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDE - RIGHT}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        grid.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:.1f}</text>')
    steps = [LOW_X * (HIGH_X / LOW_X) ** (number / 80) for number in range(81)]
    curve = " ".join(f"{_x(ratio):.1f},{_y(max(ratio, 1.0) / (ratio + 1.0)):.1f}" for ratio in steps)
    points = []
    for one in rows:
        at, color = _x(one.over), COLORS[one.regime]
        points.append(
            f'<line x1="{at:.1f}" y1="{_y(one.ratio_low):.1f}" x2="{at:.1f}" y2="{_y(one.ratio_high):.1f}" stroke="{color}" '
            f'stroke-width="2"/><circle cx="{at:.1f}" cy="{_y(one.ratio):.1f}" r="5" fill="{color}"/>'
        )
    legend = []
    for number, name in enumerate(dict.fromkeys(one.regime for one in rows)):
        at = LEFT + 12 + 90 * number
        legend.append(f'<circle cx="{at}" cy="18" r="5" fill="{COLORS[name]}"/><text x="{at + 10}" y="22">{name}</text>')
    legend.append(f'<text x="{WIDE - RIGHT}" y="22" text-anchor="end">dashed: max(compute, communication) / sum</text>')
    return SVG.substitute(
        wide=WIDE,
        high=HIGH,
        alt=_alt(rows),
        grid="\n".join(grid),
        curve=curve,
        points="\n".join(points),
        middle=(LEFT + WIDE - RIGHT) / 2,
        foot=HIGH - 14,
        center=(TOP + HIGH - BOTTOM) / 2,
        legend="\n".join(legend),
    )
