"""The groups that ranks communicate in, from the layout."""

from __future__ import annotations

from underlap.layout import Layout
from underlap.plan import Group

PIPELINE = "pp"
STATES, REPLICAS = "fsdp", "dp"
EXPERT_STATES, EXPERT_REPLICAS = "expert_fsdp", "expert_dp"


def kinds(layout: Layout) -> dict[str, tuple[str, ...]]:
    """For each group name its mesh dimensions, innermost first; no dimensions where the group has one rank.

    fsdp shards states, dp reduces what is left; experts have their own, over the ranks that hold the same experts. Experts
    are sharded over all of edp, or over none of it: a split of edp into shards and replicas is not modeled.
    """
    sharded = bool(layout.shard_dimensions)
    experts = ("edp",) if layout.edp > 1 else ()
    return {
        "tp": _wide(layout, "tp"),
        "cp": _wide(layout, "cp"),
        "ep": _wide(layout, "ep"),
        "etp": _wide(layout, "etp"),
        STATES: layout.shard_dimensions,
        REPLICAS: layout.replica_dimensions,
        EXPERT_STATES: experts if sharded else (),
        EXPERT_REPLICAS: () if sharded else experts,
        PIPELINE: _wide(layout, "pp"),
    }


def groups(layout: Layout, domain: int) -> dict[str, Group]:
    """Every kind of group of the layout, placed in scale-up domains of `domain` devices."""
    made: dict[str, Group] = {}
    for name, dimensions in kinds(layout).items():
        if not dimensions:
            made[name] = Group(name=name, axis=(), size=1, ranks_per_domain=1, domains=1)
            continue
        place = layout.placement(domain, *dimensions)
        # A transfer needs equal shares per domain: where groups lie unevenly, the ones spread widest stand for all.
        per_domain = place.size // place.domains if place.size % place.domains == 0 else 1
        made[name] = Group(
            name=name, axis=dimensions, size=place.size, ranks_per_domain=per_domain, domains=place.size // per_domain
        )
    return made


def members(layout: Layout, rank: int) -> dict[str, tuple[int, ...]]:
    """For each kind of group with more than one rank: the ranks of the one that a rank belongs to."""
    found: dict[str, tuple[int, ...]] = {}
    for name, dimensions in kinds(layout).items():
        if dimensions:
            table = layout.groups(*dimensions)
            found[name] = tuple(table[(table == rank).any(axis=1)][0].tolist())
    return found


def _wide(layout: Layout, axis: str) -> tuple[str, ...]:
    return (axis,) if layout.degree(axis) > 1 else ()
