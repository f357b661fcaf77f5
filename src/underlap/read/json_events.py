"""The events of a JSON trace file, in batches, in bounded memory, and as many of them as a damaged file still holds.

The file is inflated and decoded piece by piece. A piece ends where one event ends and the next begins; the cut is proven
by decoding, as text up to a wrong cut (inside a string, a nested object or past the array) is not a valid JSON array.
Where a piece does not decode, its events are decoded one at a time, and mended where json_mend.py knows how. What cannot
be mended is counted, not guessed. What comes of a file does not depend on where its pieces happen to end.

This file knows JSON and the trace-event container. What the events mean is kineto.py's business.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from isal import igzip_lib

from underlap.errors import NotATraceError, UnreadableError
from underlap.read.json_event import Event
from underlap.read.json_mend import (
    DECODE_ERRORS,
    SPACE,
    BrokenError,
    IncompleteError,
    Mender,
    after_space,
    end_of_value,
    is_json,
    metadata_value,
    next_border,
    shown,
)

PIECE_BYTES = 4 << 20
VALUE_LIMIT = 16 << 20
"""An event, or a value of the metadata, may be as long as this; it bounds the memory that a hostile file can take."""
_PACKED_BYTES = 1 << 16
_READ_BYTES = 1 << 20
"""What was inflated last before gzip data turns out to be damaged is lost, so this is small."""
_KEYS = 256
_KEY_BYTES = 64
"""What a key costs, whatever its value."""
_KEPT_BYTES = 256
"""What a search keeps of text without a hit, as the hit may begin in it."""

_EVENTS = "traceEvents"
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT_EVENT = re.compile(rb"\s*,\s*(?=\{)")
_COLON = re.compile(rb"[ \t\r\n]*(:)?[ \t\r\n]*")
_GZIP_ERROR = cast("type[Exception]", igzip_lib.IsalError)
_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(slots=True)
class Damage:
    """What was wrong with a file that could still be used."""

    mended: int = 0
    mistyped: int = 0
    skipped: int = 0
    first_skipped: str | None = None
    truncated: str | None = None
    """Why the file ends before its end, or None."""
    metadata: str | None = None
    """What of the file around the events could not be read, or None."""
    lists: int = 0
    """How many lists of events the file has; JSON parsers keep the last of them only."""


class _Text:
    """What was read of a file and not yet used."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.text = b""
        self._pieces = pieces

    def more(self) -> bool:
        """At least double the text, so that a value of many pieces is not decoded once per piece. False at the end."""
        parts, added, wanted = [self.text], 0, max(len(self.text), PIECE_BYTES)
        for piece in self._pieces:
            parts.append(piece)
            added += len(piece)
            if added >= wanted:
                break
        self.text = b"".join(parts)
        return added > 0


class EventFile:
    """A trace-event JSON file, plain or gzip. Iterate over `batches()` first; `metadata` and `damage` are complete after it."""

    def __init__(self, path: Path, report_bytes: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.damage = Damage()
        self._keys: set[str] = set()
        self._metadata_room = VALUE_LIMIT
        self._report_bytes = report_bytes
        self._mender = Mender()
        self._decode_many = msgspec.json.Decoder(list[Event]).decode

    def batches(self) -> Iterator[list[Event]]:
        """The events in file order. Raises NotATraceError or UnreadableError when there is nothing to use."""
        source = _Text(self._pieces())
        while not source.text and source.more():
            source.text = source.text.lstrip(_MARK + SPACE)
        beginning = source.text[:_KEPT_BYTES]
        if not beginning and self.damage.truncated is None:
            raise UnreadableError(f"{self.path}: the file is empty; expected a profiler trace")
        source.text = source.text[1:]
        if beginning[:1] == b"[":
            yield from self._list(source)
            self._check_end(source)
            return
        while beginning[:1] == b"{" and self._find_list(source):
            self.damage.lists += 1
            yield from self._list(source)
        if self.damage.lists == 0:
            raise NotATraceError(f"{self.path}: {self._instead(beginning)}")

    # ---- bytes

    def _pieces(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                step = min(PIECE_BYTES, _READ_BYTES)
                for piece in self._inflated(raw, step) if packed else iter(lambda: raw.read(step), b""):
                    if self._report_bytes is not None:
                        self._report_bytes(raw.tell())
                    yield piece
        except OSError as error:
            raise UnreadableError(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def _inflated(self, raw: BinaryIO, step: int) -> Iterator[bytes]:
        """What a gzip file holds, of all its members, up to where it is damaged."""
        inflater, packed = _inflater(), b""
        try:
            while packed := packed or raw.read(_PACKED_BYTES):
                part = inflater.decompress(packed, step)
                while part or not (inflater.needs_input or inflater.eof):
                    yield part
                    part = b"" if inflater.eof else inflater.decompress(b"", step)
                packed = b""
                if inflater.eof:
                    packed = (inflater.unused_data or raw.read(_PACKED_BYTES)).lstrip(b"\0")
                    if not packed:
                        return
                    inflater = _inflater()
        except _GZIP_ERROR as error:
            self.damage.truncated = f"the gzip data is damaged ({error})"
            return
        self.damage.truncated = "the gzip data is cut"

    # ---- around the events

    def _find_list(self, source: _Text) -> bool:
        """Take members of the file's object into `metadata`, up to the next list of events. False where there is none."""
        at = 0
        while True:
            at = after_space(source.text, at)
            if source.text[at : at + 1] == b"}":
                source.text = source.text[at + 1 :]
                self._check_end(source)
                return False
            try:
                key, start, end = _member(source.text, at)
            except (IncompleteError, BrokenError) as problem:
                source.text = source.text[at:]
                if isinstance(problem, IncompleteError) and len(source.text) < VALUE_LIMIT and source.more():
                    at = 0
                    continue
                return self._search_list(source)
            if len(self._keys) < _KEYS:
                self._keys.add(key)
            if start == end:
                source.text = source.text[start + 1 :]
                return True
            self._metadata_room -= end - start + _KEY_BYTES
            if self._metadata_room > 0:
                self.metadata[key] = metadata_value(source.text[start:end])
            else:
                self.damage.metadata = f"of the metadata around the events only the first {VALUE_LIMIT >> 20} MiB are used"
            at = end

    def _search_list(self, source: _Text) -> bool:
        """Go to the next list of events through metadata that is no JSON."""
        if self.damage.truncated and not source.text:
            return False
        where = "after" if _EVENTS in self._keys else "before"
        self.damage.metadata = f"the metadata {where} the events is cut off, too long or not valid JSON"
        while True:
            found = _ARRAY_START.search(source.text)
            if found is not None:
                self._keys.add(_EVENTS)
                source.text = source.text[found.end() :]
                return True
            source.text = source.text[-_KEPT_BYTES:]
            if not source.more():
                return False

    def _check_end(self, source: _Text) -> None:
        """Say so if the file goes on after its JSON value."""
        while not source.text.strip(SPACE):
            source.text = b""
            if not source.more():
                return
        self.damage.metadata = "what follows the end of the JSON value is left out"

    def _instead(self, beginning: bytes) -> str:
        """What a file without a list of events is, and what to give instead."""
        if self.damage.truncated:
            return f"{self.damage.truncated} before the first event; expected a profiler trace"
        expected = "expected a profiler trace (JSON with a list `traceEvents`, as torch.profiler's export_chrome_trace writes)"
        for kind, keys, advice in _OTHER_KINDS:
            # A value beyond the limit hides the keys behind it.
            if keys <= self._keys or (self.damage.metadata and keys & self._keys):
                return f"this is {kind}, not a trace; {advice}"
        if self.damage.metadata or beginning[:1] != b"{":
            return f"neither valid JSON nor a format that underlap knows (starts with {shown(beginning)}); {expected}"
        return f"JSON, but without a list `traceEvents`; {expected}"

    # ---- events

    def _list(self, source: _Text) -> Iterator[list[Event]]:
        """The events up to the end of the list; `source` stands behind its bracket afterwards."""
        separator: bytes | None = None
        final = False
        while True:
            separator = separator or _learn_separator(source.text)
            cut = source.text.rfind(separator) + 1 if separator else 0
            if cut > 0 and not final:
                try:
                    events = self._decode_many(b"".join((b"[", memoryview(source.text)[:cut], b"]")))
                except DECODE_ERRORS:
                    pass
                else:
                    source.text = source.text[cut + len(separator or b"") - 2 :]
                    yield events
                    final = not source.more()
                    continue
            elif separator:
                separator = None  # the layout changed
            events, used, closed = self._one_by_one(source.text, final=final)
            source.text = source.text[used:]
            if events:
                yield events
            if closed:
                return
            if final:
                source.text = b""
                self.damage.truncated = self.damage.truncated or "the list of events is not closed"
                return
            if len(source.text) > VALUE_LIMIT:
                self._skip(f"longer than {VALUE_LIMIT >> 20} MiB")
                _lose(source)
            final = not source.more()

    def _one_by_one(self, text: bytes, *, final: bool) -> tuple[list[Event], int, bool]:
        """The events of `text`, how much of it they are, and whether the list ends there."""
        events: list[Event] = []
        at = 0
        while True:
            at = after_space(text, at)
            if at >= len(text):
                return events, at, False
            if text[at] == 0x5D:
                return events, at + 1, True
            try:
                event, at = self._one(text, at, final=final)
            except IncompleteError:
                return events, at, False
            if event is not None:
                events.append(event)

    def _one(self, text: bytes, at: int, *, final: bool) -> tuple[Event | None, int]:
        """The event at `at`, None if it is lost, and where it ends. Raises IncompleteError."""
        try:
            end = end_of_value(text, at)
        except IncompleteError:
            event, end = self._mender.with_quotes(text, at) if final else (None, at)
            if event is None:
                raise
        except BrokenError as error:
            event, end = self._mender.with_quotes(text, at, final=final)
            if event is None:
                self._skip(str(error))
                return None, end
        else:
            if text[at] != 0x7B:
                self._skip("not an object")
                return None, end
            try:
                return self._mender.decode(text[at:end]), end
            except DECODE_ERRORS:
                pass
            try:
                event = self._mender.whole(text[at:end])
            except BrokenError as error:
                self._skip(str(error))
                return None, end
            if is_json(text[at:end]):
                self.damage.mistyped += 1
                return event, end
        self.damage.mended += 1
        return event, end

    def _skip(self, reason: str) -> None:
        self.damage.skipped += 1
        if self.damage.first_skipped is None:
            self.damage.first_skipped = reason


def _inflater() -> igzip_lib.IgzipDecompressor:
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _member(text: bytes, at: int) -> tuple[str, int, int]:
    """The key at `at`, and where its value starts and ends; for a list of events both where it starts."""
    if text[at : at + 1] not in (b'"', b""):
        raise BrokenError("a key of an object is a string")
    end = end_of_value(text, at)
    found = _COLON.match(text, end)
    assert found is not None
    start = found.end()
    if start == len(text):
        raise IncompleteError
    if found.start(1) < 0:
        raise BrokenError("a key without a value")
    key = text[at + 1 : end - 1].decode("latin-1")
    return key, start, start if key == _EVENTS and text[start] == 0x5B else end_of_value(text, start)


def _learn_separator(text: bytes) -> bytes | None:
    """What stands between the first two events, down to the white space; None if the first one is damaged or alone."""
    try:
        end = end_of_value(text, after_space(text, 0))
    except (BrokenError, IncompleteError):
        return None
    found = _NEXT_EVENT.match(text, end)
    return None if found is None else b"}" + found.group() + b"{"


def _lose(source: _Text) -> None:
    """Drop text up to where an event seems to end."""
    while True:
        border = next_border(source.text)
        if border >= 0:
            source.text = source.text[border:]
            return
        source.text = source.text[-_KEPT_BYTES:]
        if not source.more():
            source.text = b""
            return


_OTHER_KINDS: tuple[tuple[str, set[str], str], ...] = (
    (
        "a PyTorch execution trace (ExecutionTraceObserver)",
        {"schema", "nodes"},
        "give the profiler's export of the same run (torch.profiler.profile(...).export_chrome_trace)",
    ),
    (
        "a CUDA memory snapshot",
        {"segments"},
        "give a profiler trace (torch.profiler.profile(...).export_chrome_trace)",
    ),
    (
        "an underlap report",
        {"schema", "families"},
        "give the trace that it was made from",
    ),
)
