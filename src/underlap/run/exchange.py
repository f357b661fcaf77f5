"""All-gathers and all-to-alls of a group. Between two ranks over gloo each direction goes over a process group of its own.

gloo tells the other rank that it is ready to receive on the socket over which it sends. A rank that comes a little later than the
other has begun to send when it says so, and what the other has to send waits for that: one direction after the other, twice the
time. Measured at 500 Mbit/s with torch 2.13, 1 MiB each way: 31.6 ms with ranks 0.3 ms apart, 16.1 ms with ranks 0.1 ms apart,
and 16.1 ms however far apart they are over two groups, where nothing that a rank has to say is behind what it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

Ways = tuple[Any, Any]
"""Of two ranks: the group over which each of them sends."""


class Exchange:
    """The exchanges of one group.

    `group`: of all its ranks. `ways`: of two ranks, the groups to exchange over; None: exchanges are what the library has.
    """

    def __init__(self, group: Any, ways: Ways | None) -> None:
        self.group, self.ways = group, ways

    def all_gather(self, whole: torch.Tensor, own: torch.Tensor) -> list[Any]:
        """Begin to put every rank's `own` into `whole`, (ranks, ...) in order of ranks."""
        if self.ways is None:
            return [dist.all_gather_single(whole.view(-1), own.reshape(-1), group=self.group, async_op=True)]
        rank = dist.get_rank(self.group)
        works = self._both(whole[1 - rank], own, rank)
        whole[rank].copy_(own)
        return works

    def all_to_all(
        self, got: torch.Tensor, sent: torch.Tensor, here: Sequence[int] | None = None, there: Sequence[int] | None = None
    ) -> list[Any]:
        """Begin to send the parts of `sent` to the ranks in order, and to put what comes into `got` in order.

        `here`, `there`: rows of each rank in `got` and in `sent`; None: all have as many.
        """
        if self.ways is None:
            sizes = [list(here), list(there)] if here is not None and there is not None else []
            return [dist.all_to_all_single(got, sent, *sizes, group=self.group, async_op=True)]
        rank = dist.get_rank(self.group)
        gets = got.split(list(here)) if here is not None else got.chunk(2)
        sends = sent.split(list(there)) if there is not None else sent.chunk(2)
        works = self._both(gets[1 - rank], sends[1 - rank], rank)
        gets[rank].copy_(sends[rank])
        return works

    def _both(self, coming: torch.Tensor, going: torch.Tensor, rank: int) -> list[Any]:
        assert self.ways is not None
        return [
            dist.broadcast(coming, group_src=1 - rank, group=self.ways[1 - rank], async_op=True),
            dist.broadcast(going, group_src=rank, group=self.ways[rank], async_op=True),
        ]
