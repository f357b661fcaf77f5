"""Which files configure one program, and which are arms of a comparison.

An environment belongs to every program. Files of different kinds or frameworks (a launch script and a DeepSpeed JSON)
belong together. Two files of one kind that configure the same framework are arms of a comparison, unless the caller says
that they are one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from underlap.lint.reading import Job, Reading
from underlap.lint.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program with everything that configures it."""

    name: str
    settings: Settings
    others: frozenset[int]
    """Of the settings that no rule knows, only whether they are the same."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """All programs; where `arms` is set, each stands for one file that is compared with the others."""

    programs: list[Program]
    arms: bool


def combine(
    readings: Sequence[Reading],
    *,
    together: bool,
    environment_known: bool,
    capability: int | None,
    versions: Mapping[str, str],
) -> Programs:
    """The programs that the sources configure."""
    environments = [job for reading in readings if reading.kind == "environment" for job in reading.jobs]
    files = [reading for reading in readings if reading.kind != "environment"]
    arms = not together and any(_alike(one, other) for at, one in enumerate(files) for other in files[at + 1 :])

    def program(name: str, jobs: Iterable[Job]) -> Program:
        return _merged(
            name, [*environments, *jobs], environment_known=environment_known, capability=capability, versions=versions
        )

    if not files:
        return Programs(programs=[program(readings[0].file if readings else "nothing", [])], arms=False)
    if arms:
        rivals = [reading for reading in files if any(_alike(reading, other) for other in files if other is not reading)]
        shared = [job for reading in files if reading not in rivals for job in reading.jobs]
        return Programs(
            programs=[program(_name(reading, job), [*shared, job]) for reading in rivals for job in reading.jobs],
            arms=all(len(reading.jobs) == 1 for reading in rivals),
        )
    several = [reading for reading in files if len(reading.jobs) > 1]
    if not several or together:
        return Programs(
            programs=[program(" + ".join(reading.file for reading in files), [job for reading in files for job in reading.jobs])],
            arms=False,
        )
    rest = [job for reading in files if reading not in several for job in reading.jobs]
    return Programs(
        programs=[program(_name(reading, job), [*rest, job]) for reading in several for job in reading.jobs], arms=False
    )


def _name(reading: Reading, job: Job) -> str:
    return reading.file if job.line is None or len(reading.jobs) == 1 else f"{reading.file}:{job.line}"


def _alike(one: Reading, other: Reading) -> bool:
    if one.kind != other.kind:
        # A script and the file that it hands to its program.
        return False
    mine = {framework for job in one.jobs for framework in job.frameworks}
    theirs = {framework for job in other.jobs for framework in job.frameworks}
    if mine or theirs:
        return bool(mine & theirs)
    settings = [{setting.name for job in reading.jobs for setting in job.settings} for reading in (one, other)]
    return settings[0] == settings[1]


def _merged(
    name: str, jobs: Sequence[Job], *, environment_known: bool, capability: int | None, versions: Mapping[str, str]
) -> Program:
    frameworks: dict[str, str] = {}
    pinned: dict[str, str] = {}
    for job in jobs:
        for framework, how in job.frameworks.items():
            frameworks.setdefault(framework, how)
        pinned |= job.versions
    found = [job.capability for job in jobs if job.capability is not None]
    settings = Settings(
        [setting for job in jobs for setting in job.settings],
        frameworks=frameworks,
        whole={framework for job in jobs for framework in job.whole},
        environment_known=environment_known,
        capability=capability if capability is not None else (found[-1] if found else None),
        amd=any(job.amd for job in jobs),
        versions={**pinned, **versions},
    )
    return Program(name=name, settings=settings, others=frozenset().union(*(job.others for job in jobs)))
