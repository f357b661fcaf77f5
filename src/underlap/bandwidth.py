"""Bus-bandwidth factors of collectives, for whoever turns bytes and time into a rate.

Does not model a topology or an algorithm: the factors make rates of different collectives and sizes comparable, no more.
"""

from __future__ import annotations

_WHOLE = frozenset({"broadcast", "reduce", "send", "recv", "send_recv", "permute"})
_ALL_BUT_OWN = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})


def bus_factor(collective: str | None, size: int | None) -> float | None:
    """What payload / time is multiplied by to give bus bandwidth; None where the collective or the group size is unknown.

    As nccl-tests defines it (doc/PERFORMANCE.md, "Bus bandwidth"; gather and scatter: gather.cu and scatter.cu of the same
    project), for a payload as DESIGN defines it: an all-reduce moves each byte 2(n-1)/n times over the slowest link, an
    all-gather, reduce-scatter or all-to-all (n-1)/n times, a broadcast, reduce or point-to-point transfer once.
    Dispatch and combine have none: how much of their payload stays on the rank depends on the routing.
    """
    if collective in _WHOLE:
        return 1.0
    if size is None or size < 1:
        return None
    if collective == "all_reduce":
        return 2 * (size - 1) / size
    if collective in _ALL_BUT_OWN:
        return (size - 1) / size
    return None
