"""Reports written by hand: renderers and the command line are tested without a reader or an analyzer."""

from __future__ import annotations

import msgspec

from underlap.report import (
    FamilyRow,
    InstanceRow,
    NoteRow,
    PartSummary,
    Provenance,
    RankRow,
    Report,
    Source,
    StepSummary,
    Summary,
    UnmatchedRow,
    Window,
)

MS = 1_000_000
SPAN = 172_400_000
HOSTILE = "evil\x1b[31m\x1b]0;title\x07[bold red]x[/]\r\n\x9b2J\u202e\u4e2d<int, {lambda()#1}>" + "y" * 300


def replace(record, **changes):
    return msgspec.structs.replace(record, **changes)


def part(mean_ms, spread_ms=0.0):
    mean, spread = round(mean_ms * MS), round(spread_ms * MS)
    return PartSummary(mean_ns=mean, min_ns=mean - spread, max_ns=mean + spread, share_of_span=mean / SPAN)


def rank_row(rank, device=0):
    return RankRow(
        rank=rank,
        device=device,
        source_file=f"rank{rank}_trace.json.gz",
        start_ns=0,
        end_ns=SPAN,
        span_ns=SPAN,
        compute_ns=124 * MS,
        fused_ns=0,
        communication_ns=69_600_000,
        hidden_ns=38 * MS,
        under_fused_ns=0,
        exposed_ns=31_600_000,
        copy_ns=2_100_000,
        idle_ns=14_700_000,
        hidden_share=38 / 69.6,
        compute_kernels=5120,
        communication_kernels=352,
        fused_kernels=0,
        copies=64,
    )


def family(axis="dp", collective="reduce_scatter", exposed_ms=27.2, **changes):
    row = FamilyRow(
        axis=axis,
        axis_source="group description",
        axis_candidates=[],
        collective=collective,
        library=["nccl"],
        ranks_counted=8,
        count=32,
        kernels=256,
        payload_bytes=15_200_000_000,
        payload_known_share=1.0,
        communication_ns=8 * 30 * MS,
        fused_ns=0,
        hidden_ns=8 * 3 * MS,
        under_fused_ns=0,
        exposed_ns=round(8 * exposed_ms * MS),
        exposed_share_ns=round(8 * exposed_ms * MS),
        mean_communication_ns=30 * MS,
        mean_exposed_share_ns=round(exposed_ms * MS),
        mean_payload_bytes=1_900_000_000,
        hidden_share=0.1,
        busbw_kernel_gbps=85.37,
    )
    return replace(row, **changes)


def summary(spread_ms=0.0, most_exposed_rank=None):
    zero = part(0)
    return Summary(
        span=part(172.4, spread_ms),
        compute=part(124, spread_ms),
        fused=zero,
        communication=part(69.6, spread_ms),
        hidden=part(38, spread_ms),
        under_fused=zero,
        exposed=part(31.6, spread_ms),
        copy=part(2.1),
        idle=part(14.7, spread_ms),
        hidden_share=38 / 69.6,
        most_exposed_rank=most_exposed_rank,
        unmatched_ns=0,
        unmatched_kernels=0,
    )


def source(rank, file=None):
    return Source(
        file=file or f"rank{rank}_trace.json.gz",
        ranks=[rank],
        rank_source="distributedInfo",
        world_size=64,
        resolution_ns=1,
        on_cpu=False,
        device_model="NVIDIA H100",
    )


def instance(**changes):
    row = InstanceRow(
        rank=0,
        device=0,
        lane="20",
        axis="dp",
        collective="all_reduce",
        library="nccl",
        group="1",
        group_size=8,
        sequence=7,
        dtype="BFloat16",
        payload_bytes=1024,
        start_ns=10,
        end_ns=40,
        duration_ns=30,
        hidden_ns=10,
        exposed_ns=20,
        launch_ns=None,
        call_site="c10d::allreduce_",
        step="2",
        kernel="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        outlier=False,
        source_file="rank0_trace.json.gz",
        source_row=123,
        perfetto_ts="1700000000000000010",
    )
    return replace(row, **changes)


def empty_report(**changes):
    """A readable trace without a single operation."""
    report = Report(
        origin_ns="1700000000000000000",
        provenance=Provenance(kind="measured", underlap_version="0.1.0", sources=[source(0)], ranks_counted=[], world_size=None),
        window=Window(kind="whole", definition="First to last device event.", steps_found=[], steps_used=[], outside_ns=0),
        summary=None,
        step_summary=None,
        ranks=[],
        families=[],
        steps=[],
        lanes=[],
        instances=[],
        unmatched=[],
        notes=[NoteRow(code="no-operations", text="The trace has no device operations: was the profiler given CUDA activity?")],
    )
    return replace(report, **changes)


def quiet_report():
    """One rank that never communicates."""
    zero = part(0)
    return replace(
        empty_report(),
        provenance=replace(empty_report().provenance, ranks_counted=[0], world_size=1),
        summary=replace(
            summary(), communication=zero, hidden=zero, exposed=zero, hidden_share=None, compute=part(124), idle=part(46.3)
        ),
        ranks=[rank_row(0)],
        notes=[],
    )


def one_rank_report(**changes):
    return replace(
        empty_report(),
        **{
            "provenance": replace(empty_report().provenance, ranks_counted=[0], world_size=64),
            "window": steps_window(),
            "summary": summary(),
            "step_summary": StepSummary(
                count=4, median_ns=43_100_000, min_ns=42_800_000, max_ns=44_950_000, slowest_step="5", slowest_rank=0
            ),
            "ranks": [rank_row(0)],
            "families": [family(), family("tp", "all_gather", 4.4, hidden_share=0.86)],
            "instances": [instance(), instance(sequence=8)],
            "notes": [],
            **changes,
        },
    )


def steps_window():
    return Window(
        kind="steps",
        definition="Complete steps.",
        steps_found=["1", "2", "3", "4", "5", "6"],
        steps_used=["2", "3", "4", "5"],
        outside_ns=0,
    )


def many_ranks_report(families=9, notes=7):
    """As much as a usual trace can have of everything: fused kernels, unknown axes, unclassified kernels, notes."""
    collectives = [
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "send_recv",
        "all_reduce",
        "broadcast",
        "barrier",
        "gather",
        "reduce",
    ]
    rows = [family("dp_shard x cp", name, 15.83 / 2**index) for index, name in enumerate(collectives[:families])]
    rows[1] = replace(rows[1], axis=None, axis_candidates=["dp", "cp"], mean_payload_bytes=None, busbw_kernel_gbps=None)
    rows[2] = replace(rows[2], axis="ep", library=["deepep"], count=None, mean_payload_bytes=None, busbw_kernel_gbps=None)
    text = "Clocks of 2 hosts differ by 1.60 ms (median of common collectives): waiting between them is known to no more."
    return replace(
        one_rank_report(),
        provenance=Provenance(
            kind="measured",
            underlap_version="0.1.0",
            sources=[source(rank) for rank in range(8)],
            ranks_counted=list(range(8)),
            world_size=64,
        ),
        summary=replace(
            summary(2.6, most_exposed_rank=3),
            compute=part(118.8, 2.6),
            fused=part(5.2, 0.4),
            hidden=part(36.7, 2.6),
            under_fused=part(1.3),
            hidden_share=36.7 / 69.6,
            unmatched_ns=3_200_000,
            unmatched_kernels=96,
        ),
        step_summary=StepSummary(
            count=32, median_ns=43_100_000, min_ns=42_800_000, max_ns=44_950_000, slowest_step="5", slowest_rank=3
        ),
        ranks=[rank_row(rank) for rank in range(8)],
        families=rows,
        unmatched=[
            UnmatchedRow(name=f"void my_team::special_kernel_{n}<float, {n}>(float*)", kernels=24, total_ns=800_000)
            for n in range(4)
        ],
        notes=[NoteRow(code=f"clock-{n}", text=text) for n in range(notes)],
    )


def hostile_report():
    """Every name that a file can bring holds escapes, markup, line breaks and letters of other scripts."""
    base = many_ranks_report()
    return replace(
        base,
        provenance=replace(base.provenance, sources=[source(0, HOSTILE), source(1)]),
        window=replace(base.window, steps_used=[HOSTILE, "3"]),
        step_summary=replace(base.step_summary, slowest_step=HOSTILE),
        families=[replace(row, axis=HOSTILE, collective=HOSTILE, library=[HOSTILE]) for row in base.families],
        unmatched=[replace(row, name=HOSTILE) for row in base.unmatched],
        notes=[NoteRow(code="x", text=HOSTILE)],
    )


ALL = {
    "empty": empty_report,
    "no communication": quiet_report,
    "one rank": one_rank_report,
    "many ranks": many_ranks_report,
    "hostile names": hostile_report,
}
