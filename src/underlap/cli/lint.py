"""`underlap lint`: scripts, configurations and environments in; what keeps overlap off, out. No trace is needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout

EXAMPLE = """\b
Exit codes: 0 nothing found, 1 findings, 2 usage or unusable input.

\b
Example:
  underlap lint train.sh --env job.env
"""


@click.command(epilog=EXAMPLE, short_help="Tell what in a configuration keeps overlap off.")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--env",
    "env",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The job's environment, as `env > FILE` writes it.  [default: without FILE arguments, this environment]",
)
@click.option("--gpu", metavar="NAME", help="The device, where no file names it: H100, B200, or a compute capability (9.0).")
@click.option(
    "--version",
    "versions",
    metavar="NAME=VERSION",
    multiple=True,
    help="Version of a framework, where no file pins it: vllm=0.11.0. May be repeated.",
)
@click.option("--together", is_flag=True, help="All files configure one job, though two are of the same framework.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report as JSON; '-' writes it to standard output.")
@click.option("--force", is_flag=True, help="Replace an output file that exists.")
@click.pass_context
def lint(
    ctx: click.Context,
    *,
    files: tuple[Path, ...],
    env: Path | None,
    gpu: str | None,
    versions: tuple[str, ...],
    together: bool,
    json_file: str | None,
    force: bool,
) -> None:
    """Tell what in a configuration will silently keep communication from overlapping with compute.

    FILE is a launch script (Megatron, vLLM, SGLang, torchrun, sbatch), a TOML of torchtitan, a JSON of DeepSpeed, or a YAML
    (Megatron-Bridge, NeMo, Accelerate, serving). Two files of the same framework are compared as arms. Only settings that a
    rule knows are ever shown.
    """
    path = Path(json_file) if json_file is not None and json_file != STREAM else None
    refuse_unsafe([path] if path else [], [file for file in (*files, env) if file is not None], force=force)

    from underlap.flows.lint import lint as lint_files
    from underlap.lint_report import to_json
    from underlap.render.lint import print_lint

    report = lint_files(*files, env=env, gpu=gpu, versions=dict(map(_version, versions)), together=together)
    if path is not None:
        from underlap.render.files import replacing

        with replacing(path) as stream:
            stream.write(to_json(report))
    if json_file == STREAM:
        write_to_stdout(lambda: sys.stdout.buffer.write(to_json(report)))
    else:
        write_to_stdout(lambda: print_lint(report, sys.stdout))
    if path is not None:
        say_wrote(path)
    if report.found:
        ctx.exit(1)


def _version(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([a-z_]{1,30})=(\d{1,6}(?:\.\d{1,6})*)", text.strip().lower().replace("-", "_"))
    if found is None:
        raise click.BadParameter("a version is given like vllm=0.11.0.", param_hint="--version")
    return found[1], found[2]
