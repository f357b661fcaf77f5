"""`underlap run`: the plan that `simulate` predicts, carried out and measured."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout
from underlap.run.priority import PRIORITIES, Priority

EXAMPLE = """\b
Example:
  underlap run --model tiny-dense --layout tp=2 --workload train,gbs=4,mbs=2,seq=64
"""


@click.command(epilog=EXAMPLE, short_help="Run a plan on processes of this machine, or in a job.")
@click.option(
    "--model", required=True, metavar="NAME|FILE", help="A preset, a YAML file, or a folder of Hugging Face (its weights too)."
)
@click.option(
    "--layout", default="", metavar="TEXT|FILE", help="tp=2,pp=2,sp,schedule=interleaved:2, or a YAML file.  [default: one rank]"
)
@click.option(
    "--nproc", type=click.IntRange(min=1), metavar="N", help="Ranks to start here.  [default: as many as the layout has]"
)
@click.option(
    "--workload", required=True, metavar="TEXT|FILE", help="train,gbs=4,mbs=2,seq=64; prefill,...; decode,...; or a YAML file."
)
@click.option(
    "--overlap",
    "policy",
    default="",
    metavar="TEXT|FILE",
    help="What overlaps: tp=split_batch,dp=bucket:25MB.  [default: nothing]",
)
@click.option(
    "--ab", is_flag=True, help="Run the plan without and with --overlap in turns, and say what the difference is worth."
)
@click.option(
    "--ceilings",
    is_flag=True,
    help="Also measure steps that wait for nothing before their end, and steps that send nothing: what no schedule can beat, "
    "beside what the analysis promises. What they compute is wrong. Over links of a rate also steps with twice that rate.",
)
@click.option(
    "--predict",
    "cluster",
    metavar="NAME|FILE",
    help="Also simulate the plans on this cluster, and show predicted beside measured.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(1, 10_000),
    default=7,
    show_default=True,
    metavar="N",
    help="Measured steps, of each plan.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep each rank's record: `underlap analyze DIR/baseline` reads it.",
)
@click.option("--profile", is_flag=True, help="With --record: also a trace of torch.profiler per rank.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    metavar="S",
    help="What a rank waits for another, in seconds.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    metavar="N",
    help="Of the store that ranks meet at.  [default: any that is free]",
)
@click.option(
    "--fabric",
    metavar="TEXT",
    help="Ranks started here talk over links of this rate, each from a network namespace and a core of its own: 500mbit, "
    "1gbit,rank1=250mbit, unshaped. Linux, as root.  [default: loopback]",
)
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES),
    default="default",
    show_default=True,
    help="Which thread of a rank interrupts the other: on CPUs it decides whether overlap happens, and how much. communication: "
    "gloo's the one that computes; compute, equal: gloo waits until the core is free, and less is hidden; default: the system "
    "shares the core. Linux, as root.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="What ranks compute on, with gloo or NCCL.  [default: cuda if each rank has a GPU]",
)
@click.option("--graph", is_flag=True, help="On GPUs: capture a step as a CUDA graph, and measure its launches.")
@click.option("--share-cores", is_flag=True, help="Start more ranks than there are cores.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Also write the result as JSON; '-' writes it to standard output instead."
)
@click.option("--force", is_flag=True, help="Replace output files that exist.")
def run(  # noqa: PLR0913 - click passes one argument per option
    *,
    model: str,
    layout: str,
    nproc: int | None,
    workload: str,
    policy: str,
    ab: bool,
    ceilings: bool,
    cluster: str | None,
    repetitions: int,
    record: Path | None,
    profile: bool,
    timeout_s: float,
    port: int,
    fabric: str | None,
    priority: Priority,
    device: str | None,
    graph: bool,
    share_cores: bool,
    json_file: str | None,
    force: bool,
) -> None:
    """Carry out one step of a plan, again and again, and account for its time as for a trace.

    Ranks are processes of this machine that talk over gloo, or NCCL if each has a GPU; under torchrun or srun this process is one
    of them. Weights are seeded random numbers, or those of a folder of Hugging Face. Progress is told on standard error.

    Exit code 1: a rank failed, was lost, or did not agree with the others.
    """
    json_path = Path(json_file) if json_file is not None and json_file != STREAM else None
    if json_path is not None:
        refuse_unsafe([json_path], [Path(name) for name in (model, layout, workload, policy, cluster) if name], force=force)
    if profile and record is None:
        raise click.UsageError("--profile needs --record DIR: expected a folder for the traces.")

    from underlap.flows import run as flow
    from underlap.render.foretold import print_foretold
    from underlap.render.terminal import print_report
    from underlap.render.trial import print_trial
    from underlap.trial import to_json

    what = flow.asked(
        model=model,
        layout=layout,
        workload=workload,
        policy=policy,
        cluster=cluster,
        compared=ab,
        ceilings=ceilings,
        ranks=nproc,
        repetitions=repetitions,
        timeout_s=timeout_s,
        port=port,
        record=record,
        force=force,
        profile=profile,
        device=device,
        graph=graph,
        share_cores=share_cores,
        fabric=fabric,
        priority=priority,
    )
    trial = flow.run(what)
    if trial is None:
        return  # rank 0 says it
    if json_path is not None:
        from underlap.render.files import replacing

        with replacing(json_path) as stream:
            stream.write(to_json(trial))
    if json_file == STREAM:
        write_to_stdout(lambda: sys.stdout.buffer.write(to_json(trial)))
        return

    def show() -> None:
        print_trial(trial, sys.stdout)
        if trial.prediction is not None:
            sys.stdout.write("\n")
            print_foretold(trial.prediction, sys.stdout)
        sys.stdout.write("\n")
        print_report(trial.policy or trial.baseline, sys.stdout)

    write_to_stdout(show)
    if json_path is not None:
        say_wrote(json_path)
