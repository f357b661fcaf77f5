"""Numbers in words, for whoever writes a sentence: the notes and verdicts of the analysis, and the screen.

Floor: it knows neither Timelines nor Reports.
"""

from __future__ import annotations

from collections.abc import Sequence


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
