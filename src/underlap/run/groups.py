"""The process groups of a plan: one for each of its groups, by the plan's names, and two more where two ranks exchange something.

They are made with new_group, and not through torch's DeviceMesh, whose groups are the same ones (a test holds that). A mesh gives
the groups of its dimensions; what a plan needs beyond that:

* products of dimensions (fsdp over dp x cp) would be DeviceMesh._flatten, which is private, and make groups of each factor too;
* experts have a second mesh over the ranks of a stage, hence a second DeviceMesh, which makes the groups of pp once more;
* a second group on the same ranks, for the numbers of rows that must not queue behind payloads, is no dimension of any mesh;
* a dimension as large as the world is the default group, unless its backend is overridden: barriers would share it, and the two
  plans of a comparison as well;
* an overridden backend has torch's timeout of 30 minutes, unless ProcessGroupGloo._Options, private too, says otherwise.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from underlap.run.exchange import Exchange, Ways
from underlap.run.program import Program

GroupOf = dict[str, Any]
ExchangeOf = dict[str, Exchange]

COUNTS = "ep counts"
"""The group in which ranks of ep tell each other how many rows they send."""


class Groups:
    """A process group for each group of the plan, two more where two ranks exchange something, and one for the numbers of rows
    that ranks of ep tell each other."""

    def __init__(self, program: Program, timeout_s: float) -> None:
        self.of: GroupOf = {}
        self.exchanges: ExchangeOf = {}
        made: list[Any] = []

        def new(ranks: tuple[int, ...], name: str) -> Any:
            made.append(dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s), group_desc=name))
            return made[-1]

        tables = dict(program.tables)
        if "ep" in tables:
            tables[COUNTS] = tables["ep"]
        # Every rank makes every group, in one order: that is how torch agrees on them.
        for name, table in tables.items():
            for ranks in table:
                group = new(ranks, name)
                ways: Ways | None = None
                if name in program.paired:
                    ways = new(ranks, f"{name} from its first rank"), new(ranks, f"{name} from its second rank")
                if program.rank in ranks:
                    self.of[name], self.exchanges[name] = group, Exchange(group, ways)
        self._made = made

    @property
    def number(self) -> int:
        """How many were made, of all ranks."""
        return len(self._made)

    def close(self) -> None:
        """Give the groups back."""
        for group in self._made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
