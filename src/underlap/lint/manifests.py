"""Command lines in documents (Kubernetes, Compose, SkyPilot): what one container is started with, put together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from underlap.lint.documents import Pair

_PARTS = ("entrypoint", "command", "args")
"""Keys whose values are one command line, in this order."""
_KEYS = {*_PARTS, "cmd", "run", "script"}
_SHELLS = {"sh", "bash", "zsh", "dash"}


def command_lines(pairs: Sequence[Pair]) -> Iterator[tuple[str, int]]:
    """The command lines, each with the line on which it starts; a command and its arguments are one."""
    for group in _containers([pair for pair in pairs if pair.path and pair.path[-1] in _KEYS]):
        ordered = sorted(group, key=lambda pair: _PARTS.index(pair.path[-1]) if pair.path[-1] in _PARTS else 0)
        line, start = "", 1
        for pair in ordered:
            text = _line_of(pair)
            if line and (is_script(pair) or _is_shell(line)):
                # The words before a script are only the shell that reads it.
                if not _is_shell(line):
                    yield line, start
                line, start = text, pair.line or 1
            else:
                line, start = f"{line} {text}".strip(), min(start, pair.line or 1) if line else pair.line or 1
        yield line, start


def _containers(found: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Values of one container stand under the same key, each name once: positions in lists are not part of a path."""
    open_groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in found:
        if pair.path[-1] not in _PARTS:
            yield [pair]
            continue
        group = open_groups.setdefault(pair.path[:-1], [])
        if any(other.path[-1] == pair.path[-1] for other in group):
            yield group
            group = open_groups[pair.path[:-1]] = []
        group.append(pair)
    yield from open_groups.values()


def _is_shell(line: str) -> bool:
    """Whether it ends in a shell that waits for its script: `bash -c`, `sh -e -c`."""
    *before, last = line.rsplit(maxsplit=4) or [""]
    return re.fullmatch(r"-\w*c", last) is not None and any(word.rpartition("/")[2] in _SHELLS for word in before)


def _line_of(pair: Pair) -> str:
    return shlex.join(pair.text.split("\n")) if pair.listed and not is_script(pair) else pair.text


def is_script(pair: Pair) -> bool:
    """Whether the items of a list are the lines of a script, or a single one; else they are words of one command."""
    words = pair.text.split("\n")
    if len(words) == 1:
        return " " in pair.text.strip() and not pair.text.strip().startswith("-")
    return any(word.endswith(("\\", ";", "&&")) or word.startswith(("#", "export ")) for word in words)
