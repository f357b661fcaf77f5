"""A deployment of one's own from a YAML file: model, cluster, layout, workload and overlap, in the forms of docs/inputs.md.

    model: llama3-70b
    cluster: dgx-h100
    layout: tp=8
    workload: {kind: prefill, batch: null, seq: 4096}    # null: not known, and swept
    overlap: tp=split_batch                              # left out: what the claim does

Every mistake is one InputError of one line, with file and path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from underlap import inputs
from underlap.cluster import Cluster
from underlap.documents import file_name, nearest, read_document, shown
from underlap.errors import InputError, OptionError
from underlap.judge.conditions import (
    BATCHES,
    DECODED,
    IMBALANCES,
    LENGTHS,
    MOST_POINTS,
    MOST_STEPS,
    PRECISIONS,
    Question,
    thinned,
)
from underlap.policy import Policy
from underlap.workload import Train, Workload, check_workload, sequences

T = TypeVar("T")

_FIELDS = ("model", "cluster", "layout", "workload", "overlap")
_NEEDED = _FIELDS[:4]
_OPEN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "gbs": ("batch", BATCHES),
    "batch": ("batch", BATCHES),
    "seq": ("tokens", LENGTHS),
    "context": ("tokens", LENGTHS),
    "imbalance": ("imbalance", IMBALANCES),
    "precision": ("precision", PRECISIONS),
}
"""Fields of a workload that may be null: what they are called in Conditions, and what they are swept over."""


def deployment(path: str | os.PathLike[str]) -> Question:
    """The conditions in a file; those of `workload` that are null are open."""
    where = file_name(os.fspath(path))
    document = read_document(os.fspath(path))
    if not isinstance(document, dict):
        raise InputError(f"{where} at $: expected a mapping with {', '.join(_FIELDS)}, got {shown(document)}")
    for key in document:
        if key not in _FIELDS:
            raise InputError(f"{where} at $: unknown field {shown(key)}: {nearest(str(key), _FIELDS)}")
    for key in _NEEDED:
        if document.get(key) is None:
            raise InputError(f"{where} at $.{key}: missing: expected {', '.join(_NEEDED)}; overlap may be left out")
    return _question(document, where)


def _question(document: dict[str, Any], where: str) -> Question:
    model = inputs.model_of_document(document["model"], where, "$.model")
    layout = inputs.layout_of_document(document["layout"], where, "$.layout")
    cluster = _cluster(document["cluster"], where)
    if isinstance(document["cluster"], dict) and "gpus" in document["cluster"]:
        _at(where, "$.layout", lambda: layout.check_gpus(cluster.gpus))
    _at(where, "$.layout", lambda: layout.check_model(model))
    machine = _at(where, "$.cluster", lambda: cluster.with_gpus(layout.world))
    given, swept = _workload(document["workload"], layout.data_parallel)
    workload: Workload = inputs.workload_of_document(given, where, "$.workload")
    if "precision" in swept:
        swept["precision"] = tuple(each for each in PRECISIONS if each in cluster.topology.processor.peak_flops) or PRECISIONS[:1]
    else:
        _at(where, "$.workload.precision", lambda: cluster.peak_flops(workload.precision))
    if not swept:
        _at(where, "$.workload", lambda: check_workload(workload, layout, model))
    elif "batch" not in swept:
        whole = sequences(workload) % layout.data_parallel == 0
        text = f"{sequences(workload)} sequences are not divisible by dp * fsdp = {layout.data_parallel}"
        _at(where, "$.workload", lambda: _require(whole, text))
    policy: Policy = inputs.policy_of_document(document.get("overlap"), where, "$.overlap")
    _at(where, "$.overlap", lambda: policy.check_layout(layout))
    fixed: dict[str, Any] = {
        "model": model,
        "cluster": machine,
        "layout": layout,
        "kind": type(workload).__name__.lower(),
        "batch": sequences(workload) // layout.data_parallel,
        "micro": workload.mbs,
        "tokens": workload.seq if not hasattr(workload, "context") else workload.context,
        "precision": workload.precision,
        "imbalance": workload.imbalance,
        "recompute": workload.recompute if isinstance(workload, Train) else "none",
        "policy": policy,
    }
    return Question(
        {name: value for name, value in fixed.items() if name not in swept},
        thinned(swept, most=MOST_STEPS if isinstance(workload, Train) else MOST_POINTS),
    )


def _cluster(document: object, where: str) -> Cluster:
    """The paths of a cluster are those of a file of its own: here they start one level further in."""
    try:
        return inputs.cluster_of_document(document, where, "$.cluster")
    except InputError as error:
        outer, inner = f"{where} at $", str(error)
        if inner.startswith(outer) and not inner.startswith(f"{outer}.cluster"):
            raise InputError(f"{outer}.cluster{inner.removeprefix(outer)}") from None
        raise


def _workload(document: Any, data_parallel: int) -> tuple[Any, dict[str, tuple[Any, ...]]]:
    """The document with numbers in place of what is null, so that the rest can be checked; and what is open."""
    if not isinstance(document, dict):
        return document, {}
    given, swept = dict(document), {}
    mbs = document.get("mbs")
    for key, (name, values) in _OPEN.items():
        if key not in document or document[key] is not None:
            continue
        swept[name] = values
        if name == "batch":
            per_rank = mbs if isinstance(mbs, int) and 1 <= mbs < 2**20 else 1
            given[key] = per_rank * data_parallel
            ladder = DECODED if document.get("kind") == "decode" else values
            swept[name] = tuple(each * per_rank for each in ladder)
        elif name == "precision":
            del given[key]
        else:
            given[key] = values[0]
    return given, swept


def _at(where: str, path: str, check: Callable[[], T]) -> T:
    try:
        return check()
    except OptionError as error:
        raise InputError(f"{where} at {path}: {error}") from None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise OptionError(message)
