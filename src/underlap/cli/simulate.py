"""`underlap simulate`: what a plan would take, before it is run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout
from underlap.cli.scenario_options import scenario_options

EXAMPLE = """\b
Example:
  underlap simulate --model llama3-70b --cluster dgx-h100 --layout tp=8,pp=2,dp=4 \\
    --workload train,gbs=32,mbs=1,seq=8192 --overlap tp=split_batch,dp=bucket:25MB
"""


@click.command(epilog=EXAMPLE, short_help="Predict a step from model, machine, layout and policy.")
@scenario_options("tp=8,pp=2,dp=4,sp,schedule=interleaved:2, or a YAML file.")
@click.option(
    "--compare",
    metavar="LIST",
    help="Policies side by side: none,split_batch,decompose:4, each on the axis it fits, or tp=split_batch; '+' joins several.",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Also write the report as JSON; '-' writes it to standard output instead."
)
@click.option(
    "--jitter",
    metavar="SHARE",
    type=click.FloatRange(min=0.0, max=1.0),
    default=0.0,
    help="Standard deviation of each operation's time over its mean, such as 0.03: collectives wait for their last rank.",
)
@click.option(
    "--straggler",
    "stragglers",
    metavar="TEXT",
    multiple=True,
    help="A slow rank and how many times longer its compute takes: rank=3,compute=1.2. May be repeated.",
)
@click.option("--force", is_flag=True, help="Replace output files that exist.")
def simulate(  # noqa: PLR0913 - click passes one argument per option
    *,
    model: str,
    cluster: str,
    gpus: int | None,
    layout: str,
    workload: str,
    policy: str,
    compare: str | None,
    json_file: str | None,
    no_contention: bool,
    jitter: float,
    stragglers: tuple[str, ...],
    force: bool,
) -> None:
    """Predict the time of one step, what of its communication is hidden, and why the rest is exposed.

    The plan's operations run on a model of the machine, in which compute and communication share multiprocessors, memory and
    links. The result is read as a trace is, and marked as simulated.
    """
    json_path = Path(json_file) if json_file is not None and json_file != STREAM else None
    if json_path is not None:
        refuse_unsafe([json_path], [Path(name) for name in (model, cluster, layout, workload, policy) if name], force=force)

    from underlap.flows import simulate as flow
    from underlap.render.prediction import print_prediction
    from underlap.render.terminal import print_report
    from underlap.report import to_json

    asked = flow.scenario(
        model=model,
        cluster=cluster,
        layout=layout,
        workload=workload,
        policy=policy,
        gpus=gpus,
        contention=not no_contention,
        jitter=jitter,
        stragglers=stragglers,
    )
    report = flow.compare(asked, flow.policies(asked, compare)) if compare is not None else flow.simulate(asked)
    if json_path is not None:
        from underlap.render.files import replacing

        with replacing(json_path) as stream:
            stream.write(to_json(report))
    if json_file == STREAM:
        write_to_stdout(lambda: sys.stdout.buffer.write(to_json(report)))
        return

    def show() -> None:
        print_prediction(report, sys.stdout)
        sys.stdout.write("\n")
        print_report(report, sys.stdout)

    write_to_stdout(show)
    if json_path is not None:
        say_wrote(json_path)
