"""The text of a program says exactly its steps: a reader that unrolls it gets them back."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.scenarios import Drawn, scenarios
from underlap.plan import Place, Step, text
from underlap.policy import parse_policy
from underlap.schedule import apply

_RANGE = r"(?: {word} (\d+)(?:\.\.(\d+))?)?"
_PLACE = _RANGE.format(word="micro_batch") + _RANGE.format(word="layer")
_LINE = re.compile(r" *(\S+)" + _PLACE + _PLACE + "$")
_LOOP = re.compile(r"  (\d+) times, each (\d+) micro-batch(?:es)? later:$")


def read(lines: list[str]) -> list[Step]:
    """The steps of a program's lines."""
    steps: list[Step] = []
    at = 0
    while at < len(lines):
        loop = _LOOP.match(lines[at])
        if loop is None:
            steps += run(lines[at], 0)
            at += 1
            continue
        body = []
        while at + 1 < len(lines) and lines[at + 1].startswith("    "):
            at += 1
            body.append(lines[at])
        steps += [step for turn in range(int(loop[1])) for line in body for step in run(line, turn * int(loop[2]))]
        at += 1
    return steps


def run(line: str, later: int) -> list[Step]:
    """The steps of one line, so many micro-batches later."""
    found = _LINE.match(line)
    assert found is not None, line
    ends = [(int(a) if a else -1, int(b) if b else None) for a, b in zip(found.groups()[1::2], found.groups()[2::2], strict=True)]
    length = max([abs(last - first) for first, last in ends if last is not None], default=0) + 1
    columns = []
    for number, (first, last) in enumerate(ends):
        move = 0 if last is None else (1 if last > first else -1)
        shift = later if number % 2 == 0 and first >= 0 else 0
        columns.append([first + shift + turn * move for turn in range(length)])
    return [Step(found[1], Place(a, b), Place(c, d)) for a, b, c, d in zip(*columns, strict=True)]


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.sampled_from(("", "ep=pair_forward_backward", "tp=pair_forward_backward", "pp=async_p2p")))
def test_a_reader_of_the_text_gets_the_steps_of_the_program(drawn: Drawn, policy: str) -> None:
    made = apply(drawn.plan(), parse_policy(policy)).plan
    lines = text(made).splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("role ")]
    for role, begin, end in zip(made.roles, starts, [*starts[1:], len(lines)], strict=True):
        assert tuple(read(lines[begin + 1 : end])) == role.program
