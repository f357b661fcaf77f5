"""`underlap sweep`: for which batch and sequence overlap pays."""

from __future__ import annotations

from pathlib import Path

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote
from underlap.cli.scenario_options import Grid, checked_path, scenario_options, show

EXAMPLE = """\b
Example:
  underlap sweep --model llama3-8b --cluster dgx-h100 --layout "tp=8,sp" \\
    --workload prefill,batch=1,seq=512 --compare none,split_batch --batch 1..4 --seq 512..2048
"""


@click.command(epilog=EXAMPLE, short_help="Map where overlap pays, over batch and sequence.")
@scenario_options("tp=8,pp=2,dp=4,sp; several are separated by ';'. Or one YAML file.")
@click.option(
    "--compare",
    required=True,
    metavar="LIST",
    help="Policies against the first of them: none,split_batch,decompose:4, or tp=split_batch; '+' joins several.",
)
@click.option(
    "--batch",
    "batches",
    required=True,
    metavar="GRID",
    type=Grid(),
    help="Sequences per step (gbs, of training): 1..512 for the powers of two, or 1,2,4.",
)
@click.option(
    "--seq",
    "seqs",
    required=True,
    metavar="GRID",
    type=Grid(),
    help="Tokens per sequence (context, of decode), in the same form.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Also write the answer as JSON; '-' writes it to standard output instead."
)
@click.option("--csv", "csv_file", metavar="FILE", help="Also write one row per point as CSV.")
@click.option("--force", is_flag=True, help="Replace output files that exist.")
def sweep(  # noqa: PLR0913 - click passes one argument per option
    *,
    model: str,
    cluster: str,
    gpus: int | None,
    layout: str,
    workload: str,
    policy: str,
    no_contention: bool,
    compare: str,
    batches: tuple[int, ...],
    seqs: tuple[int, ...],
    jobs: int,
    json_file: str | None,
    csv_file: str | None,
    force: bool,
) -> None:
    """Map the conditions: for each batch and sequence, whether overlap hides fully, hides partly, does nothing, or loses.

    Every point is simulated. What cannot be laid out or does not fit the memory is shown as such, with the reasons counted.
    """
    inputs = [model, cluster, layout, workload, policy]
    json_path = checked_path(json_file, inputs, force=force)
    csv_path = Path(csv_file) if csv_file is not None else None
    refuse_unsafe([path for path in (json_path, csv_path) if path], [Path(name) for name in inputs if name], force=force)

    from underlap.flows import simulate as flow
    from underlap.flows import sweep as sweeping
    from underlap.render.sweep import print_sweep, write_csv

    first = flow.scenario(
        model=model,
        cluster=cluster,
        layout=layout.split(";", maxsplit=1)[0].strip(),
        workload=workload,
        policy=policy,
        gpus=gpus,
        contention=not no_contention,
        divisible=False,
    )
    answer = sweeping.sweep(sweeping.scenarios(first, layout, gpus), compare, batches=batches, seqs=seqs, jobs=jobs)
    if csv_path is not None:
        from underlap.render.files import replacing

        with replacing(csv_path) as stream:
            write_csv(answer, stream)
    show(answer, json_file, json_path, lambda file: print_sweep(answer, file))
    if csv_path is not None and json_file != STREAM:
        say_wrote(csv_path)
