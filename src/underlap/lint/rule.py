"""What a rule is: a fact about a configuration, with its source, and how to see whether it holds.

A rule answers with a `Match` (it holds here), an `Undecided` (something would tell), or None. A rule without a source does not
ship. `fires` and `silent` are its tests: two small configurations, kept beside it so that both are read together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from underlap.lint.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The rule holds here."""

    because: tuple[str, ...]
    """Names of the settings that show it."""
    detail: str = ""
    """Figures or names of this case."""
    voids: tuple[str, ...] = ()
    """Settings that are without effect because of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """It may hold; what would tell."""

    because: tuple[str, ...]
    needs: str


Answer = Match | Undecided | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explains:
    """What the rule accounts for in a trace: causes of exposed time, of some collectives."""

    causes: tuple[str, ...]
    collectives: tuple[str, ...]
    axes: tuple[str, ...] = ()
    """Parts of the axis' name; empty for any."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """See the module docstring."""

    id: str
    says: str
    """What is found, in a few words."""
    reason: str
    change: str
    """What to change."""
    price: str
    holds_for: str
    """Versions and devices, in words."""
    sources: tuple[str, ...]
    about: tuple[str, ...]
    """Settings of which one has to be given for the rule to have anything to say."""
    check: Callable[[Settings], Answer]
    fires: Mapping[str, str]
    """File name -> content: a configuration in which it holds. The name "environment" is the dump of an environment."""
    silent: Mapping[str, str]
    limit: bool = False
    """True: not a mistake, but a limit of what is switched on. It is said, and is no finding."""
    explains: Explains | None = None
    frameworks: tuple[str, ...] = ()
    """Where given, it is about these only; it is also looked at where no framework was recognized."""
    product: str | None = None
    """Whose version decides."""
    since: str | None = None
    before: str | None = None

    def applies(self, settings: Settings) -> bool:
        """Whether the settings say anything that the rule is about, in a version that it holds for."""
        if not any(settings.mentioned(name) for name in self.about):
            return False
        if self.frameworks and settings.frameworks and not settings.uses(*self.frameworks):
            return False
        version = settings.versions.get(self.product or "")
        if version is None:
            return True
        number = version_of(version)
        return not (self.since and number < version_of(self.since)) and not (self.before and number >= version_of(self.before))


def version_of(text: str) -> tuple[int, ...]:
    """A version as numbers, to be compared: the leading numeric parts."""
    parts: list[int] = []
    for part in text.split("."):
        if not part.isdigit() or len(part) > 9:
            break
        parts.append(int(part))
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
