"""Memory of the host in huge pages, for what a plan computes with.

In pages of 4 KiB it is chance which of them lie beside each other, and so how much of a cache a tensor has: the same optimizer
step took 54 ms with the memory of one plan and 72 ms with that of the other, for a whole launch, where both compute the same. In
pages of 2 MiB the difference is gone, and what is compared is the plans.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from itertools import accumulate

import torch

_HUGE = 1 << 21
_ALIGNED = 1 << 8
"""Bytes at whose multiples a piece begins."""


def pieces(sizes: Sequence[int]) -> list[torch.Tensor]:
    """A tensor of so many zero bytes for each: uint8, shape (size,). In huge pages where the kernel gives them when asked."""
    begins = [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
    whole = _whole(begins[-1])
    return [whole[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]


def _whole(size: int) -> torch.Tensor:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size, dtype=torch.uint8)
    # Private: what is shared counts as a file, which has huge pages by a setting of its own.
    held = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: pages are small then
        held.madvise(mmap.MADV_HUGEPAGE)
    mapped = torch.frombuffer(held, dtype=torch.uint8)
    begin = -mapped.data_ptr() % _HUGE
    # Zero already: written to have the pages now and not in a step.
    return mapped[begin : begin + size].zero_()
