"""Words of a claim -> names of underlap: models, machines, degrees of parallelism, phases, precisions, overlap passes.

Only what is known is translated: a name that does not fit whole has no translation, and the caller says so. A claim of one's
own can use the names of presets, and `settings: {layout: ..., overlap: ...}` in the forms of docs/inputs.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from underlap.claim import Claim, listed

_LLAMA = re.compile(r"(?:meta-)?llama[- ]?3(?:\.[13])?[- ](8b|70b|405b)(?:-instruct)?")
_GPT3 = re.compile(r"gpt-?3[- ](22b|175b|530b|1t)")
_MIXTRAL = re.compile(r"mixtral[- ]8x(7b|22b)")
_QWEN3 = re.compile(r"qwen3[- ](30b-a3b|235b-a22b)")
_DEEPSEEK = re.compile(r"deepseek[- ]v3(?:/r1)?(?:-671b)?")
_RECOMPUTE = re.compile(r"(full|selective) activation checkpointing")

_MACHINES = {
    "GB200": "gb200-nvl72",
    "B200": "dgx-b200",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "A100": "dgx-a100",
    "MI300X": "mi300x",
}
_DEVICE = re.compile(r"\b(?:[A-Z]{1,3}[0-9]{2,4}[A-Z]?|RTX|TPU|NPU)\b")
_PLAIN = re.compile(r"\b(?:NVIDIA|AMD|DGX|SXM[0-9]?|80 ?GB|141 ?GB|192 ?GB)\b", re.IGNORECASE)

_AXES = "TP|PP|DP|EP|CP|FSDP"
_DEGREE = re.compile(rf"\b({_AXES})\s*=?\s*([0-9]+)\b", re.IGNORECASE)
_DEGREE_BEFORE = re.compile(rf"\b([0-9]+)(?:-way)?\s+({_AXES})\b", re.IGNORECASE)

PHASES = {
    "train": ("train",),
    "forward": ("prefill",),
    "prefill": ("prefill",),
    "decode": ("decode",),
    "inference": ("prefill", "decode"),
    "serving": ("prefill", "decode"),
}
"""A phase of a claim -> the kinds of workload that it can mean. The forward pass alone is a prefill without a cache."""

_PRECISIONS = (
    (re.compile(r"(?:bf16|bfloat16)"), "bf16"),
    (re.compile(r"(?:fp16|float16)"), "fp16"),
    (re.compile(r"(?:fp8|float8)(?: (?:rowwise|tensorwise|mixed))?"), "fp8"),
    (re.compile(r"(?:fp32|float32)"), "fp32"),
)


def models(text: str, presets: Iterable[str]) -> tuple[list[str], list[str], str | None]:
    """(presets named, names without one, recomputation): "GPT-3 175B or Llama-2 70B" names one preset and one without."""
    named: list[str] = []
    without: list[str] = []
    recompute = None
    known = set(presets)
    for piece in re.split(r",|;| or | and | / ", re.sub(r"\([^)]*\)", "", text)):
        name = piece.strip().lower()
        if not name:
            continue
        found = _RECOMPUTE.fullmatch(name)
        if found:
            recompute = found[1]
            continue
        preset = name if name in known else _preset(name)
        (without if preset is None or preset not in known else named).append(preset if preset in known else piece.strip())
    return list(dict.fromkeys(named)), without, recompute


def _preset(name: str) -> str | None:
    for pattern, family in ((_LLAMA, "llama3-"), (_GPT3, "gpt3-"), (_MIXTRAL, "mixtral-8x"), (_QWEN3, "qwen3-")):
        found = pattern.fullmatch(name)
        if found:
            return family + found[1]
    return "deepseek-v3" if _DEEPSEEK.fullmatch(name) else None


def machine(gpu: str, interconnect: str | None, presets: Iterable[str]) -> tuple[str | None, str]:
    """(preset, what of the words it leaves aside); no preset where the device, or its link, is another."""
    if gpu in set(presets):
        return gpu, ""
    devices = {word for word in _DEVICE.findall(gpu.upper()) if not word.startswith(("HBM", "SXM", "SM"))}
    on_pcie = re.search(r"pcie|\bnvl\b", f"{gpu} {interconnect or ''}", re.IGNORECASE)
    if len(devices) != 1 or on_pcie or not devices <= set(_MACHINES):
        return None, ""
    (device,) = devices
    rest = _PLAIN.sub("", re.sub(device, "", gpu, flags=re.IGNORECASE))
    return _MACHINES[device], rest.strip(" -,()")


def degrees(text: str) -> dict[str, list[int]]:
    """Every degree that a text names for an axis, in order: `TP=8, FSDP=32`, `2 DP x 8 PP x 8 TP`, `8-way TP`."""
    pairs = [(axis, number) for axis, number in _DEGREE.findall(text)]
    pairs = pairs or [(axis, number) for number, axis in _DEGREE_BEFORE.findall(text)]
    found: dict[str, list[int]] = {}
    for axis, number in pairs:
        values = found.setdefault(axis.lower(), [])
        if len(number) <= 6 and int(number) >= 1 and int(number) not in values:
            values.append(int(number))
    return found


def precision(text: str) -> str | None:
    """bf16, fp8, ...; None for what is mixed, or not known."""
    word = text.strip().lower()
    return next((name for pattern, name in _PRECISIONS if pattern.fullmatch(word)), None)


def overlap(claim: Claim, axis: str, degree: int) -> tuple[str, str] | None:
    """(policy of the axis in the form of docs/inputs.md, why that one). None where no pass is known for what was done."""
    software = f"{claim.software.name or ''} {claim.statement}".lower()
    if axis == "tp":
        return _tensor_overlap(claim, software, degree)
    if axis == "ep":
        return _expert_overlap(software)
    if axis == "cp" and "two-batch" in software:
        return "cp=split_batch", "two halves of a batch"
    return {
        "cp": ("cp=ring", "blocks passed around"),
        "fsdp": ("fsdp=prefetch:1", "parameters gathered one layer ahead"),
        "dp": ("dp=bucket:25MB", "gradients in buckets of 25 MB, the default of DDP"),
        "pp": ("pp=async_p2p", "messages beside compute"),
    }.get(axis)


def _tensor_overlap(claim: Claim, software: str, degree: int) -> tuple[str, str]:
    gathered = bool(set(listed(claim.collective)) & {"all_gather", "reduce_scatter"})
    if not gathered or "two-batch" in software:
        return "tp=split_batch", "parts of the batch, one computed while the other is sent"
    if re.search(r"torch|async", software):
        return f"tp=decompose:{max(degree, 2)}+copy_engine", "asynchronous TP: one chunk per rank, moved by copy engines"
    return "tp=decompose", "gather and scatter beside their own matrix products, in chunks"


def _expert_overlap(software: str) -> tuple[str, str] | None:
    if re.search(r"delay.?wgrad|weight gradient", software):
        return None  # it is measured on top of another overlap, which the claim's baseline has
    if re.search(r"single.?batch|shared expert", software):
        return "ep=shared_expert", "the shared expert beside dispatch and combine"
    if "megatron" in software:
        return "ep=pair_forward_backward", "forward of one micro-batch beside backward of another"
    return "ep=split_batch", "parts of the batch, one computed while the other is sent"
