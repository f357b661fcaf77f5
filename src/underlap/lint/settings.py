"""What was read from configurations: settings with their values and places, and what is not known.

Only settings of the catalog are ever kept, each with a value of its kind: a secret cannot get here, so it cannot be shown.
Answers are three-valued: True or False, a value, or None for unknown.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from underlap.lint.catalog import DEFAULTS, ENVIRONMENT, Kind, Known

TRUE = {"true", "yes", "on", "1", "y", "t"}
FALSE = {"false", "no", "off", "0", "n", "f"}
NOTHING = {"null", "none", "~", ""}
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?([eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,40}")
_LISTED = re.compile(r"[\s,\[\]\"']+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a setting stands."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as it was read."""

    name: str
    """As the catalog calls it."""
    spelled: str
    """As the configuration spells it: a name of the catalog, too."""
    value: bool | int | float | str | None
    """None where the setting is given, and its value could not be read or depends on a condition."""
    place: Place
    certain: bool = True
    """False where it stands under a condition that was not evaluated."""
    depth: int = 1
    """How many parts of its path named it: a more specific name wins over a bare one."""

    def __str__(self) -> str:
        shown = "?" if self.value is None else str(self.value)
        if isinstance(self.value, bool):
            # Variables of an environment are switched by numbers.
            shown = str(int(self.value)) if self.name in ENVIRONMENT else shown.lower()
        return f"{self.spelled}={shown}"


def value_of(known: Known, text: str) -> bool | int | float | str | None:  # noqa: PLR0911 - one return per kind
    """The value of a text, by the kind of its setting; None where it is none of that kind."""
    bare = text.strip().strip("\"'").strip()
    low = bare.lower()
    if known.kind is Kind.PRESENT:
        return "given" if low not in NOTHING | {"false"} else "none"
    if low in NOTHING:
        return "none" if known.kind is Kind.WORD else None
    if known.kind is Kind.FLAG:
        if low in TRUE:
            return True
        if low in FALSE:
            return False
        # Some switches are a fraction or an amount (optimizer_cpu_offload: 1.0).
        return float(low) > 0 if _NUMBER.fullmatch(low) else None
    if known.kind is Kind.NUMBER:
        return _number(low)
    return _words(known, bare)


def _number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text) or len(text) > 24:
        return None
    value = float(text.replace("_", ""))
    if value in (float("inf"), float("-inf")):
        return None
    return int(value) if value == int(value) else value


def _words(known: Known, text: str) -> str | None:
    """The words that the catalog lists for this setting; any other is not kept."""
    parts = [part.lower() for part in _LISTED.split(text) if part]
    if not parts or not all(_WORD.fullmatch(part) for part in parts):
        return None
    kept = [part for part in parts if part in known.words]
    return ",".join(kept) if len(kept) == len(parts) else None


class Settings:
    """The settings of one job, as far as they are known."""

    def __init__(
        self,
        settings: Iterable[Setting],
        *,
        frameworks: Mapping[str, str],
        whole: Iterable[str] = (),
        environment_known: bool = False,
        capability: int | None = None,
        amd: bool = False,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.of: dict[str, Setting] = {}
        for setting in settings:
            before = self.of.get(setting.name)
            if before is None or setting.depth >= before.depth:
                self.of[setting.name] = setting
        self.frameworks = dict(frameworks)
        """Framework -> how it was recognized."""
        self.whole = frozenset(whole)
        """Frameworks whose switches were all seen, so that what is not given has its default."""
        self.environment_known = environment_known
        """Whether a variable that is not listed is known to be unset."""
        self.capability = capability
        """Major number of the compute capability: 9 for Hopper, 10 and more for Blackwell."""
        self.amd = amd
        self.versions = dict(versions or {})

    def given(self, name: str) -> Setting | None:
        """The setting, where it was given with a certain value that could be read."""
        setting = self.of.get(name)
        return setting if setting is not None and setting.certain and setting.value is not None else None

    def mentioned(self, name: str) -> bool:
        """Whether it stands anywhere, with whatever value."""
        return name in self.of

    def value(self, name: str) -> bool | int | float | str | None:
        """Its value, its framework's default where all switches were seen, or None."""
        setting = self.given(name)
        if setting is not None:
            return setting.value
        if name in self.of:
            return None
        known = ENVIRONMENT.get(name)
        if known is not None:
            return "unset" if self.environment_known else None
        for framework in self.frameworks:
            if framework in self.whole and (framework, name) in DEFAULTS:
                return DEFAULTS[framework, name]
        return None

    def on(self, name: str) -> bool:
        """Known to be on."""
        return self.value(name) is True

    def off(self, name: str) -> bool:
        """Known to be off, by word or by default."""
        return self.value(name) is False

    def number(self, name: str) -> int | float | None:
        """The number, or None."""
        value = self.value(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def word(self, name: str) -> str | None:
        """The word, or None."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    def shown(self, *names: str) -> list[Setting]:
        """Those of the names that were given, for a finding."""
        return [self.of[name] for name in names if name in self.of]

    def uses(self, *frameworks: str) -> bool:
        """Whether any of the frameworks was recognized."""
        return any(framework in self.frameworks for framework in frameworks)
