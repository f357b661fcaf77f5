"""What a simulation adds to the screen: step time and its bounds, throughput, memory, bytes, and what it does not support."""

from __future__ import annotations

from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table

from underlap.render.plain import UNKNOWN, clean, decimals_for, milliseconds, percent, size, wrap
from underlap.report import Prediction, Report

WIDTH = 100
AXES = 8


def print_prediction(report: Report, file: IO[str]) -> None:
    """Write the prediction of a simulated Report, and the comparison of policies where there is one."""
    prediction = report.prediction
    if prediction is None:
        return
    lines = prediction_lines(prediction)
    for line in lines:
        file.write(line + "\n")
    if report.predictions:
        file.write("\n")
        _print_comparison(report.predictions, file)
    file.write("\n")
    for text in prediction.does_not_support:
        for line in wrap(f"does not support: {clean(text)}", WIDTH):
            file.write(line + "\n")


def prediction_lines(prediction: Prediction) -> list[str]:
    """Scenario, step, throughput, memory, bytes: one fact per line."""
    decimals = decimals_for(prediction.step_ns)
    serial = UNKNOWN if prediction.serial_ns is None else milliseconds(prediction.serial_ns, decimals)
    lines = [
        f"SIMULATED {clean(prediction.model)} on {clean(prediction.cluster)}: {clean(prediction.layout)}",
        f"workload {clean(prediction.workload)}",
        f"policy {clean(prediction.policy)}",
        f"step {milliseconds(prediction.step_ns, decimals)} ms{_range(prediction, decimals)}; "
        f"no schedule below {milliseconds(prediction.bound_ns, decimals)}, one thing at a time {serial}",
        f"{prediction.tokens_per_s:,.0f} tokens/s, MFU {percent(prediction.mfu)} %",
        _parameters(prediction),
        _memory(prediction),
    ]
    lines += [
        f"  {clean(row.axis)} {clean(row.collective)}: {row.calls} calls, {size(row.payload_bytes)} handed in, "
        f"{size(row.sent_bytes)} sent, all ranks"
        for row in prediction.bytes_by_axis[:AXES]
    ]
    lines += [f"not applied: {clean(row.axis)}={clean(row.name)}: {clean(row.reason)}" for row in prediction.refused]
    return [part for line in lines for part in wrap(line, WIDTH, lines=3)]


def _range(prediction: Prediction, decimals: int) -> str:
    if prediction.step_low_ns is None or prediction.step_high_ns is None:
        return ""
    low, high = (milliseconds(ns, decimals) for ns in (prediction.step_low_ns, prediction.step_high_ns))
    return f" ({low} to {high} by the ranges of its costs)"


def _parameters(prediction: Prediction) -> str:
    total = f"{prediction.parameters / 1e9:.2f}e9 parameters"
    if prediction.activated_parameters == prediction.parameters:
        return total
    return f"{total}, {prediction.activated_parameters / 1e9:.2f}e9 activated per token"


def _memory(prediction: Prediction) -> str:
    fullest = prediction.memory[0]
    verdict = "fits" if fullest.fits else "DOES NOT FIT"
    return f"memory {size(fullest.peak_bytes)} of {size(prediction.device_memory_bytes)} on {clean(fullest.role)}: {verdict}"


def _print_comparison(rows: list[Prediction], file: IO[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("policy", "step ms", "ratio", "what it is", "compute ms", "hidden ms", "exposed ms", "memory"):
        table.add_column(name, justify="left" if name in ("policy", "what it is") else "right", no_wrap=name != "policy")
    decimals = decimals_for(rows[0].step_ns)
    for row in rows:
        table.add_row(
            clean(row.policy),
            milliseconds(row.step_ns, decimals),
            f"{row.step_ratio:.3f}" if row.step_ratio is not None else UNKNOWN,
            row.word or "compared with",
            milliseconds(row.compute_ns, decimals),
            milliseconds(row.hidden_ns, decimals),
            milliseconds(row.exposed_ns, decimals),
            size(row.memory_bytes),
        )
    console = Console(file=file, width=WIDTH, highlight=False, color_system=None)
    console.print(table)
    for row in rows:
        for refused in row.refused:
            for line in wrap(f"{clean(row.policy)}: not applied: {clean(refused.reason)}", WIDTH):
                file.write(line + "\n")
