"""What only a GPU can tell about `underlap run`: streams, NCCL, graphs, device times. One command: python -m pytest tests/gpu

Written without a GPU at hand; the first run on one is the first at all. Half of it needs two GPUs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

import underlap  # noqa: E402 - only with torch
from tests.run import layouts  # noqa: E402 - only with torch
from tests.run.layouts import Case, Cases  # noqa: E402 - only with torch
from underlap.cli import main  # noqa: E402 - only with torch
from underlap.run.engine import Engine, trains  # noqa: E402 - only with torch
from underlap.run.lanes import StreamLanes  # noqa: E402 - only with torch
from underlap.run.launch import Local, launch  # noqa: E402 - only with torch
from underlap.run.recording import document  # noqa: E402 - only with torch
from underlap.run.session import Session  # noqa: E402 - only with torch
from underlap.run.stream_wire import Communicators  # noqa: E402 - only with torch
from underlap.run.worker import PROFILED, unmatched  # noqa: E402 - only with torch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(GPUS == 0, reason="no GPU: torch.cuda.is_available() is false")
needs_two = pytest.mark.skipif(GPUS < 2, reason=f"expected two GPUs, {GPUS} found")

REPOSITORY = Path(__file__).parents[2]
TRAIN = "train,gbs=4,mbs=2,seq=16,precision=fp32"
TOLERANCE = 1e-4
"""Of fp32 sums in another order, relative to the largest value. Products are not in TF32: that is torch's default."""
CLOSE = 0.03
LONG = "train,gbs=4,mbs=2,seq=2048,precision=bf16"
MODEL = """
name: wide
hidden: 4096
layers: 2
heads: 32
kv_heads: 8
head_dim: 128
intermediate: 14336
vocab: 32000
"""

OF_ONE = (Case("tiny-dense", "", TRAIN), Case("tiny-moe", "", TRAIN))
OF_TWO = (
    Case("tiny-dense", "tp=2", TRAIN),
    Case("tiny-dense", "tp=2", TRAIN, "tp=split_batch"),
    Case("tiny-dense", "tp=2,sp", TRAIN),
    Case("tiny-dense", "tp=2,sp", TRAIN, "tp=decompose:4"),
    Case("tiny-dense", "dp=2", TRAIN, "dp=bucket:100kB"),
    Case("tiny-dense", "dp=2,zero=1", TRAIN),
    Case("tiny-dense", "fsdp=2", TRAIN, "fsdp=prefetch:1"),
    Case("tiny-dense", "cp=2", TRAIN, "cp=ring"),
    Case("tiny-dense", "cp=2:ulysses", TRAIN),
    Case("tiny-dense", "pp=2", TRAIN),
    Case("tiny-dense", "pp=2,schedule=interleaved:2", "train,gbs=8,mbs=2,seq=16,precision=fp32", "pp=async_p2p", 4),
    Case("tiny-dense", "pp=2,schedule=dualpipev", "train,gbs=8,mbs=2,seq=16,precision=fp32", "", 4),
    Case("tiny-moe", "dp=2,ep=2", TRAIN),
)


@dataclasses.dataclass(frozen=True)
class Asked:
    cases: Cases
    graph: bool = False
    steps: int = 1


def engine_of(session: Session, case: Case) -> Engine:
    plan, job, refused = layouts.made(case)
    if refused:
        raise RuntimeError(f"{case.name}: {refused[0].reason}")
    return Engine(plan, job, session.rank, torch.device("cuda", session.rank), session.timeout_s)


def run_cases(session: Session, asked: Asked) -> None:
    """The entry of a rank: what each case computed, on the CPU's memory."""
    with session.connected():
        for case in asked.cases.cases:
            session.doing = f"running {case.name}"
            engine = engine_of(session, case)
            record = engine.recorded_step()
            if asked.graph:
                engine.capture()
            for _ in range(asked.steps - 1):
                record = engine.recorded_step()
            trace = document(engine.program, [record], "fp32", session.rank)
            kinds = ("gradient", "gradient_shard", "weight", "shard")
            found: dict[str, Any] = {
                kind: {key: value.detach().cpu().clone() for key, value in engine.tensors(kind).items()} for kind in kinds
            }
            found |= {
                "loss": engine.loss() if trains(engine.job) else None,
                "counted": engine.counted(),
                "tp_index": engine.rank.tp_index,
                "unmatched": unmatched(engine, trace, 1),
                "record": dataclasses.asdict(record),
            }
            torch.save(found, asked.cases.folder / f"{case.name} rank{session.rank}.pt")
            engine.close()


def results(folder: Path, cases: tuple[Case, ...], ranks: int, **how: Any) -> Iterator[tuple[Case, list[dict[str, Any]]]]:
    launch(run_cases, [Asked(Cases(cases, folder), **how)] * ranks, Local(ranks=ranks, timeout_s=120))
    for case in cases:
        yield case, [torch.load(folder / f"{case.name} rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def check_results(case: Case, found: list[dict[str, Any]]) -> None:
    loss, gradients = layouts.expected(case)
    assert layouts.total_loss(case, found) == pytest.approx(loss, rel=TOLERANCE), case.name
    wrong = {name: off for name, off in layouts.differences(case, found, gradients).items() if off > TOLERANCE}
    assert not wrong, (case.name, wrong)
    planned = {key: round(size) for key, size in layouts.planned_bytes(case).items()}
    routed = case.model == "tiny-moe"  # expected bytes, not exact ones
    assert routed or layouts.counted_bytes(found) == planned, case.name
    assert [one["unmatched"] for one in found] == [0] * len(found), case.name


def test_one_gpu_computes_what_the_cpu_does(tmp_path: Path) -> None:
    for case, found in results(tmp_path, OF_ONE, 1):
        check_results(case, found)


@needs_two
@pytest.mark.parametrize("case", OF_TWO, ids=lambda case: case.name)
def test_two_gpus_over_nccl_compute_what_the_cpu_does_with_the_planned_bytes(case: Case, tmp_path: Path) -> None:
    for one, found in results(tmp_path, (case,), 2):
        check_results(one, found)


def check_captured(folder: Path, cases: tuple[Case, ...], ranks: int) -> None:
    eager, graph = folder / "eager", folder / "graph"
    eager.mkdir()
    graph.mkdir()
    plain = dict(results(eager, cases, ranks, steps=4))
    for case, found in results(graph, cases, ranks, graph=True, steps=4):
        for one, other in zip(found, plain[case], strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
            for kind in ("weight", "shard"):
                for key, value in one[kind].items():
                    # Sums over tokens of the embedding are atomic: their order is not fixed.
                    assert layouts.relative(value, other[kind][key]) < 1e-5, (case.name, kind, key)
            assert one["record"]["device"]["graph"]
            assert one["unmatched"] == 0


def test_launches_of_a_graph_train_as_eager_steps_do(tmp_path: Path) -> None:
    check_captured(tmp_path, OF_ONE[:1], 1)


@needs_two
@pytest.mark.parametrize("case", [case for case in OF_TWO if case.model == "tiny-dense"], ids=lambda case: case.name)
def test_launches_of_a_graph_with_nccl_inside_train_as_eager_steps_do(case: Case, tmp_path: Path) -> None:
    check_captured(tmp_path, (case,), 2)


def test_device_times_are_in_order_and_inside_the_step(tmp_path: Path) -> None:
    for graph in (False, True):
        folder = tmp_path / str(graph)
        folder.mkdir()
        ((_, (found,)),) = results(folder, OF_ONE[:1], 1, graph=graph, steps=3)
        record, times = found["record"], found["record"]["device"]
        assert times["uncertainty_ns"] < 200_000
        latest: dict[str, int] = {}
        for begin, end, lane in zip(times["begin_ns"], times["end_ns"], times["lanes"], strict=True):
            assert record["started_ns"] <= begin <= end <= record["ended_ns"]
            assert begin >= latest.get(lane, 0) - 1000  # a mark's resolution
            latest[lane] = end
        if not graph:
            slack = times["uncertainty_ns"]
            assert all(begin >= issued - slack for begin, issued in zip(times["begin_ns"], record["begin_ns"], strict=True))


def ask_options(session: Session, folder: Path) -> None:
    """The entry of a rank: what its streams and communicators were made with."""
    with session.connected():
        engine = engine_of(session, Case("tiny-dense", "tp=2", TRAIN, "tp=ctas:8"))
        assert isinstance(engine.lanes, StreamLanes)
        assert isinstance(engine.groups, Communicators)
        options = engine.groups.of["tp"]._get_backend(torch.device("cuda")).options
        told = {
            "priorities": {e.lane: s.priority for e, s in zip(engine.lanes.plan.streams, engine.lanes.streams, strict=True)},
            "high": options.is_high_priority_stream,
            "ctas": [options.config.min_ctas, options.config.max_ctas],
        }
        (folder / f"rank{session.rank}.json").write_text(json.dumps(told))
        engine.step()
        engine.close()


@needs_two
def test_priorities_and_thread_blocks_reach_cuda_and_nccl(tmp_path: Path) -> None:
    launch(ask_options, [tmp_path] * 2, Local(ranks=2, timeout_s=120))
    for rank in range(2):
        told = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert told["priorities"]["compute"] == 0
        assert told["priorities"]["tp"] < 0
        assert told["high"]
        assert told["ctas"] == [8, 8]


# ---- the command


def command(folder: Path, *more: str) -> dict[str, Any]:
    (folder / "wide.yaml").write_text(MODEL)
    asked = ["run", "--model", str(folder / "wide.yaml"), "--workload", LONG, "--device", "cuda", "--json", "-", *more]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def check_profile(record: Path) -> None:
    """Hidden and exposed time of the profiler's trace and of the record agree, in the calmest step, within 3 % of it."""
    gaps = []
    for step in range(1, PROFILED):
        profiled = underlap.analyze(f"{record}/baseline-profile", steps=[step]).summary
        own = underlap.analyze(f"{record}/baseline-profiled", steps=[step]).summary
        assert profiled is not None
        assert own is not None
        hidden = abs(profiled.hidden.mean_ns - own.hidden.mean_ns)
        exposed = abs(profiled.exposed.mean_ns - own.exposed.mean_ns)
        compute = abs(profiled.compute.mean_ns - own.compute.mean_ns)
        gaps.append(max(hidden, exposed, compute) / own.span.mean_ns)
    assert min(gaps) <= CLOSE, gaps


def test_the_command_runs_on_one_gpu_and_its_record_agrees_with_the_profiler(tmp_path: Path) -> None:
    record = tmp_path / "record"
    trial = command(tmp_path, "--record", str(record), "--profile")
    assert trial["library"] == "nccl"
    assert trial["variants"][0]["unmatched_keys"] == 0
    check_profile(record)


@needs_two
def test_two_half_batches_hide_communication_and_the_profiler_says_as_much(tmp_path: Path) -> None:
    record = tmp_path / "record"
    more = ["--layout", "tp=2", "--overlap", "tp=split_batch", "--record", str(record), "--profile"]
    trial = command(tmp_path, *more)
    assert trial["variants"][0]["unmatched_keys"] == 0
    assert all(row["planned_bytes"] == row["counted_bytes"] for row in trial["variants"][0]["bytes_by_axis"])
    assert trial["baseline"]["summary"]["hidden"]["mean_ns"] > 0
    check_profile(record)


@needs_two
def test_baseline_and_policy_are_compared_eager_and_as_graphs(tmp_path: Path) -> None:
    for more in ([], ["--graph"]):
        trial = command(tmp_path, "--layout", "tp=2", "--overlap", "tp=split_batch", "--ab", *more)
        assert trial["ab"]["bytes_equal"]
        assert trial["ab"]["hidden_ns"][1] > trial["ab"]["hidden_ns"][0]


@needs_two
def test_under_torchrun_each_rank_takes_a_gpu_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "trial.json"
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "underlap"]
    asked = ["run", "--model", "tiny-dense", "--layout", "pp=2", "--workload", TRAIN, "--device", "cuda", "--json", str(out)]
    done = subprocess.run(  # noqa: PLW1510 - its code is looked at below
        [*job, *asked], cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(out.read_text())["library"] == "nccl"


def test_more_ranks_than_gpus_are_refused_in_one_line() -> None:
    ranks = GPUS + 1
    asked = ["run", "--model", "tiny-dense", "--layout", f"dp={ranks}", "--device", "cuda", "--share-cores"]
    result = CliRunner().invoke(main, [*asked, "--workload", f"train,gbs={ranks},mbs=1,seq=16"])
    assert result.exit_code == 2
    assert f"expected a GPU for each rank, {GPUS} found for {ranks} ranks" in result.output
