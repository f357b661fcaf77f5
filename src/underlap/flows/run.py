"""Plan, passes, ranks, records, analysis: the same Plan that `simulate` predicts, carried out and measured.

torch is loaded by the functions that need it, and by nothing else of underlap.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from underlap import inputs
from underlap.cluster import Cluster
from underlap.errors import OptionError
from underlap.flows import started_here
from underlap.flows.foretell import Prediction, predict
from underlap.flows.simulate import Scenario
from underlap.flows.trials import trial_of
from underlap.layout import Layout, layout_text
from underlap.ledger import ledger
from underlap.model import Model
from underlap.plan import Plan
from underlap.planner import plan as planned
from underlap.policy import Policy
from underlap.run import comparing
from underlap.run.ceilings import check_ceilings, measurable
from underlap.run.fabric import INTERFACE, Fabric
from underlap.run.fabric_spec import FabricSpec, fabric_spec
from underlap.run.job import BOTH, Job, steps_of
from underlap.run.priority import Priority
from underlap.run.program import compiled
from underlap.run.supported import check_runnable
from underlap.schedule import Refusal, apply, check_kept
from underlap.trial import LeftOut, Trial
from underlap.workload import Decode, Prefill, Workload, check_workload, micro_batch_size

PROMPT_TOKENS = 4096
"""Of a micro-batch of the prompts that a decode starts from: scores of attention, which are written, take memory."""
BASELINE, POLICY = "baseline", "policy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to run, and how."""

    model: Model
    layout: Layout
    workload: Workload
    policy: Policy = Policy()  # noqa: RUF009  # frozen
    compared: bool = False
    """Baseline and policy in one launch, in turns."""
    checkpoint: Path | None = None
    ranks: int | None = None
    repetitions: int = comparing.LEAST_REPETITIONS
    timeout_s: float = 60.0
    port: int = 0
    record: Path | None = None
    force: bool = False
    """Records of an earlier run in that folder are replaced."""
    profile: bool = False
    device: str | None = None
    """cpu or cuda; None: cuda where each rank can have a GPU."""
    graph: bool = False
    share_cores: bool = False
    predict: Cluster | None = None
    """What the plans are simulated on, beside their measurement."""
    quiet: bool = False
    fabric: FabricSpec | None = None
    """Ranks of this machine over links of a known rate; None: over loopback."""
    priority: Priority = "default"
    ceilings: tuple[tuple[str, LeftOut], ...] = ()
    """(plan, what its steps leave out), measured behind the comparison."""
    each_step: tuple[str, ...] = ()
    """Plans of which every measured step is analyzed, not one alone."""


def asked(
    *,
    model: str,
    layout: str,
    workload: str,
    policy: str = "",
    cluster: str | None = None,
    fabric: str | None = None,
    ceilings: bool = False,
    **options: object,
) -> Asked:
    """An `Asked` from what a user names: presets, files, one-line forms. Raises OptionError or InputError of one line."""
    folder = Path(model)
    weights = any(folder.glob("*.safetensors*")) if folder.is_dir() else False
    made = Asked(
        model=inputs.model(model),
        layout=inputs.layout(layout),
        workload=inputs.workload(workload),
        policy=inputs.policy(policy),
        checkpoint=folder if weights else None,
        predict=None if cluster is None else inputs.cluster(cluster),
        fabric=fabric_spec(fabric) if fabric is not None else None,
        **options,  # type: ignore[arg-type]  # checked by the dataclass's users
    )
    if ceilings:
        of = (BASELINE, POLICY) if made.compared else (BASELINE,)
        pairs = tuple((name, left_out) for name in of for left_out in measurable(made.fabric))
        made = dataclasses.replace(made, ceilings=pairs, each_step=of)
    made.layout.check_model(made.model)
    made.policy.check_layout(made.layout)
    check_workload(made.workload, made.layout, made.model)
    return made


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A plan under a name, with what was refused of its policy."""

    name: str
    policy: Policy
    plan: Plan
    refused: tuple[Refusal, ...]
    prediction: Prediction | None = None


def run(what: Asked, *, on_start: Callable[[list[int]], None] | None = None) -> Trial | None:
    """Run it and analyze its records. None on ranks other than 0 of a job that torchrun or srun started.

    Raises OptionError where it cannot be run, RunError where a rank fails, MissingExtraError without torch.
    """
    plans = _foretold_plans(what)
    # Before torch is loaded: what it says of addresses without names is settled then.
    with started_here.network(what.fabric, what.layout.world) as made:
        from underlap.run.launch import place_in_job

        place = place_in_job(dict(os.environ))
        if place is not None and made is not None:
            raise OptionError("fabric: ranks of torchrun or srun have a network already: leave --fabric out, or start them here")
        _check_ranks(what, place[1] if place else None)
        what = _on_device(what, plans)
        if place is None and what.device == "cpu":
            _check_memory(what, plans)
        if place is None or place[0] == 0:
            _cleared(what)
        if place is None:
            return _launched([(what, plans)], made, on_start)[0]
        with _folder(what) as folder:
            return _placed(what, plans, folder, place)


def run_each(several: Sequence[Asked], *, on_start: Callable[[list[int]], None] | None = None) -> list[Trial]:
    """One after the other, on the same ranks in one launch: to start ranks takes longer than many a comparison.

    Raises what `run` raises, and OptionError where they differ in what belongs to the launch. Ranks are started here, whatever
    the environment says.
    """
    first = several[0]
    for name in ("fabric", "timeout_s", "port"):
        if any(getattr(each, name) != getattr(first, name) for each in several):
            raise OptionError(f"{name}: expected the same for all that run in one launch")
    if any(each.layout.world != first.layout.world for each in several):
        raise OptionError("layout: expected as many ranks for all that run in one launch")
    pairs = [(each, _foretold_plans(each)) for each in several]
    with started_here.network(first.fabric, first.layout.world) as made:
        for each in several:
            _check_ranks(each, None)
        return _launched([(_on_device(each, plans), plans) for each, plans in pairs], made, on_start)


def _foretold_plans(what: Asked) -> list[Planned]:
    """The plans, and what is predicted of them. Before anything is started: what does not fit is known in no time."""
    plans = _plans(what)
    messages = any(entry.collective == "send" for each in plans for entry in ledger(each.plan))
    started_here.check_network(what.fabric, what.priority, messages=messages)
    started_here.check_torch("run")
    if what.predict is None:
        return plans
    asked_of = scenario(what, what.predict)
    return [dataclasses.replace(each, prediction=predict(each.plan, asked_of)) for each in plans]


def _plans(what: Asked) -> list[Planned]:
    base = planned(what.model, what.layout, what.workload, domain=max(1, what.layout.world))
    check_runnable(what.model, what.layout, what.workload, base)
    applied = apply(base, what.policy)
    if applied.plan is not base:
        check_kept(base, applied.plan)
        check_runnable(what.model, what.layout, what.workload, applied.plan)
    made = Planned(POLICY if what.compared else BASELINE, what.policy, applied.plan, applied.refused)
    if not what.compared:
        return [made]
    if applied.plan is base:
        reasons = "; ".join(f"{one.axis}={one.name}: {one.reason}" for one in applied.refused)
        raise OptionError(f"ab: nothing to compare: {reasons or 'name a policy with --overlap'}")
    return [Planned(BASELINE, Policy(), base, ()), made]


def plans(what: Asked) -> list[Plan]:
    """What is run: the plan, or the baseline's and the policy's. Raises OptionError where it cannot be."""
    return [each.plan for each in _plans(what)]


def scenario(what: Asked, cluster: Cluster) -> Scenario:
    """The same question to the simulator."""
    return Scenario(
        model=what.model,
        cluster=cluster.with_gpus(what.layout.world),
        layout=what.layout,
        workload=what.workload,
        policy=what.policy,
    )


def _check_ranks(what: Asked, world: int | None) -> None:
    """Raises OptionError unless there are as many ranks as the layout has, and a core for each that is started here."""
    needed = what.layout.world
    if None not in (world, what.ranks) and world != what.ranks:
        raise OptionError(f"nproc: {what.ranks}, but {world} ranks were started by torchrun or srun: leave --nproc out")
    given = world if world is not None else what.ranks if what.ranks is not None else needed
    if given != needed:
        named = layout_text(what.layout) or "no axis"
        raise OptionError(f"layout: {named} makes {needed} ranks, but {given} are started: expected equal numbers")
    cores = started_here.cores()
    if world is None and needed > cores and not what.share_cores:
        raise OptionError(
            f"nproc: {needed} ranks on {cores} cores: expected a core for each, as ranks that share one measure each other; "
            "pass --share-cores to check bytes and results all the same"
        )


def _check_memory(what: Asked, plans: list[Planned]) -> None:
    """Raises OptionError where the ranks that are started here need more memory than there is. Unknown outside of Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    available = next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    if available is None:
        return
    needed = 0
    for each in plans:
        for role in each.plan.roles:
            needed += role.multiplicity * sum(compiled(each.plan, what.layout, role.ranks[0]).slots)
    if needed > available:
        raise OptionError(
            f"model: {needed / 2**30:.0f} GiB for weights, states and activations of all ranks, but {available / 2**30:.0f} GiB "
            "are free on this machine: use a smaller model, batch or sequence"
        )


def _on_device(what: Asked, plans: list[Planned]) -> Asked:
    """With the device decided. Raises OptionError where there are too few, or it cannot carry the plans out."""
    from underlap.run.backend import check_on_device, chosen
    from underlap.run.launch import local_ranks

    # Links of the host, and who interrupts whom on its cores, are nothing to a GPU.
    of_host = what.fabric is not None or what.priority != "default"
    if of_host and what.device == "cuda":
        raise OptionError("device: --fabric and --priority are about ranks on CPUs: leave them out, or --device cuda")
    kind = chosen("cpu" if of_host else what.device, local_ranks(dict(os.environ), what.layout.world))
    for each in plans:
        check_on_device(each.plan, what.layout, kind, graph=what.graph)
        left_out = [left for name, left in what.ceilings if name == each.name]
        if left_out:
            check_ceilings(left_out, each.plan, what.workload, kind, what.fabric)
    return dataclasses.replace(what, device=kind)


@contextlib.contextmanager
def _folder(what: Asked) -> Iterator[Path]:
    """Where records go: the asked folder, or one that is gone afterwards."""
    if what.record is not None:
        try:
            what.record.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise OptionError(f"record: {what.record}: no folder can be made there ({reason}): name another one") from None
        yield what.record
        return
    with tempfile.TemporaryDirectory(prefix="underlap-record-") as name:
        yield Path(name)


def _cleared(what: Asked) -> None:
    """No record of an earlier run is mixed with those of this one. Raises OptionError where there are some that may not go."""
    folder = what.record
    if folder is None:
        return
    kinds = [f"{name}{kind}" for name in (BASELINE, POLICY) for kind in ("", "-profile", "-profiled")]
    kinds.append(BOTH)
    old = [path for kind in kinds for path in sorted((folder / kind).glob("rank*.json"))]
    old += [path for name in (BASELINE, POLICY) for path in sorted(steps_of(folder, name).glob("*/rank*.json"))]
    if old and not what.force:
        raise OptionError(
            f"record: {folder} has records of an earlier run ({old[0].parent.name}): name another one, or pass --force"
        )
    for path in old:
        path.unlink()


def _prompts_at_once(work: Decode, layout: Layout) -> int:
    """As many as PROMPT_TOKENS allow, and one at least; with sp, which divides tokens, as many as the decode has at once."""
    count = micro_batch_size(work, layout)
    if layout.sp:
        return count
    return max(
        number
        for number in range(1, count + 1)
        if count % number == 0 and (number == 1 or number * work.context <= PROMPT_TOKENS)
    )


def _prompt(what: Asked) -> tuple[Prefill, Plan] | None:
    """What fills the caches of a decode: prompts as long as its context, of random tokens."""
    work = what.workload
    if not isinstance(work, Decode):
        return None
    prefill = Prefill(batch=work.batch, mbs=_prompts_at_once(work, what.layout), seq=work.context, precision=work.precision)
    check_workload(prefill, what.layout, what.model)
    plan = planned(what.model, what.layout, prefill, domain=max(1, what.layout.world))
    check_runnable(what.model, what.layout, prefill, plan)
    return prefill, plan


def _job(what: Asked, plans: list[Planned], folder: Path, made: Fabric | None = None) -> Job:
    return Job(
        plans=tuple((each.name, each.plan) for each in plans),
        model=what.model,
        layout=what.layout,
        workload=what.workload,
        repetitions=what.repetitions,
        folder=folder,
        outcome=folder / "outcome.json",
        checkpoint=what.checkpoint,
        prompt=_prompt(what),
        profile=what.profile,
        device=what.device or "cpu",
        graph=what.graph,
        timed=what.predict is not None,
        quiet=what.quiet,
        interface=INTERFACE if what.fabric is not None else None,
        priority=what.priority,
        ceilings=what.ceilings,
        each_step=what.each_step,
        share_cores=what.share_cores,
        fabric=made,
    )


def _launched(
    several: Sequence[tuple[Asked, list[Planned]]], made: Fabric | None, on_start: Callable[[list[int]], None] | None
) -> list[Trial]:
    from underlap.run.launch import Local, launch
    from underlap.run.worker import work_each

    first, _ = several[0]
    with contextlib.ExitStack() as folders:
        jobs = [_job(what, plans, folders.enter_context(_folder(what)), made) for what, plans in several]
        how = Local(ranks=first.layout.world, timeout_s=first.timeout_s, port=first.port, on_start=on_start)
        launch(work_each, [jobs] * how.ranks, started_here.over(made, how))
        return [_trial(what, plans, job) for (what, plans), job in zip(several, jobs, strict=True)]


def _trial(what: Asked, plans: list[Planned], job: Job) -> Trial:
    return trial_of(what, plans, job, scenario(what, what.predict) if what.predict is not None else None)


def _placed(what: Asked, plans: list[Planned], folder: Path, place: tuple[int, int]) -> Trial | None:
    from underlap.run.launch import joined
    from underlap.run.worker import work

    rank, world = place
    with joined(rank, world, what.timeout_s) as session:
        # Rank 0's folder is everybody's: elsewhere its records would not be found.
        shared = Path(session.from_first("folder", str(folder)))
        job = _job(what, plans, shared)
        work(session, job)
        made = _trial(what, plans, job) if rank == 0 else None
        session.leave()
        return made
