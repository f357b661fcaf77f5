"""Which rank a file is of, by what its metadata or its name says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from underlap.read.numbers import integer

_MOST_RANKS = 10_000_000
# Forms seen: rank0_trace.json.gz, rank-70.<date>.<pid>.pt.trace.json.gz, worker3_step_12.<ms>.pt.trace.json.gz,
# sampled_rank-0.json.gz, trace_rank_3.json, host_r3 does not count.
_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[-_ ]?(\d{1,7})(?!\d)", re.IGNORECASE)
# SGLang: <id>-TP-0-DP-0-PP-0-EP-0.trace.json.gz
_COORDINATE = re.compile(r"(?<![A-Za-z])(TP|DP|PP|EP|CP|SP)-(\d+)(?!\d)")


def rank_from_metadata(metadata: dict[str, Any]) -> tuple[int | None, int | None]:
    """(rank, world size) from Kineto's distributedInfo, each None where it is silent or nonsense."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return None, None
    rank, world = integer(info.get("rank")), integer(info.get("world_size"))
    return (rank if 0 <= rank < _MOST_RANKS else None), (world if 0 < world <= _MOST_RANKS else None)


def core_time(metadata: dict[str, Any]) -> int | None:
    """What communication took of the core that computes, in ns, as `underlap run` writes it; None where nothing says so."""
    said = metadata.get("underlap")
    taken = integer(said.get("core_ns")) if isinstance(said, dict) else -1
    return taken if taken >= 0 else None


def rank_from_name(path: Path) -> int | None:
    """The rank in the file's name, else in its folder's name; None where neither has one."""
    for part in (path.name, path.parent.name):
        found = _RANK.search(part)
        if found is not None:
            return int(found.group(1))
    return None


def coordinates_from_name(path: Path) -> dict[str, int]:
    """Mesh coordinates in the file's name, as SGLang writes them: {"tp": 0, "dp": 0}. They say no rank by themselves."""
    return {axis.lower(): int(value) for axis, value in _COORDINATE.findall(path.name)}
