"""Configurations to a LintReport, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from underlap.errors import OptionError
from underlap.lint.check import check
from underlap.lint.devices import capability_of
from underlap.lint.jobs import combine
from underlap.lint.reading import Reading, read_environment, read_file, read_process
from underlap.lint_report import LintReport


def lint(
    *files: str | os.PathLike[str],
    env: str | os.PathLike[str] | None = None,
    variables: Mapping[str, str] | None = None,
    gpu: str | None = None,
    versions: Mapping[str, str] | None = None,
    together: bool = False,
) -> LintReport:
    """What in these files and this environment keeps communication from overlapping with compute.

    `env` is the dump of an environment; `variables` one that is at hand. Without files and without either, the environment of
    this process is looked at. `gpu` names the device (H100, B200, 9.0), `versions` gives versions by framework. Two files that
    configure the same framework are compared as arms, unless `together`. Raises UnreadableError, InputError, OptionError.

    >>> underlap.lint("train.sh", env="job.env").findings  # doctest: +SKIP
    """
    capability = capability_of(gpu) if gpu is not None else None
    if gpu is not None and capability is None:
        raise OptionError("The device is not known: give a name like H100 or B200, or a compute capability like 9.0.")
    readings = [read_file(Path(file)) for file in files]
    known = env is not None or variables is not None or not files
    if env is not None:
        readings.insert(0, read_environment(Path(env)))
    elif known:
        readings.insert(0, read_process(os.environ if variables is None else variables))
    programs = combine(
        _in_order(readings), together=together, environment_known=known, capability=capability, versions=versions or {}
    )
    return check(readings, programs)


def _in_order(readings: list[Reading]) -> list[Reading]:
    """Environments first: a file sets variables after the environment it was started in."""
    return sorted(readings, key=lambda reading: reading.kind != "environment")
