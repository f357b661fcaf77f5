"""What a user names -> a record: a preset, a file, or the one-line text form. The one door to the inputs of a simulation.

    model("llama3-8b")    model("config.json")    layout("tp=8,pp=2,sp")    layout("job.yaml")    cluster("dgx-h100")

Every function raises an InputError or OptionError of one line, and nothing else, for whatever it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from underlap import cluster as clusters
from underlap.cluster import Cluster
from underlap.documents import decode, file_name, nearest, parse_document, read_document, shown
from underlap.errors import InputError, OptionError
from underlap.hugging_face import is_hugging_face, model_of_config
from underlap.layout import Layout, parse_layout
from underlap.model import Model
from underlap.policy import Policy, parse_policy, policy_of_mapping
from underlap.workload import Workload, check_workload, parse_workload

T = TypeVar("T")

_FILE = re.compile(r".*\.(ya?ml|json)", re.IGNORECASE | re.DOTALL)


@cache
def presets(noun: str) -> tuple[str, ...]:
    """The names of the presets of "models" or "clusters", sorted."""
    folder = resources.files("underlap") / "presets" / noun
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def _preset(noun: str, name: str) -> object:
    text = (resources.files("underlap") / "presets" / noun / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_document(text, name)


def _is_file(named: str) -> bool:
    return bool(_FILE.fullmatch(named)) or "/" in named


def _mapping(path: str) -> object:
    """A file that is no name itself: else a file could name itself for ever."""
    document = read_document(path)
    if isinstance(document, str):
        raise InputError(f"{file_name(path)}: expected a mapping of fields, got the text {shown(document)}")
    return document


def model(named: str) -> Model:
    """A preset, a YAML file, or a config.json of Hugging Face (the file, or the folder that it is in)."""
    if named in presets("models"):
        return decode(_preset("models", named), Model, named)
    if not _is_file(named):
        raise OptionError(
            f"model: no preset {shown(named)}: {nearest(named, presets('models'))}; or give a YAML file or config.json"
        )
    config = Path(named) / "config.json"
    path = str(config) if "\0" not in named and config.is_file() else named
    return model_of_document(_mapping(path), file_name(path))


def model_of_document(document: object, where: str, at: str = "$") -> Model:
    """The Model of a document: a preset's name, a Model, or a config.json of Hugging Face."""
    if isinstance(document, str):
        return _named(model, document, where, at)
    if is_hugging_face(document):
        return model_of_config(document, where)
    if isinstance(document, dict) and "source" not in document:
        document = {**document, "source": where}
    return decode(document, Model, where, at)


def layout(named: str) -> Layout:
    """A YAML file, or text such as `tp=8,pp=2,dp=4,schedule=interleaved:2,sp,zero=1`."""
    return layout_of_document(read_document(named), file_name(named)) if _is_file(named) else parse_layout(named)


def layout_of_document(document: object, where: str, at: str = "$") -> Layout:
    """The Layout of a document: the text form, or a mapping of its fields."""
    return _named(parse_layout, document, where, at) if isinstance(document, str) else decode(document, Layout, where, at)


def workload(named: str) -> Workload:
    """A YAML file, or text such as `train,gbs=256,mbs=1,seq=8192`, `prefill,batch=8,seq=4096`, `decode,batch=64,context=4096`."""
    return workload_of_document(read_document(named), file_name(named)) if _is_file(named) else parse_workload(named)


def workload_of_document(document: object, where: str, at: str = "$") -> Workload:
    """The Workload of a document: the text form, or a mapping of its fields with `kind`."""
    return _named(parse_workload, document, where, at) if isinstance(document, str) else decode(document, Workload, where, at)


def policy(named: str) -> Policy:
    """A YAML file, or text such as `tp=split_batch,dp=bucket:25MB,fsdp=prefetch:2`; an empty text overlaps nothing."""
    return policy_of_document(read_document(named), file_name(named)) if _is_file(named) else parse_policy(named)


def policy_of_document(document: object, where: str, at: str = "$") -> Policy:
    """The Policy of a document: the text form, or a mapping from axis to passes; nothing (null) overlaps nothing."""
    if document is None:
        return Policy()
    return _named(parse_policy, document, where, at) if isinstance(document, str) else policy_of_mapping(document, where, at)


def cluster(named: str) -> Cluster:
    """A preset, or a YAML file, which may start from one."""
    if named in presets("clusters"):
        return clusters.cluster_of_documents([(_preset("clusters", named), named)])
    if not _is_file(named):
        raise OptionError(f"cluster: no preset {shown(named)}: {nearest(named, presets('clusters'))}; or give a YAML file")
    return cluster_of_document(_mapping(named), file_name(named))


def cluster_of_document(document: object, where: str, at: str = "$") -> Cluster:
    """The Cluster of a document: a preset's name, or a mapping, which may start `from` one."""
    if isinstance(document, str):
        return _named(cluster, document, where, at)
    if not isinstance(document, dict) or "from" not in document:
        return clusters.cluster_of_documents([(document, where)])
    base = document["from"]
    if base not in presets("clusters"):
        raise InputError(f"{where} at {at}.from: no preset {shown(base)}: {nearest(str(base), presets('clusters'))}")
    return clusters.cluster_of_documents([(_preset("clusters", base), base), (document, where)])


def _named(make: Callable[[str], T], text: str, where: str, at: str) -> T:
    """A name or text form inside of a document; its errors say where that is."""
    try:
        return make(text)
    except (OptionError, InputError) as error:
        raise InputError(f"{where} at {at}: {error}") from None


def check(shape: Model, spread: Layout, work: Workload, overlap: Policy, machine: Cluster) -> None:
    """Whether the five fit one another. Raises OptionError for the first that does not, with the two numbers."""
    spread.check_gpus(machine.gpus)
    spread.check_model(shape)
    check_workload(work, spread, shape)
    overlap.check_layout(spread)
    machine.peak_flops(work.precision)
    shared = shape.experts is not None and shape.experts.shared > 0
    if not shared and any(step.name == "shared_expert" for step in overlap.ep.passes):
        raise OptionError(f"policy: ep=shared_expert, but {shape.name} has no shared experts: leave it out")
