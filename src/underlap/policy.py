"""`Policy`: how each axis overlaps: which passes rewrite its schedule, in order, and which resources it runs on.

By default nothing overlaps. A pass moves work; a resource change lets the same work run on something else. They are kept
apart because their gains are: the first hides, the second removes contention or shortens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from underlap.documents import nearest, require, require_choice, shown
from underlap.errors import InputError, OptionError
from underlap.layout import Layout
from underlap.quantities import bytes_text, parse_bytes
from underlap.text_form import made, pairs, whole

PassName = Literal[
    "bucket",
    "prefetch",
    "split_batch",
    "pair_forward_backward",
    "decompose",
    "ring",
    "async_p2p",
    "delay_wgrad",
    "shared_expert",
]
ResourceName = Literal["copy_engine", "ctas", "in_network"]
POLICY_AXES = ("tp", "cp", "ep", "pp", "fsdp", "dp")


class Known(msgspec.Struct, frozen=True):
    """What a pass or resource change may be given."""

    meaning: str
    axes: tuple[str, ...]
    parameter: Literal["bytes", "count"] | None = None
    required: bool = False
    least: int = 1


PASSES: dict[str, Known] = {
    "bucket": Known("gradients in buckets of this many bytes, each sent when full", ("fsdp", "dp"), "bytes", required=True),
    "prefetch": Known("gather parameters this many layers ahead", ("fsdp", "dp"), "count"),
    "split_batch": Known("parts of a micro-batch, one computes while another communicates", ("tp", "cp", "ep"), "count", least=2),
    "pair_forward_backward": Known("the forward of one micro-batch beside the backward of another", ("tp", "cp", "ep", "pp")),
    "decompose": Known("a collective and its matrix product in chunks", ("tp", "cp", "ep"), "count", least=2),
    "ring": Known("blocks passed around while each is worked on", ("tp", "cp")),
    "async_p2p": Known("send and receive between stages beside compute", ("pp",)),
    "delay_wgrad": Known("weight gradients later, under communication", ("tp", "ep", "pp", "fsdp", "dp")),
    "shared_expert": Known("the shared experts beside dispatch and combine", ("ep",)),
}
RESOURCES: dict[str, Known] = {
    "copy_engine": Known("copy engines in place of multiprocessors", POLICY_AXES),
    "ctas": Known("this many thread blocks", POLICY_AXES, "count", required=True),
    "in_network": Known("reduction in the switches", ("tp", "ep", "fsdp", "dp")),
}
_MOST = 2**50


def _check(name: str, parameter: int | None, known: Known) -> None:
    if known.parameter is None:
        require(parameter is None, f"{name}:{parameter}: {name} takes no parameter; write {name} alone")
        return
    kind = "a size such as 25MB" if known.parameter == "bytes" else f"a whole number of {known.least} or more"
    require(parameter is not None or not known.required, f"{name} without a parameter: expected {name}: and {kind}")
    fits = parameter is None or known.least <= parameter <= _MOST
    require(fits, f"{name}:{parameter}: expected {kind}")


class Pass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rewriting of the schedule."""

    name: PassName
    parameter: int | None = None
    """bucket: bytes; prefetch: layers ahead; split_batch: parts; decompose: chunks; None: the pass's own default."""

    def __post_init__(self) -> None:
        require_choice(self, "name", PASSES)
        _check(self.name, self.parameter, PASSES[self.name])


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the axis's transfers run on, instead of the default."""

    name: ResourceName
    parameter: int | None = None
    """ctas: thread blocks."""

    def __post_init__(self) -> None:
        require_choice(self, "name", RESOURCES)
        _check(self.name, self.parameter, RESOURCES[self.name])


class AxisPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one axis does."""

    passes: tuple[Pass, ...] = ()
    """In the order in which they are applied."""
    resources: tuple[Resource, ...] = ()

    @property
    def steps(self) -> tuple[Pass | Resource, ...]:
        """Both, passes first."""
        return (*self.passes, *self.resources)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every axis does; an axis that says nothing does not overlap."""

    tp: AxisPolicy = AxisPolicy()
    cp: AxisPolicy = AxisPolicy()
    ep: AxisPolicy = AxisPolicy()
    pp: AxisPolicy = AxisPolicy()
    fsdp: AxisPolicy = AxisPolicy()
    dp: AxisPolicy = AxisPolicy()

    def __post_init__(self) -> None:
        for axis in POLICY_AXES:
            policy = self.of(axis)
            names = [step.name for step in policy.steps]
            for name in names:
                fitting = (PASSES.get(name) or RESOURCES[name]).axes
                require(axis in fitting, f"{axis}={name}: {name} is known for {', '.join(fitting)}; leave it out here")
                require(names.count(name) == 1, f"{axis}={name}: {name} is given twice; expected it once")

    def of(self, axis: str) -> AxisPolicy:
        """What one of POLICY_AXES does."""
        policy = getattr(self, axis)
        assert isinstance(policy, AxisPolicy)
        return policy

    def check_layout(self, layout: Layout) -> None:
        """Raises OptionError for an axis that says how it overlaps, but has nothing to communicate."""
        for axis in POLICY_AXES:
            # Gradients are also reduced over cp, whose ranks hold the same parameters.
            alone = layout.degree(axis) == 1 and not (axis == "dp" and layout.cp > 1)
            text = f"policy: {axis}={_items_text(self.of(axis))}, but the layout has {axis}=1"
            require(not alone or self.of(axis) == AxisPolicy(), f"{text}: nothing is sent on that axis; leave it out")


def parse_policy(text: str) -> Policy:
    """The Policy of `tp=split_batch+delay_wgrad,dp=bucket:25MB+ctas:8,fsdp=prefetch:2`; an empty text overlaps nothing.

    Raises OptionError that starts with "policy:" and names the part.
    """
    given = pairs(text, "policy", POLICY_AXES)
    axes = {axis: _axis_policy((value or "").split("+"), axis) for axis, value in given.items()}
    return made("policy", lambda: Policy(**axes))


def policy_of_mapping(document: object, where: str, at: str = "$") -> Policy:
    """The Policy of a mapping from axis to one item or a list of them, as in the text form. Raises InputError with the path."""
    if not isinstance(document, dict):
        raise InputError(f"{where} at {at}: expected a mapping from axis to passes, such as tp: [split_batch]")
    axes: dict[str, Any] = {}
    for axis, value in document.items():
        if axis not in POLICY_AXES:
            raise InputError(f"{where} at {at}: unknown field {shown(axis)}: {nearest(str(axis), POLICY_AXES)}")
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise InputError(
                f"{where} at {at}.{axis}: {shown(value)}: expected a list of passes, such as [split_batch, 'bucket:25MB']"
            )
        try:
            axes[axis] = _axis_policy(items, axis)
        except OptionError as error:
            raise InputError(f"{where} at {at}.{axis}: {str(error).removeprefix('policy: ')}") from None
    try:
        return Policy(**axes)
    except OptionError as error:
        raise InputError(f"{where} at {at}: {error}") from None


def _axis_policy(items: Iterable[str], axis: str) -> AxisPolicy:
    passes: list[Pass] = []
    resources: list[Resource] = []
    for item in items:
        name, colon, value = (piece.strip() for piece in item.partition(":"))
        known = PASSES.get(name) or RESOURCES.get(name)
        if known is None:
            raise OptionError(f"policy: {axis}={shown(name)[1:-1]}: no such pass: {nearest(name, [*PASSES, *RESOURCES])}")
        parameter = None
        if colon and known.parameter is None:
            raise OptionError(f"policy: {axis}={shown(item)[1:-1]}: {name} takes no parameter; write {name} alone")
        if colon and known.parameter == "bytes":
            parameter = made(f"policy: {axis}={name}", lambda size=value: parse_bytes(size))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
        elif colon:
            parameter = whole(value, "policy", f"{axis}={name}")
        if name in PASSES:
            passes.append(made(f"policy: {axis}", lambda fields=(name, parameter): Pass(*fields)))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
        else:
            resources.append(made(f"policy: {axis}", lambda fields=(name, parameter): Resource(*fields)))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
    return AxisPolicy(passes=tuple(passes), resources=tuple(resources))


def _items_text(policy: AxisPolicy) -> str:
    return "+".join(_item_text(step) for step in policy.steps)


def _item_text(step: Pass | Resource) -> str:
    if step.parameter is None:
        return step.name
    known = PASSES.get(step.name) or RESOURCES[step.name]
    return f"{step.name}:{bytes_text(step.parameter) if known.parameter == 'bytes' else step.parameter}"


def policy_text(policy: Policy) -> str:
    """The one-line form of a Policy, passes before resources; `parse_policy` reverses it."""
    return ",".join(f"{axis}={_items_text(policy.of(axis))}" for axis in POLICY_AXES if policy.of(axis) != AxisPolicy())
