"""`underlap levers`: what would shorten the step, ranked."""

from __future__ import annotations

import click

from underlap.cli.scenario_options import checked_path, scenario_options, show

EXAMPLE = """\b
Example:
  underlap levers --model llama3-8b --cluster dgx-h100 --layout tp=4,pp=2,dp=2,sp \\
    --workload train,gbs=8,mbs=1,seq=4096
"""


@click.command(epilog=EXAMPLE, short_help="Rank what would shorten the step.")
@scenario_options("tp=8,pp=2,dp=4,sp,schedule=interleaved:2, or a YAML file.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Also write the answer as JSON; '-' writes it to standard output instead."
)
@click.option("--force", is_flag=True, help="Replace output files that exist.")
def levers(  # noqa: PLR0913 - click passes one argument per option
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
    """Try what could be done about the communication of a scenario, and rank it by step time.

    Other layouts of the same devices, reduction in the network, fewer bytes, and passes that overlap: each simulated alone, the
    best also in pairs, with what it asks for. Gains within the model's noise are not ranked.
    """
    json_path = checked_path(json_file, [model, cluster, layout, workload, policy], force=force)

    from underlap.flows import simulate as flow
    from underlap.flows.levers import levers as answered
    from underlap.render.levers import print_levers

    asked = flow.scenario(
        model=model, cluster=cluster, layout=layout, workload=workload, policy=policy, gpus=gpus, contention=not no_contention
    )
    answer = answered(asked)
    show(answer, json_file, json_path, lambda file: print_levers(answer, file))
