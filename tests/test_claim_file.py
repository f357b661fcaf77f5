"""A claim from a file: every wrong one is one line that names the field, what was expected, and what to do."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from underlap import strict_yaml
from underlap.claim import Claim, Value, numbers, written
from underlap.claim_file import parse
from underlap.errors import InputError, UnreadableError
from underlap.strict_yaml import read_text

HEAD = "statement: s\nsource: {title: t}\n"


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "claim.yaml")
    message = str(caught.value)
    assert message.startswith("claim.yaml: ")
    assert "\n" not in message
    assert len(message) < 600
    return message.removeprefix("claim.yaml: ")


@pytest.mark.parametrize("text", ["", "# only a comment", "~", "[]", "- a", "text", "3", "2026-01-01"])
def test_a_file_without_fields_is_refused(text: str) -> None:
    assert "Expected a claim, a mapping of fields" in refused(text)


def test_the_least_claim_has_a_statement_and_a_source() -> None:
    claim = parse(HEAD, "claim.yaml")

    assert (claim.statement, claim.source.title, claim.value, claim.bytes.unchanged) == ("s", "t", None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statement: s", "a claim needs its source: source: {title: ..., where: ...} - at `$.source`"),
        ("statement: s\nsource: null", "a claim needs its source: source: {title: ..., where: ...} - at `$.source`"),
        ("statement: s\nsource: {}", "Object missing required field `title` - at `$.source`"),
        (
            "statement: s\nsource: {title: ''}",
            "Expected a text, or null where it is not known; got an empty one - at `$.source.title`",
        ),
        ("source: {title: t}", "a claim needs a statement: one sentence that says what is claimed - at `$.statement`"),
    ],
)
def test_a_claim_without_source_or_statement_is_refused(text: str, message: str) -> None:
    assert refused(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statment: s", "there is no field `statment`; did you mean `statement`? - at `$`"),
        ("workload: {sequnce: 5}", "there is no field `sequnce`; did you mean `sequence`? - at `$.workload`"),
        ("value: {atleast: 5}", "there is no field `atleast`; did you mean `at_least`? - at `$.value`"),
        ("hardware: {zzz: 5}", "there is no field `zzz`; known here: gpu, count, interconnect, topology - at `$.hardware`"),
        ("workload: {5: 5}", "Expected the name of a field, got 5 - at `$.workload`"),
        ("workload: 5", "Expected `object`, got `int` - at `$.workload`"),
        ("unknowns: one", "Expected `array`, got `str` - at `$.unknowns`"),
        ("bytes: {unchanged: maybe}", "Expected `bool | null`, got `str` - at `$.bytes.unchanged`"),
        ("contention_included: 1", "Expected `bool | null`, got `int` - at `$.contention_included`"),
        ("source: {title: t, year: '2024'}", "Expected `int | null`, got `str` - at `$.source.year`"),
        ("value: true\nunit: '%'", "Expected `float | object | null`, got `bool` - at `$.value`"),
        ("schema: underlap.claim/9", "Expected `underlap.claim/1`, got 'underlap.claim/9' - at `$.schema`"),
    ],
)
def test_unknown_fields_and_wrong_types_are_named_with_their_path(text: str, message: str) -> None:
    head = HEAD.replace("source: {title: t}\n", "") if text.startswith("source") else HEAD

    assert refused(head + text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric: hiden_share", "unknown word 'hiden_share'; did you mean hidden_share? - at `$.metric`"),
        ("unit: '%'\nvalue: 3\nof: transfers", "unknown word 'transfers'; did you mean transfer? - at `$.of`"),
        ("collective: allreduce", "unknown word 'allreduce'; did you mean all_reduce? - at `$.collective`"),
        ("collective: [all_reduce, All-Gather]", "unknown word 'All-Gather'; did you mean all_gather? - at `$.collective[1]`"),
        ("workload: {phase: training}", "unknown word 'training'; did you mean train? - at `$.workload.phase`"),
        ("effect: [hide]", "unknown word 'hide'; did you mean hidden? - at `$.effect[0]`"),
    ],
)
def test_a_word_that_is_not_in_its_list_is_refused_with_the_nearest(text: str, message: str) -> None:
    assert refused(HEAD + text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value: 80", "the value [80.0] has no unit; Expected one of ns, us, ms, s, B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, GB/s, "
         "GiB/s, tokens/s, tokens/s/GPU, TFLOPS/GPU, x, %, SMs, tokens - at `$.unit`"),
        ("value: {low: 80 ms, high: 90 %}", "the claim mixes ms and %: one unit for all of its figures - at `$.value.high`"),
        ("value: 80 ms\nunit: '%'", "the claim mixes ms and %: one unit for all of its figures - at `$.unit`"),
        ("value: {low: 1 GB, high: 2 GiB}", "the claim mixes GB (10^9 bytes) and GiB (2^30 bytes): one unit for all of its "
         "figures - at `$.value.high`"),
        ("value: 1 KB", "the unit KB is ambiguous; bytes are kB (1000) or KiB (1024), bandwidth GB/s or GiB/s - at `$.unit`"),
        ("value: fast", "Expected a number, got 'fast' - at `$.value`"),
        ("metric: hidden_share\nvalue: 80 ms", "hidden_share is given in %; got 'ms' - at `$.unit`"),
        ("metric: exposed_time\nvalue: 8 %", "exposed_time is given in ns, us, ms, s; got '%' - at `$.unit`"),
        ("metric: step_time\nof: step\nvalue: 8 ms", "step_time has no denominator, got 'step' - at `$.of`"),
        ("metric: hidden_share\nof: step\nvalue: 8 %",
         "Expected transfer or kernel_time for hidden_share, got 'step' - at `$.of`"),
    ],
)  # fmt: skip
def test_units_are_given_once_and_fit_the_metric(text: str, message: str) -> None:
    assert refused(HEAD + text) == message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("value: {low: 90 %, high: 80 %}", "the range is upside down: low 90 is above high 80; swap them - at `$.value`"),
        ("value: {low: 90 %}", "got low - at `$.value`"),
        ("value: {at_least: 1 %, at_most: 2 %}", "got at_least and at_most - at `$.value`"),
        ("value: {}\nunit: '%'", "got none of them - at `$.value`"),
        ("value: [1, 2]\nunit: '%'", "got a list - at `$.value`"),
        ("value: {points: []}\nunit: '%'", "Expected at least one figure, got none - at `$.value.points`"),
    ],
)
def test_a_value_has_one_of_its_forms(text: str, words: str) -> None:
    assert refused(HEAD + text).endswith(words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value: .nan\nunit: '%'", "Expected a finite number, got nan - at `$.value`"),
        ("value: {at_least: -.inf}\nunit: '%'", "Expected a finite number, got -inf - at `$.value.at_least`"),
        ("value: {points: [1, .inf]}\nunit: '%'", "Expected a finite number, got inf - at `$.value.points[1]`"),
        ("value: 1e999 ms", "Expected a finite number, got inf - at `$.value`"),
        ("metric: hidden_share\nvalue: -1 %", "hidden_share is a share: Expected 0 to 100 %, got -1 - at `$.value`"),
        ("metric: hidden_share\nvalue: {at_most: 101 %}", "hidden_share is a share: Expected 0 to 100 %, got 101 - at `$.value`"),
        ("metric: step_time\nvalue: -1 ms", "Expected 0 or more ms, got -1 - at `$.value`"),
        ("metric: operator_speedup\nvalue: 0 x", "a ratio is above 0, got 0 - at `$.value`"),
        (
            "metric: end_to_end_speedup\nof: baseline_time\nvalue: 100 %",
            "Expected less than 100 % less time, got 100 % - at `$.value`",
        ),
        ("value: 1e30 ms", "1e+30 is no figure of a claim: at most 1e+18 - at `$.value`"),
        ("workload: {rows: [9, 2]}", "Expected a number from 1, or [smallest, largest], got [9, 2] - at `$.workload.rows`"),
        ("workload: {batch: 0}", "Expected 1 or more, got 0 - at `$.workload.batch`"),
        ("hardware: {count: -8}", "Expected 1 or more, got -8 - at `$.hardware.count`"),
        ("bytes: {reported: -1}", "Expected 0 or more bytes, got -1 - at `$.bytes.reported`"),
    ],
)
def test_impossible_figures_are_refused(text: str, message: str) -> None:
    assert refused(HEAD + text) == message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [1]\nb: *a", "an alias (*a) in line 4; aliases are not accepted: write the value out"),
        ("a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", "nested deeper than 16 levels in line 3"),
        ("statement: again", "the field 'statement' occurs twice in one mapping, again in line 3"),
        ("workload: {batch: 1, batch: 2}", "the field 'batch' occurs twice in one mapping, again in line 3"),
        ("? [a, b]\n: 1", "not YAML: "),
        ("a: !!python/object/apply:os.getcwd []", "not YAML: could not determine a constructor for the tag"),
        ("a: b: c", "not YAML: mapping values are not allowed"),
        ("a: 2026-99-99", "not YAML: month must be in 1..12"),
        ("a: 'open", "not YAML: "),
        ("---\nb: 1", "not YAML: expected a single document"),
        ("a: \x00", "not YAML: "),
        ("note: " + "x" * 5000, "Expected at most 4000 characters, got 5000 - at `$.note`"),
        ("batch: " + "9" * 5000, "not YAML: "),
    ],
)
@pytest.mark.parametrize("loader", {yaml.SafeLoader, strict_yaml._LOADER})
def test_hostile_yaml_is_refused_before_it_is_built(text: str, words: str, loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_yaml, "_LOADER", loader)

    assert words in refused(HEAD + text)


@pytest.mark.parametrize("loader", {yaml.SafeLoader, strict_yaml._LOADER})
@pytest.mark.parametrize("bomb", ["a: " + "[" * 10_000, "a: " + "{a: " * 10_000, "\n".join(" " * at + "a:" for at in range(900))])
def test_thousands_of_levels_are_refused_at_once(bomb: str, loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_yaml, "_LOADER", loader)

    assert re.search("nested deeper than 16 levels|maximum nesting depth", refused(bomb))


def test_a_huge_file_a_folder_and_other_bytes_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"a" * ((1 << 20) + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, words in (("big", "larger than 1 MiB"), ("bytes", "not UTF-8 text"), (".", "a folder")):
        with pytest.raises(UnreadableError, match=words):
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
