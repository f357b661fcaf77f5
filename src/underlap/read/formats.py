"""Which reader a file needs, told from its content; for files that no reader takes, what they are and what to give instead."""

from __future__ import annotations

import dataclasses
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

from underlap.errors import InputError, NotATraceError, UnreadableError
from underlap.read.names import NameTable
from underlap.timeline import Timeline

Reader = Callable[[Path, NameTable, Callable[[int], None] | None], Timeline]
_HEAD_BYTES = 4096
_SPACE = b" \t\r\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format that underlap reads."""

    name: str
    read: Reader


def _read_kineto(path: Path, table: NameTable, report_bytes: Callable[[int], None] | None) -> Timeline:
    from underlap.read.kineto import read

    return read(path, table, report_bytes)


def _read_nsight(path: Path, table: NameTable, report_bytes: Callable[[int], None] | None) -> Timeline:
    from underlap.read.nsight import read

    timeline = read(path, table)
    if report_bytes is not None:
        report_bytes(path.stat().st_size)
    return timeline


KINETO = Format(name="PyTorch profiler (Kineto)", read=_read_kineto)
NSIGHT = Format(name="Nsight Systems SQLite export", read=_read_nsight)
READABLE = "a PyTorch profiler trace (.json or .json.gz) or a Nsight Systems SQLite export (.sqlite)"

# (what the file starts with, what it is, what to do)
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive", "unpack it and give the trace inside"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "decompress it first: zstd -d FILE"),
    (b"BZh", "bzip2-compressed", "decompress it first: bunzip2 FILE"),
    (b"\xfd7zXZ\x00", "xz-compressed", "decompress it first: unxz FILE"),
    (
        b"\x80",
        "a Python pickle (a CUDA memory snapshot or a flight-recorder dump?)",
        "give the profiler's trace (torch.profiler.profile(...).export_chrome_trace)",
    ),
)


def detect(path: Path) -> Format:
    """The format of a file. Raises UnreadableError, or NotATraceError that says what the file is instead."""
    if path.suffix in (".nsys-rep", ".qdrep", ".qdstrm"):
        target = path.with_suffix(".sqlite")
        raise NotATraceError(
            f"{path}: a Nsight Systems report is read through its SQLite export; run: "
            f"nsys export --type sqlite --include-blobs=true --output {target} {path}"
        )
    head = _head(path)
    if not head.strip(_SPACE) and len(head) < _HEAD_BYTES:
        raise UnreadableError(f"{path}: the file is empty; expected {READABLE}")
    if head.startswith(b"SQLite format 3\x00"):
        return NSIGHT
    text = _inflated(path, head) if head.startswith(b"\x1f\x8b") else head
    for magic, kind, advice in _FOREIGN:
        if text.startswith(magic):
            raise NotATraceError(f"{path}: this file is {kind}, not a trace that underlap reads; {advice}")
    if text.startswith(b"SQLite format 3\x00"):
        raise NotATraceError(f"{path}: a gzip-compressed SQLite file; decompress it first: gunzip {path}")
    if text.startswith((b"\xff\xfe", b"\xfe\xff", b"{\x00", b"[\x00", b"\x00{", b"\x00[")):
        raise NotATraceError(f"{path}: the text is UTF-16, and JSON is UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    if text.lstrip(b"\xef\xbb\xbf" + _SPACE)[:1] in (b"{", b"[", b""):
        return KINETO
    raise NotATraceError(f"{path}: not a trace that underlap knows (starts with {text[:16]!r}); expected {READABLE}")


def holds_events(path: Path) -> bool:
    """Whether a file that `detect` let pass is a trace at all. Looks at its start only."""
    from underlap.read.json_events import EventFile

    if _head(path).startswith(b"SQLite"):
        return True
    try:
        return next(EventFile(path).batches(), None) is not None
    except InputError:
        return False


def _head(path: Path) -> bytes:
    try:
        # Opening a pipe may wait for ever, and a device may never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableError(f"{path}: not a regular file; expected {READABLE}, written to a file first")
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror or error})") from error


def _inflated(path: Path, head: bytes) -> bytes:
    """The start of what a gzip file holds, as far as its own start yields any."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(head, _HEAD_BYTES)
    except zlib.error as error:
        raise UnreadableError(f"{path}: the gzip data is damaged at its start ({error}); copy the file again") from error
    if not text and len(head) < _HEAD_BYTES:
        raise UnreadableError(f"{path}: the gzip file holds nothing, or is cut at its start; expected {READABLE}")
    return text
