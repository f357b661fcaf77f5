"""Collectives on streams: the whole of one - packing, transfer, unpacking - is put on its channel's stream as it is issued.

So memory that is made on the way belongs to that stream and is given back to it; the waiting lane waits for an event, which
`lanes` does. Messages between stages go over a communicator per direction: on one for both, a send that waits for its receiver
would hold back what is received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from underlap.cost.work import Transfer
from underlap.run.communication import Wire
from underlap.run.exchange import Exchange
from underlap.run.groups import COUNTS, ExchangeOf
from underlap.run.lanes import StreamLanes
from underlap.run.machine import Closure, Rank, Site
from underlap.run.program import Instruction, Program
from underlap.run.streams import Link, link_of, links, thread_blocks

Make = Callable[..., Any]
"""(ranks, name, thread blocks or None, alone=whether only members make it) -> a process group."""


class Communicators:
    """One for each group of the plan, one for the numbers of rows that ranks of ep tell each other, one for each link."""

    def __init__(self, program: Program, make: Make) -> None:
        self.of: dict[str, Any] = {}
        self.exchanges: ExchangeOf = {}
        self.by_link: dict[Link, Any] = {}
        self._made: list[Any] = []
        blocks = thread_blocks(program)
        tables = dict(program.tables)
        if "ep" in tables:
            tables[COUNTS] = tables["ep"]
        # Every rank makes every group, in one order: that is how torch agrees on them.
        for name, table in tables.items():
            for ranks in table:
                group = make(ranks, name, blocks.get(name), alone=False)
                self._made.append(group)
                if program.rank in ranks:
                    self.of[name], self.exchanges[name] = group, Exchange(group, None)
        for link in links(program):
            ends = tuple(sorted((link.source, link.target)))
            group = make(ends, f"pp {link.way} {link.source} to {link.target}", blocks.get("pp"), alone=True)
            self._made.append(group)
            self.by_link[link] = group

    def close(self) -> None:
        """Give them back."""
        for group in self._made:
            if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)


class StreamWire(Wire):
    """Binds issues and waits to streams."""

    def __init__(self, rank: Rank, groups: Communicators, lanes: StreamLanes) -> None:
        super().__init__(rank, groups)
        self.links = groups.by_link
        self.lanes = lanes
        self.at_row = {one.row: at for at, one in enumerate(rank.program.instructions)}
        self.late: dict[int, Closure] = {}

    def issue(self, instruction: Instruction) -> Closure:
        """The closure that puts a collective on the current stream."""
        assert isinstance(instruction.work, Transfer)
        start = self._bound(Site(self.rank, instruction), instruction.work.collective)
        row, at = instruction.row, self.at_row[instruction.row]
        message = instruction.send_to is not None or instruction.receive_from is not None

        def run() -> None:
            self._lend(instruction, at)
            flight = start()
            for work in flight.works:
                work.wait()  # the stream does, not the host
            self.lanes.ends(at)
            if message:
                # Gathering parts is a collective of tp: in order with the others where the plan waits, not here.
                self.late[row] = flight.finish or _nothing
            elif flight.finish is not None:
                flight.finish()
            self._lend(instruction, at)
            if self.watched:
                self.by_row[row] = flight

        return run

    def wait(self, instruction: Instruction) -> Closure:
        """What is left to do behind the wait."""
        row = instruction.issue

        def run() -> None:
            self.late.pop(row, _nothing)()

        return run

    def _lend(self, instruction: Instruction, at: int) -> None:
        """Routed rows are made on one stream and used on another: their memory must not be given away in between."""
        memory = self.rank.memory
        for operand in (*instruction.reads, *instruction.writes):
            if memory.program.cells[operand.cell].slot < 0 and (tensor := memory.tensors[operand.cell]) is not None:
                for stream in (self.lanes.root, self.lanes.stream_of(at)):
                    self.lanes.calls.lend(tensor, stream)

    def _begun(self, instruction: Instruction) -> int:
        self.lanes.begins(self.at_row[instruction.row])
        return super()._begun(instruction)

    def _exchange(
        self, instruction: Instruction, source: torch.Tensor | None, result: torch.Tensor | None, group: Any
    ) -> list[Any]:
        link = link_of(self.rank.program, instruction)
        if link is None:
            assert source is not None
            assert result is not None
            # Both at once: one after the other, all ranks of a ring would send and none receive.
            both = [
                dist.P2POp(dist.irecv, result, instruction.receive_from, group),
                dist.P2POp(dist.isend, source, instruction.send_to, group),
            ]
            return list(dist.batch_isend_irecv(both))
        group = self.links[link]
        if result is not None:
            return [dist.irecv(result, src=instruction.receive_from, group=group)]
        return [dist.isend(source, dst=instruction.send_to, group=group)]


def _nothing() -> None:
    """There is nothing left to do."""
