"""Option values with a grammar of their own: lists of numbers, the sizes of a mesh.

They check the form only; whether a rank or a step exists is known once the traces are read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    NumbersType = click.ParamType[tuple[int, ...]]
    MeshType = click.ParamType[dict[str, int]]
else:
    # Only newer versions of click can name the type of the value.
    NumbersType = MeshType = click.ParamType

MOST_NUMBERS = 100_000
"""More ranks or steps than this in one option is a slip; the list is refused before it is built."""
LARGEST_SIZE = 10_000_000


class Numbers(NumbersType):
    """`0-7`, `3`, `2,4` or `2-3,6`: the numbers in ascending order."""

    name = "numbers"

    def convert(self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse, or fail with what is wrong and how it should look."""
        if isinstance(value, tuple):
            return value
        runs = [self._run(part.strip(), value, param, ctx) for part in value.split(",")]
        total = sum(map(len, runs))
        if total > MOST_NUMBERS:
            self.fail(f"'{value}' lists {total} numbers: at most {MOST_NUMBERS} are accepted.", param, ctx)
        seen: set[int] = set()
        for run in runs:
            for number in run:
                if number in seen:
                    self.fail(f"'{value}' lists {number} twice.", param, ctx)
                seen.add(number)
        return tuple(sorted(seen))

    def _run(self, part: str, value: str, param: click.Parameter | None, ctx: click.Context | None) -> range:
        match = re.fullmatch(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?", part)
        if match is None:
            found = f"'{part}'" if part else "nothing between two commas, or at an end,"
            self.fail(
                f"{found} is no number and no range, in '{value}'. Expected numbers from 0, like 3 or 2-5 or 2-3,6.", param, ctx
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            self.fail(f"The range {part} runs backward. Write {last}-{first}.", param, ctx)
        return range(first, last + 1)


class Mesh(MeshType):
    """`dp=2,tp=4`: sizes by name, in the order of a PyTorch DeviceMesh (ranks next to each other differ in the last one)."""

    name = "mesh"

    def convert(self, value: str | dict[str, int], param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """Parse, or fail with what is wrong and how it should look."""
        if isinstance(value, dict):
            return value
        sizes: dict[str, int] = {}
        for part in value.split(","):
            match = re.fullmatch(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(-?[0-9]+)\s*", part)
            if match is None:
                self.fail(f"'{part}' is no dimension, in '{value}'. Expected name=size, like dp=2,tp=4.", param, ctx)
            name, digits = match.groups()
            if name in sizes:
                self.fail(f"'{value}' names the dimension {name} twice.", param, ctx)
            if digits.startswith("-") or not digits.strip("0"):
                self.fail(f"The size of {name} is {digits}. Expected 1 or more.", param, ctx)
            if len(digits) > 8 or int(digits) > LARGEST_SIZE:
                self.fail(f"The size of {name} is larger than {LARGEST_SIZE}.", param, ctx)
            sizes[name] = int(digits)
        return sizes
