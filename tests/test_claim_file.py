"""A claim from a file: every wrong one is one line that names the field, what was expected, and what to do."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from underlap.claim import Claim, Value, numbers, written
from underlap.claim_file import parse
from underlap.documents import read_text
from underlap.errors import InputError, UnreadableError

HEAD = "statement: s\nsource: {title: t}\n"


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "claim.yaml")
    message = str(caught.value)
    assert message.startswith("claim.yaml")
    assert "\n" not in message
    assert len(message) < 600
    return message.removeprefix("claim.yaml").removeprefix(":").strip()


@pytest.mark.parametrize("text", ["", "# only a comment", "~", "[]", "- a", "text", "3", "2026-01-01"])
def test_a_file_without_fields_is_refused(text: str) -> None:
    assert "expected a claim, a mapping of fields" in refused(text)


def test_the_least_claim_has_a_statement_and_a_source() -> None:
    claim = parse(HEAD, "claim.yaml")

    assert (claim.statement, claim.source.title, claim.value, claim.bytes.unchanged) == ("s", "t", None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statement: s", "at $.source: a claim needs its source: source: {title: ..., where: ...}"),
        ("statement: s\nsource: null", "at $.source: a claim needs its source: source: {title: ..., where: ...}"),
        ("statement: s\nsource: {}", "at $.source: the field 'title' is missing: expected it beside the others"),
        (
            "statement: s\nsource: {title: ''}",
            "at $.source.title: expected a text, or null where it is not known; got an empty one",
        ),
        ("source: {title: t}", "at $.statement: a claim needs a statement: one sentence that says what is claimed"),
    ],
)
def test_a_claim_without_source_or_statement_is_refused(text: str, message: str) -> None:
    assert refused(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statment: s", "at $: unknown field 'statment': did you mean 'statement'? Known: "),
        ("workload: {sequnce: 5}", "at $.workload: unknown field 'sequnce': did you mean 'sequence'? Known: batch, "),
        ("value: {atleast: 5}", "at $.value: unknown field 'atleast': did you mean 'at_least'? Known: at_least, "),
        ("hardware: {zzz: 5}", "at $.hardware: unknown field 'zzz': known: count, gpu, interconnect, topology"),
        ("workload: {5: 5}", "at $.workload: the name of a field is no text: expected a mapping with names"),
        ("workload: 5", "at $.workload: expected a mapping, got a whole number (5)"),
        ("unknowns: one", "at $.unknowns: expected a list, got text ('one')"),
        ("bytes: {unchanged: maybe}", "at $.bytes.unchanged: expected true or false or null, got text ('maybe')"),
        ("contention_included: 1", "at $.contention_included: expected true or false or null, got a whole number (1)"),
        ("source: {title: t, year: '2024'}", "at $.source.year: expected a whole number or null, got text ('2024')"),
        ("value: true\nunit: '%'", "at $.value: expected a number or a mapping or null, got true or false (True)"),
        ("schema: underlap.claim/9", "at $.schema: expected `underlap.claim/1`, got 'underlap.claim/9'"),
    ],
)
def test_unknown_fields_and_wrong_types_are_named_with_their_path(text: str, message: str) -> None:
    head = HEAD.replace("source: {title: t}\n", "") if text.startswith("source") else HEAD

    assert refused(head + text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric: hiden_share", "at $.metric: unknown word 'hiden_share'; did you mean hidden_share?"),
        ("unit: '%'\nvalue: 3\nof: transfers", "at $.of: unknown word 'transfers'; did you mean transfer?"),
        ("collective: allreduce", "at $.collective: unknown word 'allreduce'; did you mean all_reduce?"),
        ("collective: [all_reduce, All-Gather]", "at $.collective[1]: unknown word 'All-Gather'; did you mean all_gather?"),
        ("workload: {phase: training}", "at $.workload.phase: unknown word 'training'; did you mean train?"),
        ("effect: [hide]", "at $.effect[0]: unknown word 'hide'; did you mean hidden?"),
    ],
)
def test_a_word_that_is_not_in_its_list_is_refused_with_the_nearest(text: str, message: str) -> None:
    assert refused(HEAD + text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value: 80", "at $.unit: the value [80.0] has no unit; expected one of ns, us, ms, s, B, kB, MB, GB, TB, KiB, MiB, GiB, "
         "TiB, GB/s, GiB/s, tokens/s, tokens/s/GPU, TFLOPS/GPU, x, %, SMs, tokens"),
        ("value: {low: 80 ms, high: 90 %}", "at $.value.high: the claim mixes ms and %: one unit for all of its figures"),
        ("value: 80 ms\nunit: '%'", "at $.unit: the claim mixes ms and %: one unit for all of its figures"),
        ("value: {low: 1 GB, high: 2 GiB}", "at $.value.high: the claim mixes GB (10^9 bytes) and GiB (2^30 bytes): one unit "
         "for all of its figures"),
        ("value: 1 KB", "at $.unit: the unit KB is ambiguous; bytes are kB (1000) or KiB (1024), bandwidth GB/s or GiB/s"),
        ("value: fast", "at $.value: expected a number, got 'fast'"),
        ("metric: hidden_share\nvalue: 80 ms", "at $.unit: hidden_share is given in %; got 'ms'"),
        ("metric: exposed_time\nvalue: 8 %", "at $.unit: exposed_time is given in ns, us, ms, s; got '%'"),
        ("metric: step_time\nof: step\nvalue: 8 ms", "at $.of: step_time has no denominator, got 'step'"),
        ("metric: hidden_share\nof: step\nvalue: 8 %",
         "at $.of: expected transfer or kernel_time for hidden_share, got 'step'"),
    ],
)  # fmt: skip
def test_units_are_given_once_and_fit_the_metric(text: str, message: str) -> None:
    assert refused(HEAD + text) == message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("value: {low: 90 %, high: 80 %}", "at $.value: the range is upside down: low 90 is above high 80; swap them"),
        ("value: {low: 90 %}", "got low"),
        ("value: {at_least: 1 %, at_most: 2 %}", "got at_least and at_most"),
        ("value: {}\nunit: '%'", "got none of them"),
        ("value: [1, 2]\nunit: '%'", "got a list"),
        ("value: {points: []}\nunit: '%'", "at $.value.points: expected at least one figure, got none"),
    ],
)
def test_a_value_has_one_of_its_forms(text: str, words: str) -> None:
    assert refused(HEAD + text).endswith(words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value: .nan\nunit: '%'", "at $.value: expected a finite number, got nan: leave it out"),
        (
            "value: {at_least: -.inf}\nunit: '%'",
            "at $.value.at_least: expected a finite number, got -inf: leave it out",
        ),
        (
            "value: {points: [1, .inf]}\nunit: '%'",
            "at $.value.points[1]: expected a finite number, got inf: leave it out",
        ),
        ("value: 1e999 ms", "at $.value: inf is no figure of a claim: at most 1e+18"),
        ("metric: hidden_share\nvalue: -1 %", "at $.value: hidden_share is a share: expected 0 to 100 %, got -1"),
        ("metric: hidden_share\nvalue: {at_most: 101 %}", "at $.value: hidden_share is a share: expected 0 to 100 %, got 101"),
        ("metric: step_time\nvalue: -1 ms", "at $.value: expected 0 or more ms, got -1"),
        ("metric: operator_speedup\nvalue: 0 x", "at $.value: a ratio is above 0, got 0"),
        (
            "metric: end_to_end_speedup\nof: baseline_time\nvalue: 100 %",
            "at $.value: expected less than 100 % less time, got 100 %",
        ),
        ("value: 1e30 ms", "at $.value: 1e+30 is no figure of a claim: at most 1e+18"),
        ("workload: {rows: [9, 2]}", "at $.workload.rows: expected a number from 1, or [smallest, largest], got [9, 2]"),
        ("workload: {batch: 0}", "at $.workload.batch: expected 1 or more, got 0"),
        ("hardware: {count: -8}", "at $.hardware.count: expected 1 or more, got -8"),
        ("bytes: {reported: -1}", "at $.bytes.reported: expected 0 or more bytes, got -1"),
    ],
)
def test_impossible_figures_are_refused(text: str, message: str) -> None:
    assert refused(HEAD + text).startswith(message)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [1]\nb: *a", "line 4: an alias (*a): anchors and aliases are not read; write the value out"),
        ("a: " + "[" * 41 + "1" + "]" * 41, "line 3: nested deeper than 40 levels"),
        ("statement: again", "line 3, column 1: not YAML: the key 'statement' is given twice"),
        ("workload: {batch: 1, batch: 2}", "line 3, column 22: not YAML: the key 'batch' is given twice"),
        ("? [a, b]\n: 1", "not YAML: "),
        (
            "a: !!python/object/apply:os.getcwd []",
            "line 3: the tag 'tag:yaml.org,2002:python/object/apply:os.getcwd'",
        ),
        ("a: b: c", "not YAML: mapping values are not allowed"),
        ("source: 2026-99-99", "line 3, column 1: not YAML: the key 'source' is given twice"),
        ("a: 'open", "not YAML: "),
        ("---\nb: 1", "not YAML: but found another document"),
        ("a: \x00", "not YAML: "),
        ("note: " + "x" * 5000, "at $.note: expected at most 4000 characters, got 5000"),
        ("batch: " + "9" * 5000, "not YAML: "),
    ],
)
def test_hostile_yaml_is_refused_before_it_is_built(text: str, words: str) -> None:
    assert words in refused(HEAD + text)


@pytest.mark.parametrize("bomb", ["a: " + "[" * 10_000, "a: " + "{a: " * 10_000, "\n".join(" " * at + "a:" for at in range(900))])
def test_thousands_of_levels_are_refused_at_once(bomb: str) -> None:
    assert re.search("nested deeper than 40 levels", refused(bomb))


def test_a_huge_file_a_folder_and_other_bytes_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"a" * ((4 << 20) + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, words in (("big", "larger than 4 MiB"), ("bytes", "is not UTF-8"), (".", "is a folder")):
        with pytest.raises((InputError, UnreadableError), match=words):
            read_text(tmp_path / name, "a claim")


@pytest.mark.parametrize(
    ("text", "value", "unit", "said"),
    [
        ("value: 80 %", 80.0, "%", "80 %"),
        ("value: 1.5\nunit: ms", 1.5, "ms", "1.5 ms"),
        ("value: {at_least: 80 %}", Value(at_least=80), "%", "at least 80 %"),
        ("value: {at_most: 2.5}\nunit: x", Value(at_most=2.5), "x", "at most 2.5 x"),
        ("value: {low: 27 %, high: 35%}", Value(low=27, high=35), "%", "27 to 35 %"),
        ("value: {up_to: 1.66 x}", Value(up_to=1.66), "x", "up to 1.66 x"),
        ("value: {points: [40 %, 63 %]}", Value(points=[40, 63]), "%", "40, 63 %"),
        ("value: -27 %", -27.0, "%", "-27 %"),
        ("value: null", None, None, None),
    ],
)
def test_a_figure_may_be_written_with_its_unit_or_beside_it(text: str, value: object, unit: str | None, said: str | None) -> None:
    claim = parse(HEAD + text, "claim.yaml")

    assert (claim.value, claim.unit, written(claim.value, claim.unit)) == (value, unit, said)


def accepted(text: str) -> bool:
    try:
        parse(text, "claim.yaml")
    except InputError:
        return False
    return True


word = st.text("abc %:-\x00\n\u202e", max_size=6)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | word | st.just(10**400) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word | st.integers(), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from([*Claim.__struct_fields__, "at_least", "nonsense"])


@given(st.dictionaries(fields, anything, max_size=4), st.dictionaries(fields, anything, max_size=2))
def test_any_yaml_is_a_claim_or_one_line(known: dict[str, object], inside: dict[str, object]) -> None:
    base = {"statement": "s", "source": {"title": "t"}, "value": {"at_least": 3, **inside}, "unit": "%", **known}
    text = yaml.safe_dump(base)
    if accepted(text):
        assert all(math.isfinite(number) for number in numbers(parse(text, "claim.yaml").value))
    else:
        refused(text)


@given(st.text(max_size=60))
def test_any_text_is_a_claim_or_one_line(text: str) -> None:
    with pytest.raises(InputError):
        parse(text, "claim.yaml")
