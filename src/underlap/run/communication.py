"""Collectives and messages: issued here, waited for where the Plan says. Counts the bytes that it hands to the process groups.

gloo has no reduce-scatter of its own: torch carries it out as an all-reduce, with twice the bytes on the wire. Here it is an
all-to-all and a sum in order of ranks behind the wait, which sends what a reduce-scatter sends. Payloads are counted as DESIGN
defines them, from the tensors that are handed over. What is sent without being an operation of the plan is counted apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist

from underlap.cost.work import Transfer
from underlap.errors import PlanError
from underlap.run.exchange import Exchange
from underlap.run.flight import Flight, now_ns, size_of
from underlap.run.groups import ExchangeOf, GroupOf
from underlap.run.machine import Closure, Rank, Site, void
from underlap.run.program import Instruction, Operand
from underlap.run.routed import Routed


class GroupsOf(Protocol):
    """Process groups by the names that the plan has for them."""

    of: GroupOf
    exchanges: ExchangeOf


class Wire:
    """Binds issues and waits, and keeps what is under way."""

    def __init__(self, rank: Rank, groups: GroupsOf) -> None:
        self.rank, self.groups = rank, groups
        self.flights: dict[int, Flight] = {}
        self.by_row: dict[int, Flight] = {}
        """All of this step, by the row of the issue."""
        self.control: dict[tuple[str, str, str], int] = defaultdict(int)
        """Payload bytes of this step that are no operation of the plan, by group, collective and what they are for."""
        self.watched = False
        self.watchers = ThreadPoolExecutor(max_workers=8, thread_name_prefix="messages")
        self.routed = Routed(rank, groups.of, self._begun, self.control)

    def issue(self, instruction: Instruction) -> Closure:
        """The closure that starts a collective."""
        assert isinstance(instruction.work, Transfer)
        start = self._bound(Site(self.rank, instruction), instruction.work.collective)
        row = instruction.row

        def run() -> None:
            flight = start()
            if self.watched:
                flight.watch(self.watchers)
                self.by_row[row] = flight
            self.flights[row] = flight

        return run

    def wait(self, instruction: Instruction) -> Closure:
        """The closure that waits for it, and puts what came where it belongs."""
        row = instruction.issue

        def run() -> None:
            self.flights.pop(row).wait()

        return run

    def wait_for_all(self) -> None:
        """Of what was issued, for what nothing has waited yet: where a step leaves its waits out."""
        for row in sorted(self.flights):
            self.flights.pop(row).wait()

    # ---- one function per kind of collective; each gives the function that starts it

    def _bound(self, site: Site, collective: str) -> Callable[[], Flight]:
        instruction = site.instruction
        group, exchange = (of[str(instruction.group)] for of in (self.groups.of, self.groups.exchanges))
        first = (*instruction.reads, *instruction.writes)[0].name
        weights = first.startswith(("weight.", "shard.", "gradient.", "gradient_shard."))
        if instruction.group in ("ep", "etp") and collective != "all_reduce" and not weights:
            return self.routed.bound(site, exchange, collective)
        match collective:
            case "all_reduce":
                return self._all_reduce(site, group)
            case "all_gather":
                return self._gather_weights(site, exchange) if weights else self._gather_rows(site, exchange)
            case "reduce_scatter":
                return self._scatter_gradients(site, exchange) if weights else self._scatter_rows(site, exchange)
            case "all_to_all":
                return self._exchange_heads(site, exchange)
            case "send":
                return self._message(site, group)
        raise PlanError(f"{instruction.key}: the engine has no {collective}: expected one that gloo has")

    def _all_reduce(self, site: Site, group: Any) -> Callable[[], Flight]:
        instruction = site.instruction
        kind = dist.ReduceOp.MAX if instruction.role.endswith("maximum_reduce") else dist.ReduceOp.SUM
        targets = [site.write(at) for at in range(len(instruction.writes))]
        if len(targets) == 1 and targets[0].is_contiguous():
            only = targets[0]
            return lambda: Flight(
                self._begun(instruction), [dist.all_reduce(only, kind, group=group, async_op=True)], size_of(only), None
            )
        sizes = [target.numel() for target in targets]

        def start() -> Flight:
            packed = torch.cat([target.reshape(-1) for target in targets])

            def unpack() -> None:
                for target, part in zip(targets, packed.split(sizes), strict=True):
                    target.copy_(part.view(target.shape))

            begun = self._begun(instruction)
            return Flight(begun, [dist.all_reduce(packed, kind, group=group, async_op=True)], size_of(packed), unpack)

        return start

    def _gather_weights(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Parts of several weights -> the weights. In place, a rank's part is where it belongs."""
        instruction = site.instruction
        size = dist.get_world_size(exchange.group)
        own = dist.get_rank(exchange.group)
        targets = [site.write(at) for at in range(len(instruction.writes))]
        lengths = [-(-target.numel() // size) for target in targets]
        in_place = instruction.reads[0].name.startswith("weight.")
        sources = [site.read(at) for at in range(len(instruction.reads))]

        def part(source: torch.Tensor, length: int) -> torch.Tensor:
            if not in_place:
                return source
            return _padded(source.reshape(-1), size * length)[own * length : (own + 1) * length]

        def start() -> Flight:
            packed = torch.cat([part(source, length) for source, length in zip(sources, lengths, strict=True)])
            whole = packed.new_empty(size, packed.numel())
            begun = self._begun(site.instruction)
            works = exchange.all_gather(whole, packed)

            def unpack() -> None:
                for target, piece in zip(targets, whole.split(lengths, dim=1), strict=True):
                    target.copy_(piece.reshape(-1)[: target.numel()].view(target.shape))

            return Flight(begun, works, size_of(whole), unpack)

        return start

    def _scatter_gradients(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Gradients -> this rank's part of their sum, written or added."""
        size = dist.get_world_size(exchange.group)
        sources = [site.read(at) for at in range(len(site.instruction.reads))]
        puts = [site.into(operand) for operand in site.instruction.writes]
        lengths = [-(-source.numel() // size) for source in sources]

        def start() -> Flight:
            parts = [_padded(s.reshape(-1), size * n).view(size, n) for s, n in zip(sources, lengths, strict=True)]
            packed = torch.cat(parts, dim=1)
            result = packed.new_empty(packed.shape[1])
            begun = self._begun(site.instruction)
            works, add_up = _reduce_scatter(result, packed, exchange)

            def unpack() -> None:
                add_up()
                for put, piece in zip(puts, result.split(lengths), strict=True):
                    put(piece)

            return Flight(begun, works, size_of(packed), unpack)

        return start

    def _gather_rows(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Tokens of the tp ranks -> all tokens, in order."""
        size, source, result = dist.get_world_size(exchange.group), site.read(0), site.write(0)
        pieces = self._pieces(site.instruction.writes[0])
        if site.instruction.reads[0].cell == site.instruction.writes[0].cell:
            # Ranks have each made their part of the rows, in place and in order.
            source, pieces = source.view(size, -1, *source.shape[1:])[dist.get_rank(exchange.group)], 1

        def start() -> Flight:
            whole = source.new_empty(size, *source.shape)
            begun = self._begun(site.instruction)
            works = exchange.all_gather(whole, source.contiguous())
            return Flight(begun, works, size_of(whole), lambda: void(result.copy_(_by_piece(whole, pieces).view(result.shape))))

        return start

    def _scatter_rows(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Partial sums of all tokens -> the sum of this rank's."""
        size, source, result = dist.get_world_size(exchange.group), site.read(0), site.write(0)
        pieces = self._pieces(site.instruction.reads[0])

        def start() -> Flight:
            # (pieces, ranks, rows, ...) -> (ranks, pieces, rows, ...)
            parts = source.reshape(pieces, size, -1, *source.shape[1:]).transpose(0, 1).contiguous()
            begun = self._begun(site.instruction)
            works, add_up = _reduce_scatter(result.view(-1), parts.view(size, -1), exchange)
            return Flight(begun, works, size_of(source), add_up)

        return start

    def _pieces(self, operand: Operand) -> int:
        """How many of the pieces that passes cut the tokens into an operand has. In each piece, tp ranks have parts in order."""
        whole = self.rank.program.cells[operand.cell].shape[0]
        return max(1, self.rank.program.pieces * operand.rows // whole)

    def _exchange_heads(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Ulysses: parts of the sequence with all heads <-> all of it with parts of the heads."""
        size, source, result = dist.get_world_size(exchange.group), site.read(0), site.write(0)
        to_heads = result.shape[0] > source.shape[0]
        rows = min(source.shape[0], result.shape[0])
        sections = _sections(site, max(source.shape[1], result.shape[1]))
        sequences = self.sequences(rows)

        def start() -> Flight:
            if to_heads:
                blocks = [part.view(rows, size, -1) for part in source.split(sections, dim=1)]
                sent = torch.cat(blocks, dim=2).transpose(0, 1).contiguous()
            else:
                # (sequences, ranks, positions, width) -> (ranks, sequences, positions, width)
                sent = source.reshape(sequences, size, rows // sequences, -1).transpose(0, 1).contiguous()
            got = torch.empty_like(sent)
            begun = self._begun(site.instruction)
            works = exchange.all_to_all(got.view(size, -1), sent.view(size, -1))

            def unpack() -> None:
                if to_heads:
                    result.copy_(got.view(size, sequences, rows // sequences, -1).transpose(0, 1).reshape(result.shape))
                    return
                narrow = [section // size for section in sections]
                parts = got.view(size, rows, -1).split(narrow, dim=2)
                result.copy_(torch.cat([part.transpose(0, 1).reshape(rows, -1) for part in parts], dim=1))

            return Flight(begun, works, size_of(sent), unpack)

        return start

    def sequences(self, rows: int) -> int:
        """How many sequences (or parts of one) so many token rows are."""
        positions = int(self.rank.positions.max() - self.rank.positions.min()) + 1
        return max(1, rows // positions)

    def _message(self, site: Site, group: Any) -> Callable[[], Flight]:
        """To another stage or from it, or both around a ring."""
        instruction = site.instruction
        source = site.read(0) if instruction.reads else None
        result = site.write(0) if instruction.writes else None
        finish: Closure | None = None
        assert isinstance(instruction.work, Transfer)
        if instruction.work.gathered > 1:
            # Ranks of tp hold the same: each sends its part, and the receivers gather theirs.
            source = None if source is None else self._part(source)
            if result is not None:
                whole, result = result, torch.empty_like(self._part(result))
                finish = self._gathered(whole, result)

        def start() -> Flight:
            begun = self._begun(instruction)
            works = self._exchange(instruction, source, result, group)
            return Flight(begun, works, 0 if source is None else size_of(source), finish)

        return start

    def _exchange(
        self, instruction: Instruction, source: torch.Tensor | None, result: torch.Tensor | None, group: Any
    ) -> list[Any]:
        """Begin to receive, and to send. What comes is expected first: on one pair of sockets a notice to send would wait
        behind the payload."""
        works = []
        if result is not None:
            works.append(dist.irecv(result, src=instruction.receive_from, group=group, tag=instruction.tag))
        if source is not None:
            works.append(dist.isend(source, dst=instruction.send_to, group=group, tag=instruction.tag))
        return works

    def _begun(self, instruction: Instruction) -> int:
        """Called right before the library is: the moment, on the host's clock."""
        del instruction
        return now_ns()

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        """This tp rank's share of the rows of something that all of tp hold."""
        return tensor.view(-1).chunk(len(self.rank.program.members["tp"]))[self.rank.tp_index]

    def _gathered(self, whole: torch.Tensor, part: torch.Tensor) -> Closure:
        """Put together behind the wait what each tp rank received."""
        tp = self.groups.exchanges["tp"]
        parts = whole.view(dist.get_world_size(tp.group), -1)

        def gather() -> None:
            self.control["tp", "all_gather", "parts of messages"] += size_of(whole)
            for work in tp.all_gather(parts, part.view(-1)):
                work.wait()

        return gather


def _sections(site: Site, width: int) -> list[int]:
    """Columns of queries, keys and values of a row; of a row of results, one section."""
    if "context" in site.instruction.reads[0].name:
        return [width]
    model = site.model
    kv_heads = width // (model.heads // model.kv_heads * model.head_dim + model.head_dim + model.value_dim)
    key, value = kv_heads * model.head_dim, kv_heads * model.value_dim
    return [width - key - value, key, value]


def _by_piece(whole: torch.Tensor, pieces: int) -> torch.Tensor:
    """(ranks, pieces * rows, ...) -> (pieces, ranks, rows, ...)."""
    size, rows, *rest = whole.shape
    return whole.view(size, pieces, rows // pieces, *rest).transpose(0, 1).reshape(-1, *rest)


def _reduce_scatter(result: torch.Tensor, parts: torch.Tensor, exchange: Exchange) -> tuple[list[Any], Closure]:
    """Begin to add up row r of every rank's parts on rank r; the second half of it is done once the first has ended."""
    if dist.get_backend(exchange.group) != "gloo":
        return [dist.reduce_scatter_single(result, parts.view(-1), group=exchange.group, async_op=True)], lambda: None
    got = torch.empty_like(parts)
    works = exchange.all_to_all(got, parts)
    return works, lambda: void(result.copy_(got.float().sum(0) if got.dtype != torch.float64 else got.sum(0)))


def _padded(flat: torch.Tensor, length: int) -> torch.Tensor:
    return flat if flat.numel() == length else torch.cat((flat, flat.new_zeros(length - flat.numel())))
