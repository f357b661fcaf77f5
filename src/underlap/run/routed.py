"""Rows of tokens that routing sends: between ranks of ep, and gathered and added up over etp. How many is known since the choice.

Where experts are divided over etp and tokens too (sequence parallelism), each rank of etp computes its part of the experts for
the rows of all of them. gloo gathers and scatters equal sizes only: here both are all-to-alls, which send what those would send.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from underlap.errors import PlanError
from underlap.run.exchange import Exchange
from underlap.run.flight import Flight, size_of
from underlap.run.groups import COUNTS, GroupOf
from underlap.run.machine import Rank, Route, Site
from underlap.run.program import Instruction

NUMBERS = "numbers of rows"


class Routed:
    """Binds the collectives on routed rows.

    `groups`: process groups by name. `begun`: called right before the library is. `control`: payload bytes of what is no
    operation of the plan, by group, collective and what it is for; added to.
    """

    def __init__(
        self, rank: Rank, groups: GroupOf, begun: Callable[[Instruction], int], control: dict[tuple[str, str, str], int]
    ) -> None:
        self.rank, self.groups, self.begun, self.control = rank, groups, begun, control
        self.gathers = any(one.role == "experts.dispatch.gather" for one in rank.program.instructions)
        if COUNTS in groups or self.gathers:
            rank.exchange_counts = self._exchange_counts

    def bound(self, site: Site, exchange: Exchange, collective: str) -> Callable[[], Flight]:
        """The function that starts a collective. Raises PlanError for a kind that routed rows do not travel by."""
        match collective:
            case "all_to_all":
                return self._exchange_rows(site, exchange)
            case "all_gather":
                return self._gather(site, exchange)
            case "reduce_scatter":
                return self._scatter(site, exchange)
        raise PlanError(f"{site.instruction.key}: the engine has no {collective} of routed rows: expected one that gloo has")

    def _exchange_rows(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Dispatch and combine: rows to the ranks of their experts, and back; how many is known since the routing."""
        instruction, rank = site.instruction, self.rank
        key, (source,), (target,) = site.route_key, instruction.reads, instruction.writes
        size = dist.get_world_size(exchange.group)
        put = site.into(target)
        outward = source.name in ("experts.sent", "grad.experts.returned")

        def start() -> Flight:
            route = rank.routes[key]
            mine = route.sent.view(size, -1).sum(1).tolist()
            theirs = [sum(rows) for rows in route.table()]
            sent = rank.memory.view(source).contiguous()
            there, here = (mine, theirs) if outward else (theirs, mine)
            got = sent.new_empty((sum(here), *sent.shape[1:]))
            begun = self.begun(site.instruction)
            works = exchange.all_to_all(got, sent, here, there)
            return Flight(begun, works, size_of(sent), lambda: put(got))

        return start

    def _gather(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Each etp rank's rows for the experts that they share -> all of them, in order of ranks; as many as routing makes."""
        rank, key, source = self.rank, site.route_key, site.instruction.reads[0]
        put, size = site.into(site.instruction.writes[0]), dist.get_world_size(exchange.group)

        def start() -> Flight:
            rows = _rows_of_each(rank.routes[key])
            own = rank.memory.view(source)
            got = own.new_empty((sum(rows), *own.shape[1:]))
            sent = own.repeat(size, *[1] * (own.dim() - 1))
            begun = self.begun(site.instruction)
            works = exchange.all_to_all(got, sent, rows, [own.shape[0]] * size)
            return Flight(begun, works, size_of(got), lambda: put(got))

        return start

    def _scatter(self, site: Site, exchange: Exchange) -> Callable[[], Flight]:
        """Partial results of all etp ranks' rows -> the sum of this rank's, in order of ranks."""
        rank, key, source = self.rank, site.route_key, site.instruction.reads[0]
        put, size = site.into(site.instruction.writes[0]), dist.get_world_size(exchange.group)

        def start() -> Flight:
            route = rank.routes[key]
            rows = _rows_of_each(route)
            partial = rank.memory.view(source).contiguous()
            mine = rows[route.own]
            got = partial.new_empty((size * mine, *partial.shape[1:]))
            begun = self.begun(site.instruction)
            works = exchange.all_to_all(got, partial, [mine] * size, rows)
            return Flight(begun, works, size_of(partial), lambda: put(got.view(size, mine, -1).float().sum(0)))

        return start

    def _exchange_counts(self, sent: torch.Tensor, _key: str) -> Callable[[], torch.Tensor]:
        """Begin to tell each rank how many rows its experts get. The result waits for what `Route.arriving` gives."""
        group = self.groups.get(COUNTS)
        got, work = sent, None
        if group is not None:
            got = torch.empty_like(sent)
            self.control["ep", "all_to_all", NUMBERS] += size_of(sent)
            work = dist.all_to_all_single(got, sent.contiguous(), group=group, async_op=True)

        def arrived() -> torch.Tensor:
            if work is not None:
                work.wait()
            own = got.view(1, 1 if group is None else dist.get_world_size(group), -1)
            if not self.gathers:
                return own
            etp = self.groups["etp"]
            whole = own.new_empty(dist.get_world_size(etp), *own.shape[1:])
            self.control["etp", "all_gather", NUMBERS] += size_of(whole)
            dist.all_gather_single(whole, own.contiguous(), group=etp)
            return whole

        return arrived


def _rows_of_each(route: Route) -> list[int]:
    """How many rows each etp rank has got for the experts that they share."""
    return [sum(map(sum, table)) for table in route.tables()]
