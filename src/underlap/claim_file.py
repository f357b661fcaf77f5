"""A Claim from the text of a YAML (or JSON) file, checked field by field. Everything wrong is one InputError with its path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from underlap.claim import COLLECTIVES, DENOMINATORS, EFFECTS, METRICS, PHASES, SCHEMA, UNITS, Claim, Value, listed, numbers
from underlap.documents import decode, parse_document, shown
from underlap.errors import InputError

WHAT = "a claim"
_FORMS = "a number, or one of {at_least: N}, {at_most: N}, {low: N, high: N}, {up_to: N}, {points: [N, ...]}"
_WITH_UNIT = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%/]+)?\s*")
_LARGEST = 1e18
"""Larger figures are slips, and make no sense in any unit here."""
_LONGEST = 4000
"""In characters, of any one text."""


def parse(text: str, where: str) -> Claim:
    """The claim. `where` names the file in errors."""
    raw = parse_document(text, where)
    if not isinstance(raw, dict):
        raise InputError(f"{where}: expected {WHAT}, a mapping of fields, got {'nothing' if raw is None else shown(raw)}")
    if "source" not in raw or raw["source"] is None:
        raise _wrong(where, "source", "a claim needs its source: source: {title: ..., where: ...}")
    if not raw.get("statement"):
        raise _wrong(where, "statement", "a claim needs a statement: one sentence that says what is claimed")
    claim: Claim = decode(_with_plain_numbers(raw, where), Claim, where)
    if claim.schema != SCHEMA:
        raise _wrong(where, "schema", f"expected `{SCHEMA}`, got {claim.schema[:80]!r}")
    _check_texts(claim, where)
    _check_words(claim, where)
    _check_unit(claim, where)
    _check_form(claim, where)
    _check_figures(claim, where)
    return claim


def _wrong(where: str, field: str, message: str) -> InputError:
    return InputError(f"{where} at $.{field}: {message}")


def _with_plain_numbers(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Figures that were written with their unit (`at_least: 80 %`) as numbers, and the unit in its field."""
    units: dict[str, str] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner, f"{path}.{key}") for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner, f"{path}[{index}]") for index, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        match = _WITH_UNIT.fullmatch(value) if len(value) < 80 else None
        if match is None:
            raise _wrong(where, path, f"expected a number, got {value[:80]!r}")
        if match[2]:
            units[path] = match[2]
        return float(match[1])

    if isinstance(raw.get("value"), list):
        raise _wrong(where, "value", f"expected {_FORMS}, got a list")
    value = plain(raw.get("value"), "value")
    if not units:
        return {**raw, "value": value}
    if isinstance(raw.get("unit"), str):
        units["unit"] = raw["unit"]
    first, *rest = units.items()
    for path, unit in rest:
        if unit != first[1]:
            raise _wrong(where, path, f"the claim mixes {_said(first[1])} and {_said(unit)}: one unit for all of its figures")
    return {**raw, "value": value, "unit": first[1]}


def _said(unit: str) -> str:
    powers = {"GB": "GB (10^9 bytes)", "GiB": "GiB (2^30 bytes)", "MB": "MB (10^6 bytes)", "MiB": "MiB (2^20 bytes)"}
    return powers.get(unit, unit[:40])


def _check_texts(claim: Claim, where: str) -> None:
    def walk(value: Any, path: str) -> None:
        if isinstance(value, str) and len(value) > _LONGEST:
            raise _wrong(where, path, f"expected at most {_LONGEST} characters, got {len(value)}")
        if isinstance(value, str) and not value.strip():
            raise _wrong(where, path, "expected a text, or null where it is not known; got an empty one")
        if isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, f"{path}[{index}]")
        if isinstance(value, msgspec.Struct):
            for field in value.__struct_fields__:
                walk(getattr(value, field), f"{path}.{field}" if path else field)

    walk(claim, "")


def _check_words(claim: Claim, where: str) -> None:
    """The fields with a closed list of words."""
    single: dict[str, tuple[str | None, Iterable[str]]] = {
        "metric": (claim.metric, METRICS),
        "of": (claim.of, DENOMINATORS),
        "unit": (claim.unit, UNITS),
    }
    for field, (word, known) in single.items():
        _check_word(word, known, field, where)
    several: dict[str, tuple[str | list[str] | None, Iterable[str]]] = {
        "workload.phase": (claim.workload.phase, PHASES),
        "collective": (claim.collective, COLLECTIVES),
        "effect": (claim.effect, EFFECTS),
    }
    for field, (value, words) in several.items():
        for index, word in enumerate(listed(value)):
            _check_word(word, words, f"{field}[{index}]" if isinstance(value, list) else field, where)
    of = METRICS[claim.metric].of if claim.metric else ()
    if claim.of is not None and claim.metric is not None and claim.of not in of:
        expected = f"expected {' or '.join(of)} for {claim.metric}" if of else f"{claim.metric} has no denominator"
        raise _wrong(where, "of", f"{expected}, got {claim.of!r}")


def _check_word(word: str | None, known: Iterable[str], field: str, where: str) -> None:
    known = list(known)
    if word is None or word in known:
        return
    if field == "unit" and word in ("KB", "Kb", "Gb", "GBs", "GBps", "Gbps", "Gb/s"):
        raise _wrong(where, field, f"the unit {word} is ambiguous; bytes are kB (1000) or KiB (1024), bandwidth GB/s or GiB/s")
    folded = {entry.lower().replace("_", ""): entry for entry in known}
    near = difflib.get_close_matches(re.sub("[-_ ]", "", word.lower()), folded, n=1, cutoff=0.6)
    hint = f"did you mean {folded[near[0]]}?" if near else f"expected one of {', '.join(known)}"
    raise _wrong(where, field, f"unknown word {word[:80]!r}; {hint}")


def _check_unit(claim: Claim, where: str) -> None:
    if claim.value is not None and claim.unit is None:
        raise _wrong(where, "unit", f"the value {numbers(claim.value)[:1]} has no unit; expected one of {', '.join(UNITS)}")
    if claim.unit is None or claim.metric is None:
        return
    metric = METRICS[claim.metric]
    if UNITS[claim.unit] not in metric.measures:
        expected = ", ".join(unit for unit, measures in UNITS.items() if measures in metric.measures)
        raise _wrong(where, "unit", f"{claim.metric} is given in {expected}; got {claim.unit!r}")


def _check_form(claim: Claim, where: str) -> None:
    """That a value has exactly one of its forms, the right way up."""
    value = claim.value
    if not isinstance(value, Value):
        return
    given = [field for field in value.__struct_fields__ if getattr(value, field) is not None]
    if given not in (["at_least"], ["at_most"], ["low", "high"], ["up_to"], ["points"]):
        got = " and ".join(given) or "none of them"
        raise _wrong(where, "value", f"expected {_FORMS}; got {got}")
    if value.low is not None and value.high is not None and value.low > value.high:
        raise _wrong(where, "value", f"the range is upside down: low {value.low:.12g} is above high {value.high:.12g}; swap them")
    if value.points is not None and not value.points:
        raise _wrong(where, "value.points", "expected at least one figure, got none")


def _check_figures(claim: Claim, where: str) -> None:
    """That the figures are possible ones."""
    measures = UNITS.get(claim.unit or "")
    metric = METRICS.get(claim.metric or "")
    for number in numbers(claim.value):
        if abs(number) > _LARGEST:
            raise _wrong(where, "value", f"{number:.3g} is no figure of a claim: at most {_LARGEST:.0e}")
        if metric is not None and metric.share and not 0 <= number <= 100:
            raise _wrong(where, "value", f"{claim.metric} is a share: expected 0 to 100 %, got {number:.12g}")
        if number < 0 and measures not in ("percent", "ratio"):
            raise _wrong(where, "value", f"expected 0 or more {claim.unit}, got {number:.12g}")
        if number <= 0 and measures == "ratio":
            raise _wrong(where, "value", f"a ratio is above 0, got {number:.12g}")
        less_time = claim.of == "baseline_time" and (claim.metric or "").endswith("speedup")
        if measures == "percent" and number >= 100 and less_time:
            raise _wrong(where, "value", f"expected less than 100 % less time, got {number:.12g} %")
    rows = claim.workload.rows
    span = rows if isinstance(rows, list) else [] if rows is None else [rows, rows]
    if span and (len(span) != 2 or span[0] > span[1] or span[0] < 1):
        raise _wrong(where, "workload.rows", f"expected a number from 1, or [smallest, largest], got {rows}")
    for field, count in (
        ("hardware.count", claim.hardware.count),
        ("workload.batch", claim.workload.batch),
        ("workload.sequence", claim.workload.sequence),
    ):
        if isinstance(count, int) and count < 1:
            raise _wrong(where, field, f"expected 1 or more, got {count}")
    reported = claim.bytes.reported
    if isinstance(reported, int) and reported < 0:
        raise _wrong(where, "bytes.reported", f"expected 0 or more bytes, got {reported}")
