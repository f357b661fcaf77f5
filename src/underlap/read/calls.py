"""What the arguments of an event say about a collective call: which, how much, in which group.

Sources, best first: the arguments that Kineto copies to the kernel or to record_param_comms, the shapes of the c10d
operator, the shapes of the annotation (nccl:all_reduce). Later sources fill only what earlier ones leave open.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from typing import Any

import msgspec

from underlap.read.collective import dtype_bytes, normalize, payload_bytes
from underlap.read.json_event import Args
from underlap.read.numbers import integer
from underlap.timeline import Group

CALL_NAME = re.compile(
    r"record_param_comms$|(?:nccl|gloo|hccl|xccl|ucc|mpi|rccl|oneccl):|c10d::|_c10d_functional(?:_autograd)?::"
    r"|c10d_functional::|symm_mem::"
)
"""Names of host rows that are a call of a collective, whatever library runs it."""

MOST_RANKS = 1 << 20
"""No job is as large; a larger number is no rank, and would only cost memory."""
_LARGEST = (1 << 63) - 1

# Where a c10d operator has its output and its input among its arguments; all others have the input first.
_OUTPUT_FIRST = re.compile(r"gather|scatter|alltoall")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """What one source says about a call; None where it is silent."""

    collective: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group: Group | None = None
    sequence: int | None = None
    peer: int | None = None
    asynchronous: bool | None = None

    def filled_by(self, other: CallInfo) -> CallInfo:
        """This, with what it leaves open taken from `other`."""
        mine = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return CallInfo(**{name: getattr(other, name) if value is None else value for name, value in mine.items()})

    def payload(self, group_size: int | None) -> int | None:
        """Bytes, as DESIGN defines the payload of each collective; None where a part of it is unknown."""
        out_elements = self.out_elements
        if out_elements is None and self.collective == "all_gather" and self.in_elements is not None and group_size:
            out_elements = self.in_elements * group_size
        size = payload_bytes(
            self.collective,
            in_elements=self.in_elements,
            out_elements=out_elements,
            element_bytes=dtype_bytes(self.dtype),
        )
        return size if size is not None and size <= _LARGEST else None


def from_metadata(args: Args) -> CallInfo:
    """From the arguments of a kernel or of record_param_comms."""
    collective = normalize(args.collective) if isinstance(args.collective, str) else None
    return CallInfo(
        collective=collective,
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        dtype=args.dtype if isinstance(args.dtype, str) else None,
        group=_group(args),
        sequence=_count(args.sequence),
        peer=_peer(collective, args),
    )


def from_shapes(name: str, args: Args) -> CallInfo:
    """From the recorded shapes of a c10d operator or a communication annotation, and from its name."""
    dims, types = _json_list(args.input_dims), _json_list(args.input_type)
    sizes = [_elements(dim, types[at] if at < len(types) else None) for at, dim in enumerate(dims)]
    dtype = next((text for text in types if isinstance(text, str) and dtype_bytes(text) is not None), None)
    waits_later = _flag(args.concrete) if name.startswith("c10d::") else None
    first = sizes[0] if sizes else None
    second = sizes[1] if len(sizes) > 1 else None
    if "::" not in name:
        total = None if not sizes or None in sizes else sum(size for size in sizes if size is not None)
        return CallInfo(collective=normalize(name), in_elements=total, dtype=dtype)
    if name.startswith("c10d::") and _OUTPUT_FIRST.search(name):
        return CallInfo(collective=normalize(name), in_elements=second, out_elements=first, dtype=dtype, asynchronous=waits_later)
    return CallInfo(collective=normalize(name), in_elements=first, dtype=dtype, asynchronous=waits_later)


def _flag(concrete: msgspec.Raw) -> bool | None:
    """The one boolean among the values that a c10d operator was called with: asyncOp. None where there is none, or several."""
    found = [text for text in _json_list(concrete) if text in ("True", "False")]
    return found[0] == "True" if len(found) == 1 else None


def parse_ranks(value: Any) -> tuple[int, ...] | None:
    """The members of a group from a list or from text such as "[0, 1]"; None for "[]" and for lists cut with "..."."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or not value:
        return None
    if not all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in value) or len(set(value)) < len(value):
        return None
    return tuple(value)


def groups_from_config(config: Any) -> list[Group]:
    """The groups that Kineto's distributedInfo lists under pg_config. Entries that are no groups are left out."""
    if not isinstance(config, list):
        return []
    groups = []
    for entry in config:
        if isinstance(entry, dict):
            ranks = parse_ranks(entry.get("ranks"))
            size = _size(entry.get("pg_size"))
            if ranks is not None and size is not None and len(ranks) != size:
                ranks = None
            groups.append(
                Group(
                    name=_text(entry.get("pg_name")),
                    description=_description(entry.get("pg_desc")),
                    size=size or (len(ranks) if ranks else None),
                    ranks=ranks,
                )
            )
    return groups


def _group(args: Args) -> Group | None:
    name, size = _text(args.group_name), _size(args.group_size)
    ranks = parse_ranks(args.group_ranks)
    start, stride = _count(args.rank_start), _count(args.rank_stride)
    if ranks is None and size and start is not None and stride and start + size * stride <= MOST_RANKS + stride:
        ranks = _strided(start, size, stride)
    if ranks is not None and size and len(ranks) != size:
        ranks = None
    if name is None and ranks is None:
        return None
    return Group(name=name, description=_description(args.group_description), size=size or None, ranks=ranks)


def _peer(collective: str | None, args: Args) -> int | None:
    if collective == "send":
        return _rank(args.target_rank)
    if collective in ("recv", "broadcast", "scatter"):
        return _rank(args.source_rank)
    return None


@functools.lru_cache(maxsize=1024)
def _strided(start: int, size: int, stride: int) -> tuple[int, ...]:
    return tuple(range(start, start + size * stride, stride))


def _rank(value: Any) -> int | None:
    number = integer(value)
    return number if 0 <= number < MOST_RANKS else None


def _size(value: Any) -> int | None:
    number = integer(value)
    return number if 0 < number <= MOST_RANKS else None


def _count(value: Any) -> int | None:
    number = integer(value)
    return number if number >= 0 else None


def _text(value: Any) -> str | None:
    if isinstance(value, int):
        return str(value) if abs(value) <= _LARGEST else None
    return value if isinstance(value, str) and value else None


def _description(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "undefined") else None


def _json_list(raw: msgspec.Raw) -> list[Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _elements(dims: Any, kind: Any) -> int | None:
    """Elements of a tensor ([2, 3] -> 6) or of a list of tensors ([[2, 3], [4]] -> 10); None where not recorded."""
    if not isinstance(dims, list):
        return None
    if not dims:
        return 1 if isinstance(kind, str) and dtype_bytes(kind) is not None else None
    if not any(isinstance(dim, list) for dim in dims):
        return _product(dims)
    # A list of tensors has no kind of its own; a scalar in it counts as one element.
    parts = [_product(dim) if isinstance(dim, list) else None for dim in dims]
    return None if None in parts else sum(part for part in parts if part is not None)


def _product(dims: list[Any]) -> int | None:
    if not all(type(dim) is int and 0 <= dim <= _LARGEST for dim in dims):
        return None
    product = 1
    for dim in dims:
        product = min(product * dim, _LARGEST + 1)
    return product if product <= _LARGEST else None
