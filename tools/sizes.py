"""Lengths of functions and files per folder: alarms, not laws.

    make sizes

The budget: function median <= 12 lines, nine of ten <= 40, none over 80 without a comment that says why; file <= 400.
A function's length is counted from its `def` to its last line, docstring included, decorators not.
"""

from __future__ import annotations

import ast
import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "examples", "tools")
MEDIAN, NINE_OF_TEN, LONGEST, FILE = 12, 40, 80, 400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    path: Path
    line: int
    lines: int


def main() -> None:
    print(f"{'folder':<28}{'files':>6}{'lines':>7}{'longest':>9}{'functions':>11}{'median':>8}{'p90':>6}{'max':>6}")
    too_long = []
    for folder in folders():
        files = {path: len(path.read_text().splitlines()) for path in sorted(folder.glob("*.py"))}
        found = [function for path in files for function in functions(path)]
        print(f"{folder.relative_to(ROOT).as_posix():<28}{file_columns(files)}{function_columns([f.lines for f in found])}")
        too_long += [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in files.items() if lines > FILE]
        too_long += [f"{f.path.relative_to(ROOT)}:{f.line}: {f.name}: {f.lines} lines" for f in found if f.lines > LONGEST]
    print(f"{'budget':<28}{'':>6}{'':>7}{FILE:>9}{'':>11}{MEDIAN:>8}{NINE_OF_TEN:>6}{LONGEST:>6}")
    print("\n".join(["", "over budget:", *too_long]) if too_long else "")


def folders() -> list[Path]:
    return sorted({path.parent for name in FOLDERS for path in (ROOT / name).rglob("*.py")})


def functions(path: Path) -> Iterator[Function]:
    """Every function of a file, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(name=node.name, path=path, line=node.lineno, lines=lines)


def file_columns(files: dict[Path, int]) -> str:
    return f"{len(files):>6}{sum(files.values()):>7}{max(files.values()):>9}"


def function_columns(lengths: list[int]) -> str:
    if not lengths:
        return f"{0:>11}{'-':>8}{'-':>6}{'-':>6}"
    ordered = sorted(lengths)
    return f"{len(ordered):>11}{statistics.median(ordered):>8.0f}{ordered[(len(ordered) * 9 - 1) // 10]:>6}{ordered[-1]:>6}"


if __name__ == "__main__":
    main()
