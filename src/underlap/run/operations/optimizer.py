"""Adam (Kingma and Ba 2015, arXiv 1412.6980) on this rank's part of the weights, from a master copy in fp32."""

from __future__ import annotations

import torch

from underlap.run.machine import Closure, Site


def step(site: Site) -> Closure:
    """gradients, states -> states, weights; a state has three numbers per parameter: master copy, mean, mean of squares."""
    members = [operand.name.removeprefix("state.") for operand in site.instruction.reads if operand.name.startswith("state.")]
    pieces = [_member(site, name) for name in members]

    def run() -> None:
        for piece in pieces:
            piece()

    return run


def _member(site: Site, name: str) -> Closure:
    reads = {operand.name: operand for operand in site.instruction.reads}
    writes = {operand.name: operand for operand in site.instruction.writes}
    view = site.rank.memory.view
    gradient = view(reads.get(f"gradient_shard.{name}") or reads[f"gradient.{name}"])
    state = view(reads[f"state.{name}"])
    weight = view(writes.get(f"shard.{name}") or writes[f"weight.{name}"])
    lacking, constants = site.rank.lacking, site.rank.constants
    # Of a whole weight whose states are sharded, this rank's part; the others are gathered next.
    flat = weight.view(-1)
    begin = 0
    if flat.shape[0] > state.shape[0]:
        begin = shard_index(site) * state.shape[0]
    target = flat[begin : begin + state.shape[0]]
    master, mean, square = state[:, 0], state[:, 1], state[:, 2]
    beta, gamma = constants.betas

    def run() -> None:
        given = gradient.reshape(-1).float()
        mean.mul_(beta).add_(given, alpha=1 - beta)
        square.mul_(gamma).addcmul_(given, given, value=1 - gamma)
        spread = (square / lacking[1]).sqrt_().add_(constants.optimizer_epsilon)
        master.addcdiv_(mean / lacking[0], spread, value=-constants.learning_rate)
        target.copy_(master[: target.shape[0]])

    return run


def shard_index(site: Site) -> int:
    """Which part of the states this rank has."""
    program = site.rank.program
    group = "expert_fsdp" if site.instruction.role.endswith(".expert") else "fsdp"
    return program.members[group].index(program.rank)


def master_of(weight: torch.Tensor, state: torch.Tensor, index: int) -> None:
    """Start a state: its part of the weight as the master copy, no mean and no squares yet."""
    state.zero_()
    flat = weight.reshape(-1)
    part = flat[index * state.shape[0] : (index + 1) * state.shape[0]]
    state[: part.shape[0], 0].copy_(part)
