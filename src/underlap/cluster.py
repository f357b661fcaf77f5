"""`Cluster`: a named machine: its topology, how many GPUs the job gets, and where each number comes from.

In YAML a number has its unit in the value ("450 GB/s", "400 Gbit/s", "80 GiB", "600 ns"), or, as a plain number, in the name
of its field (bandwidth_bytes_per_s, memory_bytes, latency_ns). Bandwidth is one direction per device, peaks are dense.
A value may be given as {value: ..., source: ...}. `from: dgx-h100` starts from a preset; what is written replaces its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from underlap.cost.hardware import Link, Processor, Topology
from underlap.cost.testbed import Testbed
from underlap.documents import decode, nearest, require, require_counts, shown
from underlap.errors import InputError, OptionError
from underlap.quantities import parse_bytes, parse_duration_ns, parse_flops, parse_rate

T = TypeVar("T", bound=msgspec.Struct)


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one kind in scale-up domains on a fabric."""

    name: str
    topology: Topology
    gpus: int
    """Of the job."""
    sources: dict[str, str]
    """For each number, by its path in the YAML (scale_up.bandwidth): the preset or file and the source it names."""
    measured: Testbed | None = None
    """What `underlap calibrate` measured on it: simulations take these times, and none of the models."""

    def __post_init__(self) -> None:
        require_counts(self, "gpus", largest=2**20)
        domain, name = self.topology.domain, self.name
        require(
            self.topology.scale_out is not None or self.gpus <= domain,
            f"{name}: {self.gpus} GPUs, but one domain of {domain} only",
        )

    @property
    def domains(self) -> int:
        """Scale-up domains that the job's GPUs fill, the last one perhaps in part."""
        return -(-self.gpus // self.topology.domain)

    def with_gpus(self, gpus: int) -> Cluster:
        """The same machine for a job of another size. Raises OptionError where it has no fabric for that many."""
        return msgspec.structs.replace(self, gpus=gpus)

    def peak_flops(self, precision: str) -> float:
        """Dense FLOP/s of one device. Raises OptionError for a precision whose peak is not known."""
        peaks = self.topology.processor.peak_flops
        text = f"cluster: {self.name}: no peak is known for precision={precision}: known: {', '.join(sorted(peaks))}"
        require(precision in peaks, f"{text}; choose one of these, or give processor.peak_flops.{precision}")
        return peaks[precision]


class _Quantity(msgspec.Struct, frozen=True):
    """A field of a record whose value has a unit in the YAML."""

    field: str
    """Of the record; in the YAML, for a plain number."""
    parse: Callable[[object], Any]


_QUANTITIES: dict[str, dict[str, _Quantity]] = {
    "processor": {
        "memory": _Quantity("memory_bytes", parse_bytes),
        "memory_bandwidth": _Quantity("memory_bytes_per_s", parse_rate),
        "launch": _Quantity("launch_ns", parse_duration_ns),
    },
    "link": {
        "bandwidth": _Quantity("bytes_per_s", parse_rate),
        "latency": _Quantity("latency_ns", parse_duration_ns),
        "per_peer": _Quantity("per_peer_bytes_per_s", parse_rate),
    },
}
_PLAIN = {
    "processor": ("name", "architecture", "sms", "copy_engines"),
    "link": ("name", "switched", "in_network_reduction"),
    "cluster": ("name", "gpus", "domain", "nics_per_device", "oversubscription"),
}
_PARTS = {"processor": "processor", "scale_up": "link", "scale_out": "link"}
MEASURED = "measured"
"""The section that `underlap calibrate` writes; a Testbed."""
_PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4")

Values = dict[str, tuple[object, str]]
"""By path (scale_up.bandwidth): the value as it is written, and its source."""


def cluster_of_documents(documents: list[tuple[object, str]]) -> Cluster:
    """The Cluster of one document, or of a preset and what replaces its values, each with the file that it is from.

    Raises InputError with file, path, what was expected and what to do.
    """
    values: Values = {}
    measured: Testbed | None = None
    for document, where in documents:
        if isinstance(document, dict) and MEASURED in document:
            section = document[MEASURED]
            measured = None if section is None else decode(section, Testbed, where, f"$.{MEASURED}")
            document = {key: value for key, value in document.items() if key != MEASURED}  # noqa: PLW2901 - without it
        new = _values(document, where)
        for path, (value, _) in new.items():
            if path in _PARTS:  # null takes the whole part away
                values = {old: given for old, given in values.items() if not old.startswith(f"{path}.")}
            assert path not in _PARTS or value is None
        values |= {path: given for path, given in new.items() if path not in _PARTS}
    where = documents[-1][1]
    fabric = any(path.startswith("scale_out.") for path in values)
    plain = {path: value for path, (value, _) in values.items() if "." not in path}
    topology: dict[str, Any] = {
        "processor": _record(values, "processor", where, Processor),
        "scale_up": _record(values, "scale_up", where, Link),
        "scale_out": _record(values, "scale_out", where, Link) if fabric else None,
        **{key: plain[key] for key in ("domain", "nics_per_device", "oversubscription") if key in plain},
    }
    named = isinstance(documents[-1][0], dict) and "name" in documents[-1][0]
    record = {
        "name": plain.get("name", where) if named or len(documents) == 1 else f"{plain.get('name')} as changed by {where}",
        "topology": topology,
        "gpus": plain.get("gpus", plain.get("domain")),
        "sources": {path: source for path, (value, source) in values.items() if not isinstance(value, str)},
    }
    cluster: Cluster = msgspec.structs.replace(decode(record, Cluster, where), measured=measured)
    try:
        _check(cluster)
    except OptionError as error:
        raise InputError(f"{where}: {error}") from None
    return cluster


def _values(document: object, where: str) -> Values:
    """The leaves of a document."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a mapping with processor, scale_up and scale_out, or from: and what differs")
    known = ["from", *_PLAIN["cluster"], *_PARTS, MEASURED]
    values: Values = {}
    for key, value in document.items():
        if key not in known:
            raise InputError(f"{where} at $: unknown field {shown(key)}: {nearest(str(key), known)}")
        if key in _PARTS and value is None:
            values[key] = (None, where)
        elif key in _PARTS:
            values |= _part(value, key, where)
        elif key != "from":
            values[key] = _leaf(value, f"$.{key}", where)
    return values


def _part(document: object, part: str, where: str) -> Values:
    if not isinstance(document, dict):
        raise InputError(f"{where} at $.{part}: expected a mapping, got {shown(document)}")
    kind = _PARTS[part]
    quantities = _QUANTITIES[kind]
    by_field: dict[Any, str] = {quantity.field: name for name, quantity in quantities.items()}
    known = [*_PLAIN[kind], *quantities, *by_field, *(["peak_flops"] if kind == "processor" else [])]
    values: Values = {}
    for key, given in document.items():
        at = f"$.{part}.{key}"
        if key not in known:
            raise InputError(f"{where} at $.{part}: unknown field {shown(key)}: {nearest(str(key), known)}")
        if key == "peak_flops":
            values |= _peaks(given, at, where)
            continue
        value, source = _leaf(given, at, where)
        name: str = by_field.get(key, str(key))
        path = f"{part}.{name}"
        if path in values:
            raise InputError(
                f"{where} at {at}: {name} is given twice, as {name} and as {quantities[name].field}: expected it once"
            )
        if name in quantities and value is not None:
            value = _number(value, at, where) if key in by_field else _parsed(quantities[name].parse, value, at, where)
        values[path] = (value, source)
    return values


def _peaks(document: object, at: str, where: str) -> Values:
    if not isinstance(document, dict):
        raise InputError(f"{where} at {at}: expected a mapping from precision to FLOP/s, such as bf16: 989 TFLOP/s")
    values: Values = {}
    for precision, given in document.items():
        if precision not in _PRECISIONS:
            raise InputError(f"{where} at {at}: unknown precision {shown(precision)}: {nearest(str(precision), _PRECISIONS)}")
        value, source = _leaf(given, f"{at}.{precision}", where)
        values[f"processor.peak_flops.{precision}"] = (_parsed(parse_flops, value, f"{at}.{precision}", where), source)
    return values


def _leaf(given: object, at: str, where: str) -> tuple[object, str]:
    """The value, and where it is from: the file and, as {value: ..., source: ...}, what it names."""
    value, source = given, where
    if isinstance(given, dict):
        if set(given) != {"value", "source"} or not isinstance(given["source"], str):
            raise InputError(f"{where} at {at}: expected a value, or a mapping with value and source")
        value, source = given["value"], f"{where}: {given['source']}"
    if isinstance(value, (dict, list)):
        raise InputError(f"{where} at {at}: expected one value, got {shown(value)}")
    return value, source


def _parsed(parse: Callable[[object], Any], value: object, at: str, where: str) -> object:
    try:
        return parse(value)
    except OptionError as error:
        raise InputError(f"{where} at {at}: {error}") from None


def _number(value: object, at: str, where: str) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{where} at {at}: expected a plain number, as the name of the field has the unit; got {shown(value)}")
    return value


def _record(values: Values, part: str, where: str, kind: type[T]) -> T:
    quantities = _QUANTITIES[_PARTS[part]]
    fields: dict[str, Any] = {}
    for path, (value, _) in values.items():
        first, _, rest = path.partition(".")
        if first != part:
            continue
        name, _, precision = rest.partition(".")
        if precision:
            fields.setdefault(name, {})[precision] = value
        else:
            fields[quantities[name].field if name in quantities else name] = value
    defaults = {field.name for field in msgspec.structs.fields(kind) if not field.required}
    missing = [field for field in kind.__struct_fields__ if field not in {*fields, *defaults, "source"}]
    if missing:
        names = {quantity.field: name for name, quantity in quantities.items()}
        listed = ", ".join(names.get(field, field) for field in missing)
        raise InputError(
            f"{where} at $.{part}: {listed} missing: expected every number of a {kind.__name__.lower()}, or from: and a preset"
        )
    # The record has room for one source; Cluster.sources has that of each number.
    headline = next(
        source for path, (_, source) in values.items() if path.startswith((f"{part}.bandwidth", f"{part}.peak_flops"))
    )
    return decode({**fields, "source": headline}, kind, where, f"$.{part}")


def _check(cluster: Cluster) -> None:
    topology, processor = cluster.topology, cluster.topology.processor
    require_counts(topology, "domain", largest=2**20)
    require_counts(processor, "sms", "memory_bytes", largest=2**60)
    require(0 <= processor.copy_engines <= 2**10, f"copy_engines is {processor.copy_engines}: expected 0 or more")
    require(processor.launch_ns >= 0, f"launch_ns is {processor.launch_ns}: expected 0 or more")
    require(
        bool(processor.peak_flops), "processor.peak_flops is empty: expected at least one precision, such as bf16: 989 TFLOP/s"
    )
    require(all(peak > 0 for peak in processor.peak_flops.values()), "processor.peak_flops: expected more than 0")
    require(processor.memory_bytes_per_s > 0, "processor.memory_bandwidth: expected more than 0")
    require(0 < topology.nics_per_device <= 1024, f"nics_per_device is {topology.nics_per_device}: expected more than 0")
    wide = f"oversubscription is {topology.oversubscription}: expected 1 (a full fabric) or more"
    require(1 <= topology.oversubscription <= 1e6, wide)
    for name, link in (("scale_up", topology.scale_up), ("scale_out", topology.scale_out)):
        if link is None:
            continue
        require(link.bytes_per_s > 0, f"{name}.bandwidth: expected more than 0")
        require(link.latency_ns >= 0, f"{name}.latency: expected 0 or more")
        peer = link.per_peer_bytes_per_s
        require(peer is None or 0 < peer <= link.bytes_per_s, f"{name}.per_peer: expected more than 0 and at most the bandwidth")
