"""The configuration held against the trace: which rule accounts for a verdict, and what is switched on in vain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import underlap
from tests.lint.inputs import lint
from tests.timelines import COMMUNICATION, COMPUTE, Call, Host, Op, build, info
from underlap.analyze.configuration import configured
from underlap.lint_report import LintReport
from underlap.render.terminal import LINES, render
from underlap.report import EngagementRow, Report
from underlap.timeline import Group, HostKind, Timeline

ROOT = Path(__file__).parents[2]
ONE_QUEUE = "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun pretrain_gpt.py --use-distributed-optimizer --overlap-grad-reduce\n"


def held(timeline: Timeline, found: LintReport) -> Report:
    return configured(underlap.analyze(timeline), timeline, found)


def only(report: Report) -> EngagementRow:
    assert report.configuration is not None
    (row,) = report.configuration.engagement
    return row


def steps(reductions: Sequence[tuple[int, int]], *, lane: str = "9", collective: str = "reduce_scatter") -> Timeline:
    """Two steps of 1,000 ns with compute up to 600, and these reductions in each."""
    ops, calls, host = [], [], []
    for step in range(2):
        at = 1000 * step
        host.append(Host(f"ProfilerStep#{step}", at, at + 990))
        ops += [Op(COMPUTE, at + 10, at + 600, launch=at + 5), Op(COMPUTE, at + 900, at + 980, launch=at + 6)]
        for start, end in reductions:
            ops.append(Op(COMMUNICATION, at + start, at + end, len(calls), lane=lane, launch=at + 7))
            calls.append(Call(collective, payload=1 << 20, group=0))
    groups = [Group(name="1", description="DATA_PARALLEL_GROUP", size=8, ranks=None)]
    return build(sorted(ops, key=lambda op: op.start), calls=calls, host=host, groups=groups, ranks=[info(world=8)])


def test_without_a_configuration_nothing_is_said_of_it() -> None:
    report = underlap.analyze(steps([(610, 890)]))

    assert report.configuration is None
    assert all(family.verdict is not None and family.verdict.rules == [] for family in report.families)


def test_a_verdict_names_the_rule_that_accounts_for_it(tmp_path: Path) -> None:
    report = held(steps([(610, 750), (760, 890)]), lint(tmp_path, {"train.sh": ONE_QUEUE}))

    (family,) = report.families
    assert family.verdict is not None
    assert (family.verdict.cause, family.verdict.rules) == ("dependent", ["connections-dp"])
    assert report.configuration is not None
    (finding,) = report.configuration.findings
    assert finding.rule == "connections-dp"
    assert finding.explains == [f"{family.axis + ' ' if family.axis else ''}reduce_scatter: dependent"]
    assert finding.settings[0] == "CUDA_DEVICE_MAX_CONNECTIONS=1 (train.sh:1)"


def test_a_rule_about_another_collective_explains_nothing(tmp_path: Path) -> None:
    script = "torchrun pretrain_gpt.py --expert-model-parallel-size 1 --overlap-moe-expert-parallel-comm\n"
    report = held(steps([(610, 750), (760, 890)]), lint(tmp_path, {"train.sh": script}))

    assert report.configuration is not None
    assert [(row.rule, row.explains) for row in report.configuration.findings] == [("ep-overlap-needs", [])]


def test_figures_are_the_same_with_and_without_a_configuration(tmp_path: Path) -> None:
    timeline = steps([(300, 750)])
    plain, known = underlap.analyze(timeline), held(timeline, lint(tmp_path, {"train.sh": ONE_QUEUE}))

    assert plain.summary == known.summary
    assert (plain.ranks, plain.causes, plain.findings) == (known.ranks, known.causes, known.findings)


BUCKETS = {
    "one bucket at the end": ([(610, 890)], False, "a single bucket"),
    "two buckets, none beside compute": ([(610, 700), (710, 890)], False, "none of the reductions"),
    "two buckets, one beside compute": ([(300, 500), (610, 890)], True, "beside compute"),
}


@pytest.mark.parametrize("form", BUCKETS)
def test_the_overlap_of_gradients_is_engaged_or_not(form: str, tmp_path: Path) -> None:
    reductions, engaged, says = BUCKETS[form]
    row = only(held(steps(reductions), lint(tmp_path, {"train.sh": ONE_QUEUE.partition("\n")[2]})))

    assert (row.engaged, says in row.text) == (engaged, True)
    assert row.settings == ["overlap_grad_reduce=true (train.sh:1)"]


DUAL = "vllm serve model --data-parallel-size 8 --enable-expert-parallel --all2all-backend deepep_high_throughput --enable-dbo\n"


@pytest.mark.parametrize(
    ("lane", "times", "engaged", "says"),
    [
        ("7", (610, 890), False, "single stream"),
        ("9", (610, 890), False, "no second half"),
        ("9", (300, 500), True, "beside compute"),
    ],
)
def test_two_batches_need_a_second_stream_and_a_second_half(
    lane: str, times: tuple[int, int], engaged: bool, says: str, tmp_path: Path
) -> None:
    row = only(held(steps([times], lane=lane, collective="dispatch"), lint(tmp_path, {"serve.sh": DUAL})))

    assert (row.engaged, says in row.text) == (engaged, True)


def test_background_transfers_are_not_called_missing(tmp_path: Path) -> None:
    ops = [Op(COMPUTE, 0, 10), Op(COMMUNICATION, 10, 12, 0, name="deep_ep::internode_ll::dispatch", lane="7")]
    row = only(held(build(ops, calls=[Call("dispatch")]), lint(tmp_path, {"serve.sh": DUAL})))

    assert row.engaged is None


ASYNC = """\
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = 1
enable_async_tensor_parallel = true
[compile]
enable = true
"""


@pytest.mark.parametrize(("operator", "engaged"), [("aten::mm", False), ("symm_mem::fused_all_gather_matmul", True)])
def test_fused_operators_are_there_or_not(operator: str, engaged: bool, tmp_path: Path) -> None:
    timeline = build(
        [Op(COMMUNICATION, 0, 10, 0, lane="9"), Op(COMPUTE, 10, 30)],
        calls=[Call("all_gather")],
        host=[Host(operator, 0, 5, HostKind.OPERATOR)],
    )
    row = only(held(timeline, lint(tmp_path, {"job.toml": ASYNC})))

    assert row.engaged is engaged


def test_a_trace_without_the_collective_decides_nothing(tmp_path: Path) -> None:
    for files in ({"serve.sh": DUAL}, {"job.toml": ASYNC}, {"train.sh": ONE_QUEUE}):
        row = only(held(build([Op(COMPUTE, 0, 10)]), lint(tmp_path, files)))
        assert (row.engaged, "nothing can be said" in row.text) == (None, True)


def test_the_recorded_example_with_one_bucket_is_not_engaged(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("strategy: ddp\n")
    one, several = (
        underlap.analyze(ROOT / f"examples/traces/{name}", config=[config]) for name in ("ddp_one_bucket", "ddp_small_buckets")
    )

    assert [only(report).engaged for report in (one, several)] == [False, True]


def test_the_screen_names_the_rule_and_what_is_on_in_vain_within_its_lines(tmp_path: Path) -> None:
    report = held(steps([(610, 890)]), lint(tmp_path, {"train.sh": ONE_QUEUE}))
    screen = render(report).plain
    flat = " ".join(screen.split())

    assert "config: connections-dp explains" in flat
    assert "config: overlap of the gradient reduction is on, and not engaged: one reduction of gradients per step" in flat
    assert len(screen.splitlines()) <= LINES


def test_a_configuration_that_explains_nothing_says_so_on_the_screen(tmp_path: Path) -> None:
    report = held(steps([(300, 500), (610, 890)]), lint(tmp_path, {"train.sh": "torchrun pretrain_gpt.py --bf16\n"}))

    assert "config: nothing in it explains the verdicts" in render(report).plain
