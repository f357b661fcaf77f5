"""Ranks that `run` and `calibrate` start on this machine: whether it can, and over which links."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from typing import TYPE_CHECKING

from underlap.errors import MissingExtraError, OptionError
from underlap.run.fabric import Fabric, fabric, missing
from underlap.run.fabric_spec import FabricSpec
from underlap.run.priority import Priority, check_priority

if TYPE_CHECKING:
    from underlap.run.launch import Local


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_torch(verb: str) -> None:
    """Raises MissingExtraError without PyTorch, which is not loaded for that."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(f"{verb} needs PyTorch: pip install 'underlap[run]'")


def check_network(spec: FabricSpec | None, priority: Priority, *, messages: bool) -> None:
    """Raises OptionError where the links or the priority that are asked for cannot be had."""
    reason = missing() if spec is not None else None
    if reason is not None:
        raise OptionError(f"fabric: {reason}")
    check_priority(priority, messages=messages)


def network(spec: FabricSpec | None, ranks: int) -> contextlib.AbstractContextManager[Fabric | None]:
    """The links, while it is entered; None without a spec."""
    return fabric(spec, ranks) if spec is not None else contextlib.nullcontext()


def over(made: Fabric | None, how: Local) -> Local:
    """The same launch over those links."""
    if made is None:
        return how
    return dataclasses.replace(how, address=made.store_address, at_switch=made.at_switch, enter=made.enter)
