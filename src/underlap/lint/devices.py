"""Names of devices, as the major number of their compute capability (CUDA C++ programming guide, table of capabilities)."""

from __future__ import annotations

import re

_NAMES = (
    (re.compile(r"(?<![a-z0-9])(g?b[123]00|blackwell)(?![a-z0-9])"), 10),
    (re.compile(r"(?<![a-z0-9])(h100|h200|h20|h800|gh200|hopper)(?![a-z0-9])"), 9),
    (re.compile(r"(?<![a-z0-9])(a100|a800|a30|a10g?|a40|ampere)(?![a-z0-9])"), 8),
    (re.compile(r"(?<![a-z0-9])(v100|volta|t4)(?![a-z0-9])"), 7),
    (re.compile(r"(?<![a-z0-9])(p100|pascal)(?![a-z0-9])"), 6),
)
_AMD = re.compile(r"(?<![a-z0-9])mi[1-9]\d{1,2}[a-z]{0,2}(?![a-z0-9])")
_NUMBER = re.compile(r"(?:sm_?)?(\d{1,3})(?:\.(\d))?a?")


def capability_of(text: str) -> int | None:
    """9 for "H100", "9.0", "sm_90" or "9"; None where the text names no device that is known."""
    low = text.strip().strip("\"'").lower().replace("nvidia", " ").replace("-", " ").replace("_", " ")
    found = _NUMBER.fullmatch(low.replace(" ", "_").strip("_"))
    if found:
        number = int(found[1])
        if found[2] is None and number >= 20:
            number //= 10
        return number if 5 <= number <= 15 else None
    numbers = {number for pattern, number in _NAMES if pattern.search(low)}
    return numbers.pop() if len(numbers) == 1 else None


def is_amd(text: str) -> bool:
    """Whether the text names an AMD accelerator."""
    return _AMD.search(text.lower()) is not None
