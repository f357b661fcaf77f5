"""Claims from files, and the catalog that ships with the package: published claims about overlap with their conditions."""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import os
from pathlib import Path

import msgspec

from underlap import claim_file
from underlap.claim import PHASES, Claim, listed
from underlap.documents import read_text
from underlap.errors import OptionError, UnreadableError

_EXPECTED = "a claim in YAML, or the id of a claim of the catalog (underlap claims list)"


def load(claim: str | os.PathLike[str]) -> Claim:
    """The claim in a file, or of the catalog by its id. A claim without an id gets the name of its file. Raises InputError."""
    path = Path(claim)
    name = os.fspath(claim)
    if not os.path.lexists(path) and _looks_like_an_id(name):
        return by_id(name)
    found = claim_file.parse(read_text(path, _EXPECTED), name)
    return found if found.id else msgspec.structs.replace(found, id=path.stem)


def _looks_like_an_id(name: str) -> bool:
    return Path(name).suffix not in (".yaml", ".yml", ".json") and os.sep not in name


def by_id(name: str) -> Claim:
    """The claim of the catalog with this id. Raises UnreadableError, with the nearest one."""
    claims = {claim.id: claim for claim in catalog()}
    if name in claims:
        return claims[name]
    near = difflib.get_close_matches(name, [known for known in claims if known], n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; expected {_EXPECTED}"
    raise UnreadableError(f"{name}: neither a file nor a claim of the catalog{hint}")


@functools.cache
def catalog() -> tuple[Claim, ...]:
    """All claims that ship with the package, by id."""
    folder = importlib.resources.files("underlap") / "catalog"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return tuple(claim_file.parse(file.read_text(encoding="utf-8"), file.name) for file in files)


def find(
    *,
    axis: str | None = None,
    phase: str | None = None,
    framework: str | None = None,
    hardware: str | None = None,
    words: tuple[str, ...] = (),
) -> list[Claim]:
    """The claims of the catalog to which all of it applies, by id. Upper and lower case are the same.

    `axis` is one of the claim's axes; `phase` one of its phases; `framework` a part of the software's name or version;
    `hardware` a part of what is said of device, link or topology; each word occurs somewhere in the claim.
    """
    if phase is not None and phase.lower() not in PHASES:
        near = difflib.get_close_matches(phase.lower(), PHASES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(PHASES)}"
        raise OptionError(f"--phase {phase}: no such phase; {hint}")

    def applies(claim: Claim) -> bool:
        software = f"{claim.software.name or ''} {claim.software.version or ''}".lower()
        machine = " ".join(
            part for part in (claim.hardware.gpu, claim.hardware.interconnect, claim.hardware.topology) if part
        ).lower()
        return (
            (axis is None or axis.lower() in listed(claim.axis))
            and (phase is None or phase.lower() in listed(claim.workload.phase))
            and (framework is None or framework.lower() in software)
            and (hardware is None or hardware.lower() in machine)
            and all(word.lower() in _text(claim) for word in words)
        )

    return [claim for claim in catalog() if applies(claim)]


@functools.cache
def _texts() -> dict[str | None, str]:
    return {claim.id: msgspec.json.encode(claim).decode().lower() for claim in catalog()}


def _text(claim: Claim) -> str:
    return _texts()[claim.id]


def to_json(claims: Claim | list[Claim]) -> bytes:
    """A claim, or a list of them, as JSON. One claim is accepted as a claim file again."""
    return msgspec.json.format(msgspec.json.encode(claims), indent=1) + b"\n"
