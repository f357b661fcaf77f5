"""`underlap analyze`: traces in, one screen out; on request also the Report as JSON and its instances as a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underlap.cli.options import Mesh, Numbers
from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout

if TYPE_CHECKING:
    from underlap.report import Report

EXAMPLE = """\b
Example:
  underlap analyze traces/ --json report.json
"""


@click.command(epilog=EXAMPLE, short_help="Account for the time in profiler traces.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the report as JSON; '-' writes it to standard output instead of the screen.",
)
@click.option(
    "--instances",
    "instances_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write one row per collective call and rank, as .csv or .parquet.",
)
@click.option(
    "--window",
    type=click.Choice(["whole", "steps"]),
    help="Analyze whole traces or complete steps.  [default: steps where there are complete ones]",
)
@click.option("--steps", metavar="LIST", type=Numbers(), help="Only these steps: 2-5, or 3, or 2,4, or 2-3,6.")
@click.option("--ranks", metavar="LIST", type=Numbers(), help="Only these ranks, in the same form.")
@click.option(
    "--mesh",
    metavar="SIZES",
    type=Mesh(),
    help="Sizes of the parallel dimensions, in the order of the DeviceMesh (neighboring ranks differ in the last): dp=2,tp=4.",
)
@click.option(
    "--names",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with further kernel families; docs/names.md has the format and an example.",
)
@click.option(
    "--like",
    metavar="TRACE",
    type=click.Path(exists=True, path_type=Path),
    help="An eager (or warm-up) trace of the same job, or a folder of them: kernels of CUDA graphs borrow shapes, groups, sizes "
    "and order from it, and the report labels what is borrowed.",
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), help="Processes for reading.  [default: one per file, at most one per CPU]"
)
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A script or file of the job's configuration, as for lint: which rule explains the verdict. May be repeated.",
)
@click.option("--explain", is_flag=True, help="After the screen: what decided at each branch, the critical path, and the levers.")
@click.option("--force", is_flag=True, help="Replace output files that exist.")
@click.option("--no-progress", is_flag=True, help="Show no progress bar on standard error.")
def analyze(  # noqa: PLR0913 - click passes one argument per option
    *,
    paths: tuple[Path, ...],
    json_file: str | None,
    instances_file: Path | None,
    window: str | None,
    steps: tuple[int, ...] | None,
    ranks: tuple[int, ...] | None,
    mesh: dict[str, int] | None,
    names: Path | None,
    like: Path | None,
    jobs: int | None,
    configs: tuple[Path, ...],
    explain: bool,
    force: bool,
    no_progress: bool,
) -> None:
    """Account for the time in profiler traces: compute, hidden and exposed communication, copies, idle.

    PATH is a trace of PyTorch's profiler (.json, .json.gz), an export of Nsight Systems (.sqlite), or a folder of them.
    """
    if steps is not None and window == "whole":
        raise click.UsageError("--steps selects steps, and --window whole none: pass one of them.")
    json_path = Path(json_file) if json_file is not None and json_file != STREAM else None
    _check_outputs(json_path, instances_file, [path for path in (*paths, *configs, names, like) if path], force=force)

    from underlap.cli.progress import reading_bar
    from underlap.flows.analyze import analyze as analyze_timeline
    from underlap.flows.read import read

    with reading_bar(wanted=not no_progress) as progress:
        timeline = read(*paths, names=names, ranks=ranks, jobs=jobs, progress=progress)
        other = None if like is None else read(like, names=names, jobs=jobs, progress=progress)
    deep = True if explain else None
    report = analyze_timeline(timeline, window=window, steps=steps, mesh=mesh, deep=deep, like=other, config=configs)

    # Files first: a reader of the screen that leaves early must not cost them.
    _write_files(report, json_path, instances_file)
    _write_to_stdout(report, as_json=json_file == STREAM)
    if explain and json_file != STREAM:
        from underlap.render.explanation import print_explanation

        write_to_stdout(lambda: print_explanation(report, sys.stdout))
    for path in filter(None, (json_path, instances_file)):
        say_wrote(path)


def _check_outputs(json_path: Path | None, instances_file: Path | None, inputs: Sequence[Path], *, force: bool) -> None:
    """Refuse now what could not be written after a long reading."""
    refuse_unsafe([path for path in (json_path, instances_file) if path], inputs, force=force)
    if instances_file is not None:
        from underlap.render.tables import writer_for

        writer_for(instances_file)


def _write_files(report: Report, json_path: Path | None, instances_file: Path | None) -> None:
    if json_path is not None:
        from underlap.render.files import replacing
        from underlap.report import to_json

        with replacing(json_path) as stream:
            stream.write(to_json(report))
    if instances_file is not None:
        from underlap.render.tables import write_instances

        write_instances(report.instances, instances_file)


def _write_to_stdout(report: Report, *, as_json: bool) -> None:
    from underlap.render.terminal import print_report
    from underlap.report import to_json

    if as_json:
        write_to_stdout(lambda: sys.stdout.buffer.write(to_json(report)))
    else:
        write_to_stdout(lambda: print_report(report, sys.stdout))
