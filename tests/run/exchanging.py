"""What two ranks do to compare exchanges over a group for each way with those of the library. An entry for started processes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist

from underlap.run.exchange import Exchange
from underlap.run.session import Session

ROWS = [((3, 5), (2, 4)), ((0, 5), (0, 4)), ((3, 0), (2, 0)), ((0, 0), (0, 1)), ((1, 1), (1, 1))]
"""(rows that rank 0 sends to rank 0 and 1, those of rank 1)."""


def compared(session: Session, out: Path) -> None:
    """Rank 0 writes, for each exchange, whether all ranks got the same both ways."""
    with session.connected():
        ranks = [0, 1]
        group = dist.new_group(ranks)
        plain, paired = Exchange(group, None), Exchange(group, (dist.new_group(ranks), dist.new_group(ranks)))
        same = []
        for number, rows in enumerate(ROWS):
            there = rows[session.rank]
            here = tuple(each[session.rank] for each in rows)
            sent = torch.arange(sum(there) * 7, dtype=torch.float64).view(-1, 7) + 1000 * session.rank + number
            same.append(_equal(plain, paired, sent, (sum(here), 7), here, there))
        sent = torch.arange(24.0).view(2, 12) + 100 * session.rank
        same.append(_equal(plain, paired, sent, (2, 12), None, None))
        gathered = []
        for exchange in (plain, paired):
            whole = torch.zeros(2, 12)
            for work in exchange.all_gather(whole, sent[0]):
                work.wait()
            gathered.append(whole)
        same.append(torch.equal(*gathered))
        every = session.gathered(same)
        if session.rank == 0:
            out.write_text(json.dumps(every))
        session.gathered(None)


def _equal(
    plain: Exchange,
    paired: Exchange,
    sent: torch.Tensor,
    shape: tuple[int, int],
    here: tuple[int, int] | None,
    there: tuple[int, int] | None,
) -> bool:
    got = []
    for exchange in (plain, paired):
        into = torch.full(shape, -1.0, dtype=sent.dtype)
        for work in exchange.all_to_all(into, sent, here, there):
            work.wait()
        got.append(into)
    return torch.equal(*got) and bool((got[0] >= 0).all())
