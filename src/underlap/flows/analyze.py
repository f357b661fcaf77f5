"""Traces to a Report, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from underlap.analyze.configuration import configured
from underlap.analyze.report import report
from underlap.flows.lint import lint
from underlap.flows.read import read
from underlap.report import Report
from underlap.timeline import Timeline


def analyze(
    source: Timeline | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    window: str | None = None,
    steps: Sequence[int] | None = None,
    mesh: Mapping[str, int] | None = None,
    deep: bool | None = None,
    config: Sequence[str | os.PathLike[str]] = (),
    like: Timeline | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> Report:
    """The Report of a Timeline, or of the traces that a path or several paths name.

    `window` is "whole" (first to last device event), "steps", or None: steps where the trace marks any. `steps` selects
    some by number. `deep` asks for contention, critical path, levers and bound, or leaves these fields empty; None decides
    by the size of the trace. `like` is an eager recording of the same job, from which the replays of device graphs borrow
    shapes, groups, sizes and order; the Report says what is borrowed. `mesh` gives the sizes of the parallel dimensions in
    DeviceMesh order, the last varying fastest. `config` names the files of the job's configuration: the verdicts then name
    the rules of `lint` that explain them, and what is switched on without being there is told. Raises InputError for unusable
    traces and files, OptionError for options that do not fit them.

    >>> underlap.analyze("traces/", mesh={"dp": 2, "tp": 4}).families[0].exposed_share_ns  # doctest: +SKIP
    """
    # First, as a configuration that cannot be read is known in no time.
    configuration = lint(*config, together=True) if config else None
    other = None if like is None else _timeline(like)
    timeline = _timeline(source)
    found = report(timeline, window=window, step_numbers=steps, mesh=mesh, deep=deep, like=other)
    return configured(found, timeline, configuration) if configuration else found


def _timeline(source: Timeline | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Timeline:
    if isinstance(source, Timeline):
        return source
    return read(source) if isinstance(source, str | os.PathLike) else read(*source)
