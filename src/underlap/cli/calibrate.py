"""`underlap calibrate`: measure this machine, so that `simulate` predicts what `run` does on it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout
from underlap.run.priority import PRIORITIES, Priority

EXAMPLE = """\b
Example:
  underlap calibrate --fabric 500mbit --priority communication --out here.yaml
"""


@click.command(epilog=EXAMPLE, short_help="Measure this machine for simulate.")
@click.option("--ranks", type=click.IntRange(2, 64), default=2, show_default=True, metavar="N", help="Each on a core of its own.")
@click.option("--fabric", metavar="TEXT", help="The links, as `underlap run` has them: 500mbit.  [default: loopback]")
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES),
    default="default",
    show_default=True,
    help="Which thread of a rank interrupts the other, as `underlap run` has it.",
)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True, help="Of what is computed.")
@click.option("--out", "out_file", metavar="FILE", required=True, help="The cluster as YAML; '-' writes it to standard output.")
@click.option("--force", is_flag=True, help="Replace an output file that exists.")
def calibrate(*, ranks: int, fabric: str | None, priority: Priority, precision: str, out_file: str, force: bool) -> None:
    """Measure the engine's operations, transfers and both side by side, on the links and at the priority that a run will have.

    Takes a minute and a half and a core for each rank. The result is a cluster whose `measured` section has every time with its
    range; simulate, sweep, ladder and levers then use these times and none of the models of GPUs. Progress is told on standard
    error.

    Exit code 1: a rank failed or was lost.
    """
    path = Path(out_file) if out_file != STREAM else None
    if path is not None:
        refuse_unsafe([path], [], force=force)

    from underlap.flows import calibrate as flow

    text = flow.calibrate(flow.asked(fabric=fabric, ranks=ranks, priority=priority, precision=precision))
    if path is None:
        write_to_stdout(lambda: sys.stdout.buffer.write(text))
        return
    from underlap.render.files import replacing

    with replacing(path) as stream:
        stream.write(text)
    say_wrote(path)
