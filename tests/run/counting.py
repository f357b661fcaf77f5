"""Bytes as torch itself sees them: every call that reaches a process group passes the dispatcher, and is written down there.

Nothing of the engine takes part in this. Payloads are as DESIGN defines them: of an all-gather what comes, of others what goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

Payload = Callable[..., int]


def _bytes(found: Any) -> int:
    if isinstance(found, torch.Tensor):
        return found.numel() * found.element_size()
    return sum(_bytes(each) for each in found)


def _gathered(source: Any, size: int, *_: Any) -> int:
    return size * _bytes(source)


def _first(source: Any, *_: Any) -> int:
    return _bytes(source)


def _second(_: Any, source: Any, *__: Any) -> int:
    return _bytes(source)


KNOWN: dict[str, tuple[str, Payload]] = {
    "c10d::allreduce_": ("all_reduce", _first),
    "c10d::allreduce_coalesced_": ("all_reduce", _first),
    "c10d::_allgather_base_": ("all_gather", _first),
    "c10d::allgather_": ("all_gather", _first),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", _first),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", _second),
    "c10d::reduce_scatter_": ("reduce_scatter", _second),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", _second),
    "c10d::alltoall_base_": ("all_to_all", _second),
    "c10d::alltoall_": ("all_to_all", _second),
    "c10d::send": ("send", _first),
    "c10d::recv_": ("recv", _first),
    "c10d::broadcast_": ("broadcast", _first),
    "_c10d_functional::all_reduce": ("all_reduce", _first),
    "_c10d_functional::all_reduce_": ("all_reduce", _first),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", _first),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", _gathered),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", _gathered),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", _first),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", _first),
    "_c10d_functional::all_to_all_single": ("all_to_all", _first),
}
NO_BYTES = frozenset({"c10d::barrier", "_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"})


class Counter(TorchDispatchMode):
    """Payload bytes of this rank, by the description of the group and the collective, while it is entered."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and every rank would load the compiler to keep it away from this class.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[tuple[str, str], int] = defaultdict(int)
        self.calls: dict[tuple[str, str], int] = defaultdict(int)
        self.uneven = 0
        """All-to-alls whose ranks send each other different numbers of rows."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it comes back as what DTensor makes of it, collectives among that
        name = func._schema.name
        if name.partition("::")[0] in ("c10d", "_c10d_functional") and name not in NO_BYTES:
            collective, payload = KNOWN[name]
            key = _group(args).group_desc, collective
            self.bytes[key] += payload(*args)
            self.calls[key] += 1
            self.uneven += any(_differ(each) for each in args)
        return func(*args, **(kwargs or {}))


def _differ(argument: Any) -> bool:
    return isinstance(argument, list) and all(isinstance(each, int) for each in argument) and len(set(argument)) > 1


def _group(arguments: Sequence[Any]) -> ProcessGroup:
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return ProcessGroup.unbox(argument)
        if isinstance(argument, ProcessGroup):
            return argument
    return _resolve_process_group(next(each for each in reversed(arguments) if isinstance(each, str)))


def added(counted: Sequence[dict[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    """Over ranks."""
    total: dict[tuple[str, str], int] = defaultdict(int)
    for each in counted:
        for key, size in each.items():
            total[key] += size
    return dict(total)
