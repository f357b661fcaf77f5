"""How fast the links of a fabric are, and the text for it: `500mbit`, `unshaped`, `1gbit,rank1=500mbit,burst=64KiB`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TypeVar

from underlap.errors import OptionError
from underlap.quantities import bytes_text, parse_bytes, parse_duration_ns, parse_rate

UNSHAPED = "unshaped"
BURST = 128 * 1024
LATENCY_NS = 50_000_000
LEAST_RATE = 100_000
"""Bit/s. Below, a packet takes longer than TCP waits before it sends it again."""

_LEAST_BURST = 2_000
_EXAMPLE = "expected a rate such as 500mbit, 1gbit or unshaped, then rank1=250mbit, burst=128KiB or latency=50ms"

Number = TypeVar("Number", int, float)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """How fast the links are, the same in both directions."""

    rate: int | None
    """Bit/s on the wire, headers included; None: as fast as the machine copies."""
    own_rates: tuple[tuple[int, int | None], ...] = ()
    """Ranks whose link has a rate of its own, in order."""
    burst: int = BURST
    """Bytes that pass at once after a pause."""
    latency_ns: int = LATENCY_NS
    """How long a packet may stand in front of a link before it is dropped. Not a delay: a link that is idle adds none."""

    def rate_of(self, rank: int) -> int | None:
        """Bit/s of a rank's link; None: unshaped."""
        return dict(self.own_rates).get(rank, self.rate)

    @property
    def shaped(self) -> bool:
        """Whether every link has a rate."""
        return self.rate is not None and all(rate is not None for _, rate in self.own_rates)


def fabric_spec(text: str) -> FabricSpec:
    """From `500mbit,rank1=250mbit,burst=128KiB,latency=50ms`. Raises OptionError with the part that is wrong."""
    first, *rest = [part.strip() for part in text.split(",")]
    given: dict[str, str] = {}
    for part in rest:
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"burst|latency|rank[0-9]{1,4}", name):
            raise OptionError(f"fabric: {part!r} says nothing: {_EXAMPLE}")
        if name in given:
            raise OptionError(f"fabric: {name} is given twice: expected one value")
        given[name] = value
    rates = {int(name[4:]): _rate(value) for name, value in given.items() if name.startswith("rank")}
    burst = _quantity(parse_bytes, given["burst"]) if "burst" in given else BURST
    latency = _quantity(parse_duration_ns, given["latency"]) if "latency" in given else LATENCY_NS
    if not _LEAST_BURST <= burst < 2**31:
        raise OptionError(
            f"fabric: burst={given['burst']}: expected at least {_LEAST_BURST} B, as a packet must fit, and less than 2 GiB"
        )
    if not 1_000_000 <= latency <= 10**10:
        raise OptionError(f"fabric: latency={given['latency']}: expected from 1ms to 10s")
    return FabricSpec(rate=_rate(first), own_rates=tuple(sorted(rates.items())), burst=burst, latency_ns=latency)


def fabric_text(spec: FabricSpec) -> str:
    """The form that `fabric_spec` reads; what is as by default is left out."""
    parts = [_rate_text(spec.rate), *(f"rank{rank}={_rate_text(rate)}" for rank, rate in spec.own_rates)]
    if spec.burst != BURST:
        parts.append(f"burst={bytes_text(spec.burst)}")
    if spec.latency_ns != LATENCY_NS:
        parts.append(f"latency={spec.latency_ns}ns")
    return ",".join(parts)


def _rate(text: str) -> int | None:
    if text == UNSHAPED:
        return None
    # As tc writes it: bits, in lower case.
    short = re.fullmatch(r"([0-9.]+)\s*([kmg]?)bit", text)
    long = f"{short[1]} {short[2].replace('m', 'M').replace('g', 'G')}bit/s" if short else text
    rate = round(8 * _quantity(parse_rate, long))
    if not LEAST_RATE <= rate <= 10**12:
        raise OptionError(f"fabric: {text!r} is no rate for a link here: expected from 100kbit to 1000gbit, or unshaped")
    return rate


def _rate_text(rate: int | None) -> str:
    if rate is None:
        return UNSHAPED
    for unit, factor in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if rate % factor == 0:
            return f"{rate // factor}{unit}"
    return f"{rate}bit"


def _quantity(parse: Callable[[object], Number], text: str) -> Number:
    try:
        return parse(text)
    except OptionError as error:
        # What the reader of quantities expects knows nothing of tc's way to write them.
        found = str(error).partition(": expected")[0]
        raise OptionError(f"fabric: {found}: {_EXAMPLE}") from None
