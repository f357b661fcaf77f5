"""async_p2p: messages between pipeline stages beside compute.

A receive is posted one task earlier, so that it is under way while that task computes (Megatron's --overlap-p2p-communication,
which needs interleaving to have something to put between). A send is waited for only once something received from its receiver
shows that it has arrived, so that it never holds a task; a last one at the end of the step. Until then its buffer is kept.
"""

from __future__ import annotations

import dataclasses

from underlap.errors import PlanError
from underlap.meetings import validate
from underlap.plan import Place, Plan, Role, Step
from underlap.schedule.rewriting import Refused

_Message = tuple[str, Place]
"""Which way it goes, and the micro-batch and layer border that it crosses."""


def async_p2p(plan: Plan) -> Plan:
    """Receives one task earlier, waits for sends when they cannot wait. Raises Refused where stages would wait in a circle."""
    if not any(name.startswith("send.") for name in plan.blocks):
        raise Refused("there is one stage only: nothing is sent between stages")
    cuts = {role.name: _cut(role) for role in plan.roles}
    sender = {message: (name, at) for name, cut in cuts.items() for message, at in cut.sent.items()}
    receiver = {message: (name, at) for name, cut in cuts.items() for message, at in cut.received.items()}
    if len(sender) != sum(len(cut.sent) for cut in cuts.values()):
        raise Refused("a stage has several roles: apply this before roles are taken apart")
    made = dataclasses.replace(
        plan,
        roles=tuple(
            dataclasses.replace(role, program=_program(cuts[role.name], _arrivals(cuts[role.name], sender, receiver)))
            for role in plan.roles
        ),
    )
    try:
        validate(made)
    except PlanError as error:
        raise Refused(f"with messages beside compute the stages wait in a circle under this schedule ({error})") from error
    return made


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """A program as tasks (runs of computing steps) and the messages in front of each; the last messages have no task behind."""

    tasks: list[list[Step]]
    before: list[list[Step]]
    sent: dict[_Message, int]
    """In front of which task each send is issued."""
    received: dict[_Message, int]
    """In front of which task each receive is waited for."""


def _cut(role: Role) -> _Cut:
    tasks: list[list[Step]] = []
    before: list[list[Step]] = [[]]
    for step in role.program:
        if _is_message(step):
            if len(before) == len(tasks):
                before.append([])
            before[-1].append(step)
        elif len(before) > len(tasks):
            tasks.append([step])
        else:
            tasks[-1].append(step)
    if len(before) == len(tasks):
        before.append([])
    posted = {_message(step) for steps in before for step in steps if step.block.startswith("receive.")}
    return _Cut(
        tasks,
        before,
        {_message(step): at for at, steps in enumerate(before) for step in steps if step.block.startswith("send.")},
        {
            _message(step): at
            for at, steps in enumerate(before)
            for step in steps
            if step.block.startswith("wait.") and _message(step) in posted
        },
    )


def _is_message(step: Step) -> bool:
    return step.block.split(".")[0] in ("send", "receive", "wait") and not step.block.startswith("wait.buckets")


def _message(step: Step) -> _Message:
    return step.block.partition(".")[2], step.place


def _arrivals(
    cut: _Cut, sender: dict[_Message, tuple[str, int]], receiver: dict[_Message, tuple[str, int]]
) -> dict[int, list[Step]]:
    """In front of which task each send is known to have arrived; behind all where nothing tells."""
    # What comes back from each neighbor: (in front of which own task, in front of which of its tasks it was sent).
    back: dict[str, list[tuple[int, int]]] = {}
    for message, at in sorted(cut.received.items(), key=lambda item: item[1]):
        neighbor, when = sender[message]
        back.setdefault(neighbor, []).append((at, when))
    found: dict[int, list[Step]] = {}
    end = len(cut.before)
    for message, issued in cut.sent.items():
        neighbor, taken = receiver[message]
        # Sent behind a task that the message was waited for by, or a later one.
        told = [at for at, when in back.get(neighbor, ()) if when > taken and at >= issued]
        found.setdefault(min(told, default=end), []).append(Step(f"wait.{message[0]}", message[1]))
    return found


def _program(cut: _Cut, arrivals: dict[int, list[Step]]) -> tuple[Step, ...]:
    program: list[Step] = []
    for number, messages in enumerate(cut.before):
        program += [step for step in messages if step.block.startswith("send.")]
        if number == 0:
            program += [step for step in messages if step.block.startswith("receive.")]
        program += [step for step in messages if step.block.startswith("wait.") and _message(step) in cut.received]
        program += arrivals.get(number, [])
        if number + 1 < len(cut.before):
            # What the next task needs is received while this one computes.
            program += [step for step in cut.before[number + 1] if step.block.startswith("receive.")]
        if number < len(cut.tasks):
            program += cut.tasks[number]
    return (*program, *arrivals.get(len(cut.before), []))
