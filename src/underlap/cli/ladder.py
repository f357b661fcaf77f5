"""`underlap ladder`: from one device to the whole layout, an axis at a time."""

from __future__ import annotations

import click

from underlap.cli.scenario_options import checked_path, scenario_options, show

EXAMPLE = """\b
Example:
  underlap ladder --model llama3-8b --cluster dgx-h100 --layout tp=4,pp=2,dp=2,sp \\
    --workload train,gbs=8,mbs=1,seq=4096
"""


@click.command(epilog=EXAMPLE, short_help="Climb from one device to the layout, an axis at a time.")
@scenario_options("tp=8,pp=2,dp=4,sp,schedule=interleaved:2, or a YAML file.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Also write the answer as JSON; '-' writes it to standard output instead."
)
@click.option("--force", is_flag=True, help="Replace output files that exist.")
def ladder(  # noqa: PLR0913 - click passes one argument per option
    *,
    model: str,
    cluster: str,
    gpus: int | None,
    layout: str,
    workload: str,
    policy: str,
    no_contention: bool,
    json_file: str | None,
    force: bool,
) -> None:
    """Climb from one device to the parallel engine: one axis of the layout at a time, then overlap.

    For every rung: which limit it lifts (capacity: memory per device; latency: what one micro-batch waits; traffic: tokens per
    second), and which collective it adds for that, on which link, how many bytes, and how much of it is exposed.
    """
    json_path = checked_path(json_file, [model, cluster, layout, workload, policy], force=force)

    from underlap.flows import simulate as flow
    from underlap.flows.ladder import ladder as answered
    from underlap.render.ladder import print_ladder

    asked = flow.scenario(
        model=model, cluster=cluster, layout=layout, workload=workload, policy=policy, gpus=gpus, contention=not no_contention
    )
    answer = answered(asked)
    show(answer, json_file, json_path, lambda file: print_ladder(answer, file))
