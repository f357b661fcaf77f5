"""Dumps of an environment: `env`, `env -0`, `export -p`, `/proc/PID/environ`, or a JSON or YAML mapping of variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from underlap.lint import catalog
from underlap.lint.documents import Pair

_LINE = re.compile(r"(?:export |declare -x |set )?([A-Za-z_]\w*)=(.*)", re.DOTALL)
ALSO_READ = {"XLA_FLAGS", "TORCH_CUDA_ARCH_LIST", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
"""Variables that are read without being a setting: they hold settings, or tell the device."""


def pairs_of_dump(text: str) -> list[Pair]:
    """The pairs of the variables that are known. Lines of any other form belong to a value, and are passed over."""
    separated = "\0" in text
    pieces = text.split("\0") if separated else text.splitlines()
    found = []
    for number, piece in enumerate(pieces, start=1):
        match = _LINE.fullmatch(piece.strip())
        if match and (match[1] in catalog.VARIABLES or match[1] in ALSO_READ):
            found.append(Pair((match[1],), match[2].strip().strip("\"'"), None if separated else number))
    return found


def pairs_of_mapping(variables: Mapping[str, str]) -> list[Pair]:
    """The pairs of the variables that are known, of a process."""
    return [Pair((name,), text) for name, text in variables.items() if name in catalog.VARIABLES or name in ALSO_READ]


def looks_like_dump(text: str) -> bool:
    """Whether at least one line is an assignment."""
    pieces = text.split("\0") if "\0" in text else text.splitlines()
    return any(_LINE.fullmatch(piece.strip()) for piece in pieces if piece.strip())
