"""The engine as it runs on a GPU, with plain objects for streams and events: who is asked for what, in what order.

A library that sends nothing stands in for NCCL. Results over streams are held by the launch at the end, with gloo.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

import torch.distributed as dist  # noqa: E402 - only with torch
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402 - only with torch

import underlap  # noqa: E402 - only with torch
from tests.run import layouts  # noqa: E402 - only with torch
from tests.run.layouts import Case, Cases  # noqa: E402 - only with torch
from tests.run.rehearsal import FakeCalls, Posted, Rehearsal  # noqa: E402 - only with torch
from underlap import inputs  # noqa: E402 - only with torch
from underlap.errors import OptionError, RunError  # noqa: E402 - only with torch
from underlap.plan import OpKind  # noqa: E402 - only with torch
from underlap.planner import plan as planned  # noqa: E402 - only with torch
from underlap.run import backend as backends  # noqa: E402 - only with torch
from underlap.run.cuda_calls import CudaCalls  # noqa: E402 - only with torch
from underlap.run.engine import Engine  # noqa: E402 - only with torch
from underlap.run.launch import Local, launch, local_rank, local_ranks  # noqa: E402 - only with torch
from underlap.run.recording import document, host_share, keys  # noqa: E402 - only with torch
from underlap.run.session import Session  # noqa: E402 - only with torch

ONE = "train,gbs=4,mbs=2,seq=16,precision=fp32"
Library = tuple[Rehearsal, Engine]


@pytest.fixture
def silent() -> Iterator[Any]:
    """A function that makes an engine of rank 0 on fake streams, among ranks that do not exist."""
    engines: list[Engine] = []

    def make(layout: str, policy: str = "", model: str = "tiny-dense", workload: str = ONE, layers: int = 2) -> Library:
        plan, job, refused = layouts.made(Case(model, layout, workload, policy, layers))
        assert not refused
        world = job.layout.world
        if not dist.is_initialized():
            dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        backend = Rehearsal("fake")
        engines.append(Engine(plan, job, 0, torch.device("cpu"), 10.0, backend))
        return backend, engines[-1]

    yield make
    if dist.is_initialized():
        dist.destroy_process_group()


def test_one_rank_asks_for_one_stream_and_waits_for_nothing(silent: Any) -> None:
    backend, engine = silent("")
    engine.recorded_step()
    assert [stream.priority for stream in backend.fake.streams] == [0]
    assert not [entry for entry in backend.fake.log if entry[0] == "wait"]
    assert backend.made == []


@pytest.mark.parametrize(
    ("layout", "policy"),
    [("tp=2", ""), ("tp=2", "tp=split_batch"), ("tp=2,dp=2", "dp=bucket:100kB"), ("cp=2", "cp=ring"), ("pp=2", "")],
)
def test_calls_are_those_of_the_stream_plan_in_the_order_of_the_program(silent: Any, layout: str, policy: str) -> None:
    backend, engine = silent(layout, policy)
    backend.fake.log.clear()
    engine.recorded_step()
    plan = engine.lanes.plan
    # Events were made first, so their numbers are those of the plan; marks come behind.
    begun = {mark.number: at for at, mark in enumerate(engine.lanes.begun)}
    ended = {mark.number: at for at, mark in enumerate(engine.lanes.ended)}
    wanted: list[tuple[str, int, int]] = [("record", 0, 0)]
    for at, placed in enumerate(plan.placed):
        stream = placed.stream
        waits = [("wait", stream, event) for event in placed.waits]
        begin = ("begin", stream, at)
        wanted += [begin, *waits] if placed.kind == OpKind.WAIT else [*waits, begin]
        wanted.append(("end", stream, at))
        if placed.event >= 0:
            wanted.append(("record", stream, placed.event))
    wanted += [("wait", 0, event) for event in plan.joins]
    found = []
    for what, stream, number in backend.fake.log:
        if what == "stamp" and number in begun:
            found.append(("begin", stream, begun[number]))
        elif what == "stamp" and number in ended:
            found.append(("end", stream, ended[number]))
        elif what in ("record", "wait"):
            found.append((what, stream, number))
    assert found == wanted
    assert [entry[0] for entry in backend.fake.log[:3]] == ["synchronize", "stamp", "synchronize"]
    assert backend.fake.log[-1][0] == "synchronize"


def test_every_collective_is_called_on_the_stream_of_its_channel(silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = silent("tp=2,dp=2", "tp=split_batch")
    called: list[tuple[int, int]] = []
    real = dist.all_reduce

    def noted(tensor: Any, *more: Any, **how: Any) -> Any:
        assert how["async_op"]
        called.append((backend.fake.current[-1], dist.get_world_size(how["group"])))
        return real(tensor, *more, **how)

    monkeypatch.setattr(dist, "all_reduce", noted)
    engine.step()
    streams = {stream.lane: number for number, stream in enumerate(engine.lanes.plan.streams)}
    issued = [streams[str(one.channel)] for one in engine.program.instructions if one.kind == OpKind.ISSUE]
    assert [stream for stream, _ in called] == issued
    assert {streams["tp"], streams["dp"]} == set(issued)


def test_a_reduction_to_parts_is_the_librarys_own(silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, engine = silent("tp=2,sp")
    called: list[str] = []
    for name in ("reduce_scatter_single", "all_to_all_single"):
        real = getattr(dist, name)
        monkeypatch.setattr(dist, name, lambda *a, _real=real, _name=name, **k: called.append(_name) or _real(*a, **k))
    engine.step()
    assert set(called) == {"reduce_scatter_single"}


def test_a_step_of_a_ring_sends_and_receives_at_once(silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, engine = silent("cp=2", "cp=ring")
    batches: list[list[str]] = []
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda ops: batches.append([op.op.__name__ for op in ops]) or [])
    engine.step()
    assert batches
    assert all(batch == ["irecv", "isend"] for batch in batches)


def test_each_direction_between_stages_has_a_communicator_of_two(silent: Any) -> None:
    backend, _ = silent("pp=2")
    own = [made for made in backend.made if made[3]]
    assert own == [
        ("pp backward 1 to 0", (0, 1), None, True),
        ("pp forward 0 to 1", (0, 1), None, True),
    ]


def test_thread_blocks_of_the_policy_reach_the_group(silent: Any) -> None:
    backend, _ = silent("tp=2,dp=2", "dp=ctas:8")
    asked = {(name, ctas) for name, _, ctas, _ in backend.made}
    assert ("dp", 8) in asked
    assert ("tp", None) in asked


def test_routed_rows_are_lent_to_both_streams_that_use_them(silent: Any) -> None:
    backend, engine = silent("dp=2,ep=2", model="tiny-moe")
    # The numbers of rows that a rank that does not exist tells are nobody's: only the issue of a dispatch is looked at.
    dispatch = next(
        at for at, one in enumerate(engine.program.instructions) if one.kind == OpKind.ISSUE and one.role == "experts.dispatch"
    )
    instruction = engine.program.instructions[dispatch]
    rows = torch.zeros(3, 4)
    engine.memory.tensors[instruction.writes[0].cell] = rows
    engine.wire._lend(instruction, dispatch)
    stream = engine.lanes.plan.placed[dispatch].stream
    assert {(rows.data_ptr(), 0), (rows.data_ptr(), stream)} <= set(backend.fake.lent)


# ---- graphs


def test_a_captured_step_forks_from_and_joins_to_the_root_and_is_then_launched(silent: Any) -> None:
    backend, engine = silent("tp=2", "tp=split_batch")
    engine.step()
    backend.fake.log.clear()
    engine.capture()
    inside = backend.fake.log[1:]
    assert inside[0] == ("capture", 0, 1)
    assert inside[1] == ("record", 0, 0)
    assert inside[-1] == ("captured", 0, 1)
    assert ("synchronize", -1, -1) not in inside
    backend.fake.log.clear()
    record = engine.recorded_step()
    assert [what for what, *_ in backend.fake.log] == ["synchronize", "stamp", "synchronize", "launch", "synchronize"]
    assert record.device is not None
    assert record.device.graph
    assert len(set(record.begin_ns)) == len(set(record.end_ns)) == 1


def test_another_length_of_cache_is_captured_anew(silent: Any) -> None:
    backend, engine = silent("", workload="decode,batch=2,context=8,precision=fp32")
    engine.step()
    engine.capture()
    engine.step()
    assert backend.fake.captures == 1
    engine.rank.length -= 1
    engine.step()
    assert backend.fake.captures == 2


def test_what_routing_decides_cannot_be_captured(silent: Any) -> None:
    _, engine = silent("", model="tiny-moe")
    with pytest.raises(OptionError, match=r"^graph: .*router.choose.*: the host reads how many rows each expert gets"):
        engine.capture()


# ---- the record


def test_the_record_of_a_device_joins_the_plan_and_is_read_as_a_trace(silent: Any, tmp_path: Path) -> None:
    _, engine = silent("tp=2", "tp=split_batch")
    for graph in (False, True):
        if graph:
            engine.capture()
        records = [engine.recorded_step() for _ in range(2)]
        trace = document(engine.program, records, "fp32", 3)
        kinds = {0: ("compute",), 1: ("compute",), 2: ("issue", "transfer"), 3: ("wait",)}
        planned_keys = sorted((what, one.key) for one in engine.program.instructions for what in kinds[int(one.kind)]) * 2
        assert sorted(keys(trace)) == sorted(planned_keys)
        (tmp_path / "rank0.json").write_text(json.dumps(trace))
        report = underlap.analyze(tmp_path / "rank0.json")
        # All of both steps.
        issued = sum(one.kind == OpKind.ISSUE for one in engine.program.instructions)
        assert [(row.axis, row.collective, row.kernels) for row in report.families] == [("tp", "all_reduce", 2 * issued)]
        assert report.ranks[0].compute_ns > 0
        assert not [note for note in report.notes if "no launch" in note.text]
        assert 0 <= host_share(engine.program, records[0]) <= 1


def test_idle_time_is_the_hosts_only_as_long_as_it_had_not_issued(silent: Any) -> None:
    _, engine = silent("")
    record = engine.recorded_step()
    assert record.device is not None
    size = len(engine.program.instructions)
    # Each runs 10 ns, 30 ns apart, and is issued 5 ns before its begin: of every gap of 20 ns the host has 15.
    times = dataclasses.replace(
        record.device, begin_ns=[30 * at for at in range(1, size + 1)], end_ns=[30 * at + 10 for at in range(1, size + 1)]
    )
    late = dataclasses.replace(
        record, end_ns=[30 * at - 5 for at in range(1, size + 1)], started_ns=10, ended_ns=10 + 30 * size, device=times
    )
    assert host_share(engine.program, late) == pytest.approx(15 / 30)
    early = dataclasses.replace(late, end_ns=[0] * size)
    assert host_share(engine.program, early) == 0


# ---- which device


def test_without_a_gpu_the_cpu_is_chosen_and_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backends.chosen(None, 2) == "cpu"
    with pytest.raises(OptionError, match=r"^device: expected a GPU for each rank, 0 found for 2 ranks of this machine"):
        backends.chosen("cuda", 2)
    with pytest.raises(RunError, match=r"^expected a GPU for each rank, 0 found: there is none for local rank 1"):
        backends.place("cuda", 1)


def test_gpus_are_chosen_where_each_rank_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [backends.chosen(asked, ranks) for asked, ranks in ((None, 2), (None, 3), ("cpu", 2), ("cuda", 1))] == [
        "cuda",
        "cpu",
        "cpu",
        "cuda",
    ]
    assert backends.place("cuda", 1) == torch.device("cuda", 1)


def test_a_graph_on_the_cpu_and_one_of_a_routed_step_are_refused_before_anything_starts() -> None:
    layout, workload = inputs.layout("tp=2"), inputs.workload(ONE)
    dense = planned(inputs.model("tiny-dense"), layout, workload, domain=2)
    routed = planned(inputs.model("tiny-moe"), layout, workload, domain=2)
    with pytest.raises(OptionError, match=r"^graph: a graph needs a GPU for each rank: leave --graph out"):
        backends.check_on_device(dense, layout, "cpu", graph=True)
    backends.check_on_device(dense, layout, "cuda", graph=True)
    backends.check_on_device(routed, layout, "cuda", graph=False)
    with pytest.raises(OptionError, match=r"^graph: .*the host reads how many rows"):
        backends.check_on_device(routed, layout, "cuda", graph=True)


def test_a_rank_of_a_job_takes_the_gpu_of_its_number_on_its_machine() -> None:
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_TASKS_PER_NODE": "4(x2)"}
    assert [local_rank(each, 5) for each in (torchrun, slurm, {})] == [1, 1, 5]
    assert [local_ranks(each, 8) for each in (torchrun, slurm, {})] == [4, 4, 8]


# ---- the calls that only a GPU answers


def test_a_group_of_nccl_is_asked_for_with_its_priority_and_thread_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Options:
        def __init__(self, *, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace(min_ctas=None, max_ctas=None)

    asked: list[dict[str, Any]] = []
    signature = inspect.signature(dist.new_group)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(dist, "new_group", lambda *ranks, **how: asked.append(signature.bind(*ranks, **how).arguments))
    gpu = backends.Streams(torch.device("cuda", 1), FakeCalls())
    gpu.group((0, 1), "dp", 8, alone=False, timeout_s=5.0)
    gpu.group((0, 1), "pp forward 0 to 1", None, alone=True, timeout_s=5.0)
    assert [(one["backend"], one["device_id"], one["use_local_synchronization"]) for one in asked] == [
        ("nccl", torch.device("cuda", 1), False),
        ("nccl", torch.device("cuda", 1), True),
    ]
    assert all(one["pg_options"].is_high_priority_stream for one in asked)
    blocks = [(one["pg_options"].config.min_ctas, one["pg_options"].config.max_ctas) for one in asked]
    assert blocks == [(8, 8), (None, None)]


def test_torch_has_what_the_shell_over_its_streams_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call goes to the installed torch by its signature; none can be carried out without a GPU."""
    inspect.signature(torch.cuda.Stream.__new__).bind(torch.cuda.Stream, torch.device("cuda", 0), priority=-1)
    inspect.signature(torch.cuda.Event.__new__).bind(torch.cuda.Event, enable_timing=True, external=True)
    inspect.signature(torch.cuda.graph.__init__).bind(None, torch.cuda.CUDAGraph, stream=None, capture_error_mode="thread_local")
    for owner, names in (
        (torch.cuda.Stream, ("wait_event",)),
        (torch.cuda.Event, ("record", "elapsed_time")),
        (torch.cuda.CUDAGraph, ("replay",)),
        (torch.Tensor, ("record_stream",)),
        (torch.cuda, ("stream", "synchronize", "set_device", "device_count")),
    ):
        assert all(callable(getattr(owner, name)) for name in names)

    noted: list[str] = []
    told = SimpleNamespace(
        record=lambda *on: noted.append(f"record on {len(on)}"),
        wait_event=lambda event: noted.append("wait"),
        elapsed_time=lambda end: 1.25,
        record_stream=lambda stream: noted.append("lend"),
    )
    calls = CudaCalls(torch.device("cuda", 0))
    calls.record(told, told)
    calls.stamp(told)
    calls.wait(told, told)
    calls.lend(told, told)
    assert noted == ["record on 1", "record on 0", "wait", "lend"]
    # torch counts milliseconds.
    assert calls.times_ns(told, [told, told]) == [1_250_000, 1_250_000]


# ---- results


OVER_GLOO = (
    Case("tiny-dense", "tp=2", ONE, "tp=split_batch"),
    Case("tiny-dense", "tp=2,sp", ONE),
    Case("tiny-dense", "fsdp=2", ONE, "fsdp=prefetch:1"),
    Case("tiny-dense", "dp=2,zero=1", ONE),
    Case("tiny-dense", "cp=2", ONE, "cp=ring"),
    Case("tiny-dense", "cp=2:ulysses", ONE),
    Case("tiny-dense", "pp=2", ONE),
    Case("tiny-moe", "dp=2,ep=2", ONE),
)


def both(session: Session, asked: Cases) -> None:
    """The entry of a rank: each case as on the CPU and as on streams; what differs is written down."""
    posted = Posted()
    with session.connected():
        for case in asked.cases:
            session.doing = f"running {case.name}"
            found = []
            for backend in (None, Rehearsal()):
                plan, job, _ = layouts.made(case)
                engine = Engine(plan, job, session.rank, torch.device("cpu"), session.timeout_s, backend)
                dist.isend = posted if backend and "pp" in case.layout else posted.send
                engine.recorded_step()
                engine.recorded_step()
                posted.settle()
                kinds = ("gradient", "gradient_shard", "weight", "shard", "state")
                tensors = {(kind, *key): value.clone() for kind in kinds for key, value in engine.tensors(kind).items()}
                found.append((engine.loss(), tensors, engine.counted()))
                dist.barrier()
                engine.close()
            one, other = found
            same = one[0] == other[0] and one[2] == other[2]
            wrong = [key for key, value in one[1].items() if not torch.equal(value, other[1][key])]
            text = json.dumps({"same": same, "wrong": [str(key) for key in wrong], "compared": len(one[1])})
            (asked.folder / f"{case.name} rank{session.rank}.json").write_text(text)


def test_results_and_bytes_over_streams_are_those_of_the_cpu_to_the_bit(tmp_path: Path) -> None:
    launch(both, [Cases(OVER_GLOO, tmp_path)] * 2, Local(ranks=2, timeout_s=60))
    for case in OVER_GLOO:
        for rank in range(2):
            found = json.loads((tmp_path / f"{case.name} rank{rank}.json").read_text())
            assert found["same"], case
            assert found["wrong"] == []
            assert found["compared"] > 0
