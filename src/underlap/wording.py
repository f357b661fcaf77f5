"""Numbers and lists in sentences: for whoever writes notes. Knows nothing of what is counted."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are(number: int) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def ranges(numbers: Sequence[int], separator: str = ", ") -> str:
    """0-7, 9 for 0, 1, ..., 7, 9, in whatever order they come.

    >>> ranges([9, 0, 1, 2])
    '0-2, 9'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def listed(noun: str, numbers: Sequence[int]) -> str:
    """Rank 3, ranks 0-3, 7: of sorted numbers, the noun in small letters."""
    return f"{noun if len(numbers) == 1 else noun + 's'} {ranges(numbers)}"
