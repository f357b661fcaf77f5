"""async_p2p: messages between pipeline stages beside compute.

A receive is posted one task earlier, so that it is under way while that task computes, and a send is waited for one task later
(Megatron's --overlap-p2p-communication, which needs interleaving to have something to put between).
"""

from __future__ import annotations

import dataclasses

from underlap.errors import PlanError
from underlap.meetings import validate
from underlap.plan import Plan, Role, Step
from underlap.schedule.rewriting import Refused


def async_p2p(plan: Plan) -> Plan:
    """Receives one task earlier, waits for sends one task later. Raises Refused where stages would then wait in a circle."""
    if not any(name.startswith("send.") for name in plan.blocks):
        raise Refused("there is one stage only: nothing is sent between stages")
    made = dataclasses.replace(plan, roles=tuple(_role(role) for role in plan.roles))
    try:
        validate(made)
    except PlanError as error:
        raise Refused(f"with messages beside compute the stages wait in a circle under this schedule ({error})") from error
    return made


def _role(role: Role) -> Role:
    """Cut the program into tasks (runs of computing steps) and messages between them, and move the messages."""
    tasks: list[list[Step]] = [[]]
    between: list[list[Step]] = [[]]
    for step in role.program:
        message = step.block.split(".")[0] in ("send", "receive", "wait") and not step.block.startswith("wait.buckets")
        if message:
            if tasks[-1]:
                tasks.append([])
                between.append([])
            between[-1].append(step)
        else:
            tasks[-1].append(step)
    if not tasks[-1]:
        tasks.pop()
        last = between.pop()
    else:
        last = []
    program: list[Step] = []
    unsent: list[Step] = []
    for number, task in enumerate(tasks):
        messages = between[number]
        own = {(step.block.partition(".")[2], step.place) for step in messages if step.block.startswith("receive.")}
        waits = [step for step in messages if step.block.startswith("wait.")]
        received = [step for step in waits if (step.block.partition(".")[2], step.place) in own]
        program += unsent
        unsent = [step for step in waits if step not in received]
        program += [step for step in messages if step.block.startswith("send.")]
        if number == 0:
            program += [step for step in messages if step.block.startswith("receive.")]
        following = between[number + 1] if number + 1 < len(tasks) else []
        program += received
        # What the next task needs is received while this one computes.
        program += [step for step in following if step.block.startswith("receive.")]
        program += task
    sends = [step for step in last if step.block.startswith("send.")]
    waits = [step for step in last if step.block.startswith("wait.")]
    return dataclasses.replace(role, program=(*program, *unsent, *sends, *waits))
