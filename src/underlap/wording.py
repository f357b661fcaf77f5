"""Numbers and lists in sentences: for whoever writes notes. Knows nothing of what is counted."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are(number: int) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers in words: 0-3, 7."""
    parts: list[str] = []
    start = previous = None
    for number in [*numbers, None]:
        if start is None or previous is None:
            start = previous = number
        elif number == previous + 1:
            previous = number
        else:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = previous = number
    return ", ".join(parts)


def listed(noun: str, numbers: Sequence[int]) -> str:
    """Rank 3, ranks 0-3, 7: of sorted numbers, the noun in small letters."""
    return f"{noun if len(numbers) == 1 else noun + 's'} {ranges(numbers)}"
