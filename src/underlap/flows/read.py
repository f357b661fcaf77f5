"""Read traces: files and folders, one file per rank or several ranks in one, into one Timeline."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from underlap.errors import InputError, UnreadableError
from underlap.read import formats
from underlap.read.names import NameTable
from underlap.timeline import Note, Timeline, concatenate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far reading has come."""

    file: str
    done_bytes: int
    total_bytes: int
    """Over all files."""
