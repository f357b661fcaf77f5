"""The events of a JSON trace file, in batches, in bounded memory, and as many of them as a damaged file still holds.

The file is inflated and decoded piece by piece. A piece ends where one event ends and the next begins; the cut is proven
by decoding, as text up to a wrong cut (inside a string, a nested object or past the array) is not a valid JSON array.
Where a piece does not decode, its events are decoded one at a time and mended where the fault is one that profilers make:
raw control characters, invalid UTF-8, unescaped quotes, NaN and Infinity. What cannot be mended is counted, not guessed.

This file knows JSON and the trace-event container. What the events mean is kineto.py's business.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from isal import igzip, isal_zlib

from underlap.errors import NotATraceError, UnreadableError

PIECE_BYTES = 4 << 20
HEAD_LIMIT = 64 << 20
"""The list of events has to begin within this many bytes."""
TAIL_LIMIT = 64 << 20
"""Metadata after the events is kept up to this size."""

_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR = re.compile(rb"\}\s*,\s*\{")
_INFLATE_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, cast("type[Exception]", isal_zlib.error))
_DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that underlap uses. Old and new writers disagree on types, so few are fixed."""

    correlation: Any = None
    external_id: Any = msgspec.field(name="External id", default=None)
    old_external_id: Any = msgspec.field(name="external id", default=None)
    stream: Any = None
    device: Any = None
    nbytes: Any = msgspec.field(name="bytes", default=None)
    graph: Any = msgspec.field(name="graph id", default=None)
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    rank_start: Any = msgspec.field(name="Global rank start", default=None)
    rank_stride: Any = msgspec.field(name="Global rank stride", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    source_rank: Any = msgspec.field(name="Src Rank", default=None)
    target_rank: Any = msgspec.field(name="Dst Rank", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    wait_stream: Any = msgspec.field(name="wait_on_stream", default=None)
    wait_record: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    name: Any = None
    """The name that a metadata event gives to a process or thread."""


class Event(msgspec.Struct, gc=False):
    """One trace event. `ts` and `dur` stay text, so that decimal microseconds become exact nanoseconds."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | float | None = None
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = None


@dataclasses.dataclass(slots=True)
class Damage:
    """What was wrong with a file that could still be used."""

    mended: int = 0
    skipped: int = 0
    first_skipped: str | None = None
    truncated: str | None = None
    """Why the file ends before its end, or None."""
    metadata: str | None = None
    """Why the metadata around the events could not be read, or None."""


class EventFile:
    """A trace-event JSON file, plain or gzip. Iterate over `batches()` first; `metadata` and `damage` are complete after it."""

    def __init__(self, path: Path, report_bytes: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.damage = Damage()
        self._report_bytes = report_bytes
        self._decode_many = msgspec.json.Decoder(list[Event]).decode
        self._decode_one = msgspec.json.Decoder(Event).decode

    def batches(self) -> Iterator[list[Event]]:
        """The events in file order. Raises NotATraceError or UnreadableError when there is nothing to use."""
        pieces = self._pieces()
        rest = self._read_head(pieces)
        separator: bytes | None = None
        for piece in pieces:
            rest += piece
            if separator is None:
                separator = _learn_separator(rest)
            cut = rest.rfind(separator) if separator else -1
            if cut < 0:
                continue
            text, rest = rest[: cut + 1], rest[cut + 1 :].lstrip(b" \t\r\n")[1:]
            try:
                events = self._decode_many(b"[" + text + b"]")
            except _DECODE_ERRORS:
                events, tail = self._one_by_one(text, separator or b"")
                if tail is not None:
                    yield events
                    self._read_tail(tail + b"," + rest, pieces)
                    return
            yield events
        yield self._last(rest, separator or _learn_separator(rest) or b"},{")

    def _last(self, rest: bytes, separator: bytes) -> list[Event]:
        events, tail = self._one_by_one(rest, separator)
        if tail is None:
            if self.damage.truncated is None:
                self.damage.truncated = "the list of events is not closed"
        else:
            self._read_tail(tail, iter(()))
        return events

    # ---- bytes

    def _pieces(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream = cast("BinaryIO", igzip.open(raw, "rb") if packed else raw)  # type: ignore[no-untyped-call]  # isal leaves it untyped
                yield from self._inflated(stream, raw)
        except OSError as error:
            raise UnreadableError(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def _inflated(self, stream: BinaryIO, raw: BinaryIO) -> Iterator[bytes]:
        while True:
            try:
                piece = stream.read(PIECE_BYTES)
            except _INFLATE_ERRORS as error:
                self.damage.truncated = f"the gzip data is cut or damaged ({error})"
                return
            if not piece:
                return
            if self._report_bytes is not None:
                self._report_bytes(raw.tell())
            yield piece

    # ---- around the events

    def _read_head(self, pieces: Iterator[bytes]) -> bytes:
        """Take everything up to the first event into `metadata`; return what was read beyond it."""
        head = b""
        searched = 0
        for piece in pieces:
            head = (head + piece).lstrip(b"\xef\xbb\xbf \t\r\n")
            if head[:1] == b"[":
                return head[1:]
            if head[:1] not in (b"{", b""):
                break
            for found in _ARRAY_START.finditer(head, searched):
                if self._take_metadata(head[: found.start()] + b'"traceEvents":[]}'):
                    return head[found.end() :]
            if len(head) > HEAD_LIMIT:
                break
            searched = max(0, len(head) - 64)
        if not head.strip() and self.damage.truncated is None:
            raise UnreadableError(f"{self.path}: the file is empty; expected a profiler trace")
        first = _ARRAY_START.search(head)
        if first is not None:
            self.damage.metadata = "the metadata before the events is not valid JSON"
            return head[first.end() :].lstrip()
        raise NotATraceError(f"{self.path}: {describe_json(head, self.damage.truncated)}")

    def _read_tail(self, tail: bytes, pieces: Iterator[bytes]) -> None:
        """Take the metadata after the events. `tail` starts behind the closing bracket."""
        for piece in pieces:
            if len(tail) < TAIL_LIMIT:
                tail += piece
        text = tail.strip().removeprefix(b",").strip()
        if text and text != b"}" and not self._take_metadata(b"{" + text):
            self.damage.metadata = "the metadata after the events is not valid JSON"

    def _take_metadata(self, text: bytes) -> bool:
        try:
            found = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict):
            return False
        found.pop("traceEvents", None)
        self.metadata.update(found)
        return True

    # ---- damaged events

    def _one_by_one(self, text: bytes, separator: bytes) -> tuple[list[Event], bytes | None]:
        """The events of `text`, and what follows the end of the list (None when the list does not end in it)."""
        events: list[Event] = []
        at = 0
        while True:
            at = _skip_space(text, at)
            if at >= len(text):
                return events, None
            if text[at : at + 1] == b"]":
                return events, text[at + 1 :]
            following = text.find(separator, at)
            end = following + 1 if following >= 0 else len(text)
            event, end = self._one(text, at, end, closed=following >= 0)
            if event is not None:
                events.append(event)
            at = _skip_space(text, end)
            if text[at : at + 1] == b",":
                at += 1

    def _one(self, text: bytes, start: int, end: int, *, closed: bool) -> tuple[Event | None, int]:
        """The event at `start`, and where it ends. `end` is where it ends if its own text has no separator in it."""
        for stop in _possible_ends(text, start, end) if closed else ():
            try:
                return self._decode_one(text[start:stop]), stop
            except _DECODE_ERRORS:
                continue
        loose = _loose_value(text[start:end])
        if loose is not None:
            value, used = loose
            return self._convert(value, broken=not _strict(text[start : start + used])), start + used
        if not closed:
            closing = text.rfind(b"]", start)
            if self.damage.truncated is not None or closing < 0:
                # The last, incomplete event of a file that was cut.
                return None, len(text)
            end = closing
        try:
            event = self._decode_one(_escape_inner_quotes(text[start:end]))
        except _DECODE_ERRORS as error:
            self._skip(str(error))
            return None, end
        self.damage.mended += 1
        return event, end

    def _convert(self, value: Any, *, broken: bool) -> Event | None:
        try:
            event = self._decode_one(msgspec.json.encode(_without_nan(value)))
        except (*_DECODE_ERRORS, TypeError, OverflowError) as error:
            self._skip(str(error))
            return None
        self.damage.mended += broken
        return event

    def _skip(self, reason: str) -> None:
        self.damage.skipped += 1
        if self.damage.first_skipped is None:
            self.damage.first_skipped = reason


def _learn_separator(text: bytes) -> bytes | None:
    """What stands between two events, down to the white space; found between events that decode."""
    for count, found in enumerate(_SEPARATOR.finditer(text)):
        try:
            msgspec.json.decode(b"[" + text[: found.start() + 1] + b"]")
        except _DECODE_ERRORS:
            if count < 64:
                continue
        return found.group()
    return None


def _skip_space(text: bytes, at: int) -> int:
    while text[at : at + 1] in (b" ", b"\n", b"\r", b"\t"):
        at += 1
    return at


def _possible_ends(text: bytes, start: int, end: int) -> Iterator[int]:
    """`end`, and a few later places, for events that hold a list of objects which looks like a border."""
    yield end
    for _ in range(16):
        found = _SEPARATOR.search(text, end - 1, start + PIECE_BYTES)
        if found is None:
            return
        end = found.start() + 1
        yield end
        end += 1


def _loose_value(text: bytes) -> tuple[Any, int] | None:
    """The JSON value that `text` starts with, and its length. Control characters, bad UTF-8 and NaN pass."""
    # Characters and bytes must map one to one, hence surrogateescape rather than replace.
    chars = text.decode("utf-8", "surrogateescape")
    try:
        value, used = _LOOSE.raw_decode(chars)
    except (ValueError, RecursionError):
        return None
    return value, len(chars[:used].encode("utf-8", "surrogateescape"))


_LOOSE = json.JSONDecoder(strict=False)


def _without_nan(value: Any) -> Any:
    """The value with NaN and Infinity as null and undecodable bytes as replacement characters."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_without_nan(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value


def _strict(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except _DECODE_ERRORS:
        return False
    return True


def _escape_inner_quotes(text: bytes) -> bytes:
    """Escape the quotes that stand inside strings: those that neither follow `{[,:` nor precede `}],:`."""
    out = bytearray()
    inside = False
    for at, char in enumerate(text):
        if char != 0x22 or text[at - 1 : at] == b"\\":
            out.append(char)
            continue
        if not inside:
            inside = True
        elif text[at + 1 : at + 40].lstrip()[:1] in (b"}", b"]", b",", b":"):
            inside = False
        else:
            out += b"\\"
        out.append(char)
    return bytes(out)


def describe_json(head: bytes, truncated: str | None) -> str:
    """What a file is instead of a trace, and what to give instead. For files without a list of trace events."""
    if truncated:
        return f"{truncated} before the first event; expected a profiler trace"
    expected = "expected a profiler trace (JSON with a list `traceEvents`, as torch.profiler's export_chrome_trace writes)"
    for kind, marks, advice in _OTHER_KINDS:
        if all(mark in head for mark in marks):
            return f"this is {kind}, not a trace; {advice}"
    try:
        json.loads(head)
    except (ValueError, RecursionError):
        return f"neither JSON nor a format that underlap knows (starts with {head[:16]!r}); {expected}"
    return f"JSON, but without a list `traceEvents`; {expected}"


_OTHER_KINDS = (
    (
        "a PyTorch execution trace (ExecutionTraceObserver)",
        (b'"schema"', b'"nodes"'),
        "give the profiler's export of the same run (torch.profiler.profile(...).export_chrome_trace)",
    ),
    (
        "a CUDA memory snapshot",
        (b'"segments"', b'"device_traces"'),
        "give a profiler trace (torch.profiler.profile(...).export_chrome_trace)",
    ),
    (
        "an underlap report",
        (b'"underlap.report/',),
        "give the trace that it was made from",
    ),
)
