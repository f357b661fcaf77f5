"""One rank among others: it meets them, makes sure that all have the same plan, and says what went wrong.

A store comes first and the process groups later: gloo aborts the process, or returns garbage, where ranks disagree on sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from underlap.errors import DisagreementError, RunError

WORLD = "world"


class Session:
    """A rank's place in the job, from the first meeting to the end."""

    def __init__(self, store: Any, rank: int, world: int, timeout_s: float) -> None:
        self._whole = store
        self.store = dist.PrefixStore("underlap", store)
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        self.store.set_timeout(timedelta(seconds=timeout_s))
        self.doing = "meeting the other ranks"

    def begin(self, name: str) -> None:
        """Start afresh under a name of its own: what was told before is not seen."""
        self.store = dist.PrefixStore(name, self._whole)
        self.store.set_timeout(timedelta(seconds=self.timeout_s))

    def agree(self, subject: str, value: str) -> None:
        """Raises DisagreementError, which names the ranks, unless all have the same value. Sends nothing but the value."""
        self.doing = f"comparing {subject} with the other ranks"
        self.store.set(f"{subject}/{self.rank}", value)
        values = [self._value(subject, rank) for rank in range(self.world)]
        first = values[0]
        other = [rank for rank, found in enumerate(values) if found != first]
        if other:
            named = ", ".join(map(str, other))
            raise DisagreementError(
                f"rank {named} and rank 0 were started with different {subject}: expected the same command on every rank"
            )

    def _value(self, subject: str, rank: int) -> str:
        try:
            return bytes(self.store.get(f"{subject}/{rank}")).decode()
        except RuntimeError as error:
            if "timeout" not in str(error).lower() and "timed out" not in str(error):
                raise
            raise RunError(
                f"rank {rank} did not come within {self.timeout_s:g} s: expected {self.world} ranks, as the layout has"
            ) from None

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Process groups are up inside."""
        self.doing = "connecting to the other ranks"
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("groups", self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=self.timeout_s),
        )
        yield
        # Not after an error: the others may be gone, and what waits for them would wait again.
        dist.destroy_process_group()

    def gathered(self, value: object) -> list[Any]:
        """The values of all ranks, on every rank."""
        self.doing = "handing in results"
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def from_first(self, subject: str, value: str) -> str:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            self.store.set(subject, value)
        return bytes(self.store.get(subject)).decode()

    def leave(self) -> None:
        """The job is done. Rank 0 goes last, as it may hold the store; it does not wait for longer than for a meeting."""
        self.doing = "leaving"
        if self.rank:
            self.store.set(f"left/{self.rank}", "")
        elif self.world > 1:
            self.store.wait([f"left/{rank}" for rank in range(1, self.world)], timedelta(seconds=self.timeout_s))
