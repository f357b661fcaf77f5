"""The container of trace events: layouts, piece sizes, damage. The events are the same whatever the pieces."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces import write
from underlap.errors import InputError, NotATraceError, UnreadableError
from underlap.read import json_events
from underlap.read.json_event import Event
from underlap.read.json_events import Damage, EventFile

PIECES = (1, 7, 64, 1000)
EVENT = '{"ph": "X", "name": "k%d", "ts": %d.125, "args": {"correlation": %d, "l": [{"a": 1}, {"ph": "X"}], "s": "}, {"}}'
MEMBERS = '"deviceProperties": [{"id": 0}, {"id": 1}]'
TRACE = f'{{{MEMBERS}, "traceEvents": [{", ".join(EVENT % (i, i, i) for i in range(8))}], "distributedInfo": {{"rank": 3}}}}'


def plain(event: Event) -> tuple[Any, ...]:
    args = event.args and (event.args.correlation, event.args.stream, bytes(event.args.input_dims))
    return event.ph, event.cat, event.name, event.pid, event.tid, bytes(event.ts), bytes(event.dur), args


def load(path: Path, content: str | bytes, *, suffix: str = ".json") -> tuple[list[tuple[Any, ...]], Damage, dict[str, Any]]:
    file = EventFile(write(path / f"trace{suffix}", content))
    events = [plain(event) for batch in file.batches() for event in batch]
    return events, file.damage, file.metadata


def names(path: Path, content: str | bytes) -> list[Any]:
    return [event[2] for event in load(path, content)[0]]


def listed(*events: str) -> str:
    return f'{{"traceEvents": [{", ".join(events)}]}}'


@pytest.fixture(params=[*PIECES, json_events.PIECE_BYTES])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(json_events, "PIECE_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("content", ["", "   ", "\n\r\n\t" * 4000, "\ufeff", "\ufeff  \n"])
def test_a_file_of_nothing_is_empty(tmp_path: Path, content: str) -> None:
    for suffix in (".json", ".json.gz"):
        with pytest.raises(UnreadableError, match="the file is empty; expected a profiler trace"):
            load(tmp_path, content, suffix=suffix)


@pytest.mark.parametrize(
    "content", ["{}", '{"traceEvents": null}', '{"traceEvents": {"0": {}}}', '{"traceEvents": "["}', '{"a": [{}]}']
)
def test_json_without_a_list_of_events_is_no_trace(tmp_path: Path, content: str) -> None:
    with pytest.raises(NotATraceError, match=r"JSON, but without a list `traceEvents`; expected a profiler trace"):
        load(tmp_path, content)


@pytest.mark.parametrize(
    "content", ["hello", "12", '"traceEvents": []', "{nope", "\0" * 100, '{"a" 1}', "{" * 200_000, '{"a":' * 200_000]
)
def test_what_is_no_json_is_no_trace(tmp_path: Path, content: str) -> None:
    with pytest.raises(NotATraceError, match="neither valid JSON nor a format that underlap knows"):
        load(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"schema": "1.1.1", "pid": 7, "nodes": [{"id": 1}]}', "a PyTorch execution trace"),
        ('{"segments": [], "device_traces": [[]]}', "a CUDA memory snapshot"),
        ('{"schema": "underlap.report/1", "families": [], "ranks": []}', "an underlap report"),
    ],
)
def test_json_of_another_kind_is_named_with_what_to_give_instead(tmp_path: Path, content: str, kind: str) -> None:
    with pytest.raises(NotATraceError, match=rf"this is {kind}.*; give "):
        load(tmp_path, content)


def test_a_snapshot_too_large_to_parse_is_named_by_its_first_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "VALUE_LIMIT", 1000)
    with pytest.raises(NotATraceError, match="this is a CUDA memory snapshot"):
        load(tmp_path, json.dumps({"segments": [{"address": i} for i in range(1000)], "device_traces": []}))


def test_a_list_without_events_has_none(tmp_path: Path) -> None:
    assert load(tmp_path, '{"traceEvents": []}') == ([], Damage(lists=1), {})
    assert load(tmp_path, "[]") == ([], Damage(), {})


def test_metadata_before_and_after_the_events_is_kept(tmp_path: Path, piece: int) -> None:
    events, damage, metadata = load(tmp_path, TRACE)

    assert [event[2] for event in events] == [f"k{i}" for i in range(8)]
    assert damage == Damage(lists=1)
    assert metadata == {"deviceProperties": [{"id": 0}, {"id": 1}], "distributedInfo": {"rank": 3}}


def test_a_list_inside_the_metadata_is_not_the_list_of_events(tmp_path: Path, piece: int) -> None:
    content = '{"a": {"traceEvents": [{"name": "no"}]}, "b": "\\"traceEvents\\": [", "traceEvents": [{"name": "yes"}]}'

    assert names(tmp_path, content) == ["yes"]


def test_all_lists_of_events_are_read_where_there_are_two(tmp_path: Path, piece: int) -> None:
    events, damage, metadata = load(tmp_path, '{"traceEvents": [{"name": "a"}], "x": 1, "traceEvents": [{"name": "b"}], "y": 2}')

    assert [event[2] for event in events] == ["a", "b"]
    assert (damage.lists, metadata) == (2, {"x": 1, "y": 2})


def test_a_null_list_before_the_real_one_is_passed(tmp_path: Path) -> None:
    assert names(tmp_path, '{"traceEvents": null, "traceEvents": [{"name": "a"}]}') == ["a"]


def layouts(document: dict[str, Any]) -> Iterator[str]:
    events = [json.dumps(event) for event in document["traceEvents"]]
    compact = json.dumps(document, separators=(",", ":"))
    yield from (json.dumps(document), compact, json.dumps(document, indent=4), "\ufeff" + compact)
    yield json.dumps(document, indent=2).replace("\n", "\r\n")
    yield '{"traceEvents": [\n' + ",\n".join(events) + "\n]}"
    yield '{"traceEvents": [' + " , ".join(events[:2]) + (",\n\n" if len(events) > 2 else "") + ",".join(events[2:]) + "]}"
    yield "[" + ",".join(events) + "]"


leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text('},{"ph: []\\\n\u00e9\U0001f600', max_size=8)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aph}", max_size=3), inner, max_size=3)
)
events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from("XBEMs"),
        "name": st.text('},{"ph: []\\\u00e9\U0001f600', max_size=12),
        "ts": st.integers(-5, 10**18),
        "dur": st.integers(0, 9),
        "pid": st.integers(0, 3) | st.text("ab", max_size=2),
        "args": st.dictionaries(st.sampled_from(["correlation", "stream", "x", "l", "Input Dims"]), values, max_size=4),
    },
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(events, max_size=12))
def test_events_do_not_depend_on_layout_or_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[dict[str, Any]]
) -> None:
    results = []
    for text in layouts({"traceEvents": found, "x": [{"a": 1}, {"b": 2}]}):
        for size in (*PIECES, 4 << 20):
            monkeypatch.setattr(json_events, "PIECE_BYTES", size)
            loaded, damage, _ = load(tmp_path, text)
            results.append([(*event[:-1], event[-1] and event[-1][:2]) for event in loaded])
            assert damage in (Damage(lists=1), Damage())
    assert len(results[0]) == len(found)
    assert all(result == results[0] for result in results)


broken = st.sampled_from(
    [
        '{"name": "a "b" c"}',
        '{"name": "tab\there"}',
        '{"ts": NaN}',
        '{"name": nope}',
        "7",
        "null",
        '{"ph": [], "name": "n"}',
        '{"name": "\\ud800"}',
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(broken | st.just('{"ph": "X", "args": {"l": [{"a": 1}, {"name": 1}]}}'), max_size=8))
def test_mending_does_not_depend_on_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    results = []
    for size in (*PIECES, 4 << 20):
        monkeypatch.setattr(json_events, "PIECE_BYTES", size)
        results.append(load(tmp_path, listed(*texts)))
    assert all(result == results[0] for result in results)
    found, damage, _ = results[0]
    assert len(found) == sum(text not in ('{"name": nope}', "7", "null") for text in texts)
    # Where an event that cannot be mended ends is not known, so entries that are no events may count as part of it.
    assert 0 <= len(texts) - len(found) - damage.skipped <= texts.count("7") + texts.count("null")


def test_a_trace_cut_anywhere_keeps_its_complete_events_and_says_so(tmp_path: Path) -> None:
    whole, _, _ = load(tmp_path, TRACE)
    for cut in range(len(TRACE)):
        if cut <= TRACE.index("[", TRACE.index("traceEvents")):
            with pytest.raises(InputError, match=r"empty|expected a profiler trace"):
                load(tmp_path, TRACE[:cut])
            continue
        found, damage, _ = load(tmp_path, TRACE[:cut])
        complete = TRACE[:cut].count('"}}') if '"distributedInfo"' not in TRACE[:cut] else 8
        assert found == whole[:complete]
        assert damage.truncated or damage.metadata
        assert damage.skipped == damage.mended == 0


def test_gzip_data_cut_anywhere_keeps_what_it_holds_and_says_so(tmp_path: Path) -> None:
    whole, _, _ = load(tmp_path, TRACE)
    packed = gzip.compress(TRACE.encode(), mtime=0)
    most = 0
    refusals = set()
    for cut in range(len(packed)):
        file = EventFile(tmp_path / "cut.json.gz")
        file.path.write_bytes(packed[:cut])
        try:
            found = [plain(event) for batch in file.batches() for event in batch]
        except InputError as error:
            refusals.add(str(error).partition(": ")[2])
            continue
        assert found == whole[: len(found)]
        assert file.damage.truncated == "the gzip data is cut"
        most = max(most, len(found))
    assert most == 8
    assert all(text.startswith(("the file is empty", "the gzip data is cut before", "neither valid JSON")) for text in refusals)


def test_damage_in_the_middle_of_gzip_data_costs_what_follows_only(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(listed(*(EVENT % (i, i, i * 7919 % 10007) for i in range(60_000))).encode()))
    packed[-9] ^= 0xFF
    file = EventFile(tmp_path / "bad.json.gz")
    file.path.write_bytes(packed)
    found = sum(map(len, file.batches()))

    assert 20_000 < found <= 60_000
    assert file.damage.truncated is not None


def test_gzip_files_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    half = len(TRACE) // 2
    path = tmp_path / "two.json.gz"
    path.write_bytes(gzip.compress(TRACE[:half].encode()) + gzip.compress(TRACE[half:].encode()) + b"\0" * 512)
    file = EventFile(path)

    assert sum(map(len, file.batches())) == 8
    assert file.damage == Damage(lists=1)


def test_raw_control_characters_and_bytes_that_are_no_utf8_are_mended(tmp_path: Path, piece: int) -> None:
    content = b'{"traceEvents": [{"name": "a\x01b\x1f"}, {"name": "c\xff\xfed"}, {"name": "e"}], "x": "\xff"}'
    events, damage, metadata = load(tmp_path, content)

    assert [event[2] for event in events] == ["a\x01b\x1f", "c\ufffd\ufffdd", "e"]
    assert (damage.mended, damage.skipped, damage.metadata) == (2, 0, None)
    assert metadata == {"x": "\ufffd"}


def test_mended_times_keep_every_digit(tmp_path: Path) -> None:
    content = listed(
        '{"name": "a\tb", "ts": 1700000000000140.999, "dur": 12345678901234567890.1, "args": {"correlation": 9007199254740993}}'
    )
    ((*_, ts, dur, args),) = load(tmp_path, content)[0]

    assert (ts, dur, args[0]) == (b"1700000000000140.999", b"12345678901234567890.1", 9007199254740993)


def test_unescaped_quotes_in_names_are_escaped(tmp_path: Path, piece: int) -> None:
    content = listed(
        '{"name": "a "b" c"}', '{"name": "say "no""}', '{"name": "x, "y": z", "ts": 1}', '{"name": "d"}', '{"name": "last "one""}'
    )
    events, damage, _ = load(tmp_path, content)

    assert [event[2] for event in events] == ['a "b" c', 'say "no"', "d", 'last "one"']
    assert (damage.mended, damage.skipped) == (3, 1)


def test_nan_and_infinity_are_no_numbers_and_cost_no_event(tmp_path: Path, piece: int) -> None:
    content = listed(
        '{"name": "a", "ts": NaN, "dur": Infinity}',
        '{"name": "b", "args": {"correlation": -Infinity, "x": NaN}}',
        '{"name": "c", "ts": 1}',
    )
    events, damage, _ = load(tmp_path, content)

    assert [event[2] for event in events] == ["a", "b", "c"]
    assert [event[5] for event in events] == [b"null", b"", b"1"]
    assert (damage.mended, damage.skipped) == (2, 0)


def test_lone_surrogates_become_replacement_characters(tmp_path: Path) -> None:
    content = '{"traceEvents": [{"name": "\\ud800x", "args": {"stream": "\\udfff"}}], "distributedInfo": {"\\ud800": "\\udbff"}}'
    events, damage, metadata = load(tmp_path, content)

    assert (events[0][2], events[0][-1][1], damage.mended) == ("\ufffdx", "\ufffd", 1)
    assert metadata == {"distributedInfo": {"\ufffd": "\ufffd"}}


@pytest.mark.parametrize("field", ["ph", "cat", "name", "pid", "tid", "args"])
@pytest.mark.parametrize("value", ["[1]", '{"a": 1}', "true", '[[{"ph": "X"}, {"name": 1}]]'])
def test_a_field_of_a_wrong_type_is_absent_and_said(tmp_path: Path, field: str, value: str) -> None:
    if field == "args" and value.startswith("{"):
        return
    events, damage, _ = load(tmp_path, listed(f'{{"ts": 5, "{field}": {value}}}', '{"ts": 6}'))

    assert [event[5] for event in events] == [b"5", b"6"]
    assert events[0][:5] == (None,) * 5
    assert (damage.mistyped, damage.mended, damage.skipped) == (1, 0, 0)


def test_entries_that_are_no_objects_are_counted(tmp_path: Path, piece: int) -> None:
    events, damage, _ = load(tmp_path, listed("1", "null", '"x"', "[{}, {}]", "true", '{"name": "a"}', "-1.5e3"))

    assert [event[2] for event in events] == ["a"]
    assert (damage.skipped, damage.first_skipped) == (6, "not an object")


def test_integers_of_any_length_are_read(tmp_path: Path) -> None:
    events, damage, _ = load(
        tmp_path, listed(f'{{"pid": {1 << 70}, "args": {{"correlation": {-(1 << 70)}, "stream": 1{"0" * 6000}}}}}')
    )

    assert len(events) == 1
    assert events[0][3] == 1 << 70
    assert damage.skipped == 0


@pytest.mark.parametrize("where", ["args", "event", "before", "after"])
def test_deep_brackets_cost_only_what_holds_them(tmp_path: Path, where: str) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    parts = {
        "args": listed('{"name": "a"}', f'{{"name": "b", "args": {{"x": {deep}}}}}', '{"name": "c"}'),
        "event": listed('{"name": "a"}', deep, '{"name": "c"}'),
        "before": f'{{"x": {deep}, "traceEvents": [{{"name": "a"}}, {{"name": "c"}}]}}',
        "after": f'{{"traceEvents": [{{"name": "a"}}, {{"name": "c"}}], "x": {deep}}}',
    }
    events, damage, _ = load(tmp_path, parts[where])
    if where == "event":
        # Nothing tells where such an entry ends but the next event.
        assert events[0][2] == "a"
    else:
        assert [event[2] for event in events] == ["a", "c"]
    assert damage.skipped or damage.metadata


def test_a_file_of_brackets_holds_no_event(tmp_path: Path) -> None:
    events, damage, _ = load(tmp_path, "[" * 200_000)

    assert (events, damage.skipped, damage.first_skipped) == ([], 1, "brackets nested too deeply")


def test_a_name_of_a_megabyte_is_one_name(tmp_path: Path) -> None:
    name = "n},{" * 250_000

    assert names(tmp_path, listed('{"name": "a"}', json.dumps({"name": name}), '{"name": "b"}')) == ["a", name, "b"]


def test_many_objects_inside_one_event_are_one_event(tmp_path: Path, piece: int) -> None:
    inner = ",".join('{"a": 1}' for _ in range(300))
    events, damage, _ = load(
        tmp_path, f'{{"traceEvents":[{{"name":"a","args":{{"l":[{inner}]}}}},{{"name":"b","args":{{"l":[{inner}]}}}}]}}'
    )

    assert [event[2] for event in events] == ["a", "b"]
    assert damage == Damage(lists=1)


def test_a_last_event_beyond_the_limit_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "VALUE_LIMIT", 1 << 18)
    monkeypatch.setattr(json_events, "PIECE_BYTES", 1 << 16)
    events, damage, _ = load(tmp_path, '[{"name": "a"}, {"name": "' + "x" * (1 << 20))

    assert [event[2] for event in events] == ["a"]
    assert (damage.skipped, damage.truncated) == (1, "the list of events is not closed")


def test_an_event_beyond_the_limit_is_skipped_and_the_next_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "VALUE_LIMIT", 1 << 20)
    monkeypatch.setattr(json_events, "PIECE_BYTES", 1 << 16)
    content = listed('{"name": "a"}', json.dumps({"name": "x" * (4 << 20)}), '{"name": "b"}', '{"name": "c"}')
    events, damage, _ = load(tmp_path, content)

    assert [event[2] for event in events] == ["a", "b", "c"]
    assert (damage.skipped, damage.first_skipped) == (1, "longer than 1 MiB")


@pytest.mark.parametrize(
    "parts",
    [
        (b'{"traceEvents": [{"name": "', b"x", b""),
        (b'{"traceEvents": [{"name": "a"}, ', b" ", b""),
        (b"", b" ", b""),
        (b'{"a": "', b"x", b""),
        (b'{"traceEvents": [{"name": "a"}], "b": "', b"x", b'"}'),
        (b'{"traceEvents": [{"name": "a"}]}', b" ", b""),
    ],
)
def test_what_a_small_gzip_file_inflates_to_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, bytes, bytes]
) -> None:
    monkeypatch.setattr(json_events, "VALUE_LIMIT", 1 << 18)
    monkeypatch.setattr(json_events, "PIECE_BYTES", 1 << 16)
    held = []
    more = json_events._Text.more
    monkeypatch.setattr(json_events._Text, "more", lambda self: (more(self), held.append(len(self.text)))[0])
    packer = zlib.compressobj(wbits=31)
    before, filling, after = parts
    chunk = filling * (1 << 20)
    data = packer.compress(before) + b"".join(packer.compress(chunk) for _ in range(64)) + packer.compress(after) + packer.flush()
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(data)
    file = EventFile(path)
    try:
        found = sum(map(len, file.batches()))
    except InputError:
        found = 0

    assert found == (b'"a"}' in before)
    assert len(data) < 100_000
    assert max(held) <= 4 << 18


def test_metadata_beyond_the_limit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "VALUE_LIMIT", 1000)
    members = ", ".join(f'"k{i}": {i}' for i in range(100))
    events, damage, metadata = load(
        tmp_path, f'{{"distributedInfo": {{"rank": 1}}, {members}, "traceEvents": [{{"name": "a"}}]}}'
    )

    assert [event[2] for event in events] == ["a"]
    assert metadata["distributedInfo"] == {"rank": 1}
    assert damage.metadata is not None


@pytest.mark.parametrize("before", ["nope", "1,,", "'x'", "{1: 2}", "[1, 2"])
def test_events_behind_broken_metadata_are_found(tmp_path: Path, before: str, piece: int) -> None:
    events, damage, _ = load(
        tmp_path, f'{{"x": {before} , y, "traceEvents" : [{{"name": "a"}}, {{"name": "b"}}], "distributedInfo": {{"rank": 1}}}}'
    )

    assert [event[2] for event in events] == ["a", "b"]
    assert damage.metadata == "the metadata before the events is cut off, too long or not valid JSON"


@pytest.mark.parametrize("after", ['{"traceEvents": [{"name": "z"}]}', "garbage", "]", "\0\0"])
def test_what_follows_the_end_is_said(tmp_path: Path, after: str) -> None:
    events, damage, _ = load(tmp_path, '{"traceEvents": [{"name": "a"}]}' + after)

    assert [event[2] for event in events] == ["a"]
    assert damage.metadata == "what follows the end of the JSON value is left out"


@pytest.mark.parametrize(
    "text", ['[{"name": "a"}, {"name": "b"},]', '[{"name": "a"},\n\n,{"name": "b"}]', '[{"name": "a"} {"name": "b"}]']
)
def test_commas_too_many_or_missing_cost_no_event(tmp_path: Path, text: str, piece: int) -> None:
    events, damage, _ = load(tmp_path, text)

    assert [event[2] for event in events] == ["a", "b"]
    assert damage == Damage()


def test_a_list_that_is_not_closed_is_said(tmp_path: Path, piece: int) -> None:
    events, damage, _ = load(tmp_path, '[{"name": "a"}, {"name": "b"},')

    assert len(events) == 2
    assert damage.truncated == "the list of events is not closed"


def test_a_folder_instead_of_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"):
        list(EventFile(tmp_path).batches())


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "PIECE_BYTES", 64)
    path = write(tmp_path / "trace.json", TRACE)
    told: list[int] = []
    sum(map(len, EventFile(path, told.append).batches()))

    assert told == sorted(told)
    assert told[-1] == path.stat().st_size
