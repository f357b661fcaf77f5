"""The scenarios and what each plants, read from their source: the program itself needs torch."""

from __future__ import annotations

import ast
from pathlib import Path

PROGRAM = Path(__file__).with_name("scenario.py")


def described() -> dict[str, str]:
    """Scenario -> the first sentences of its docstring, in the order of the program."""
    functions = [node for node in ast.parse(PROGRAM.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: " ".join((ast.get_docstring(node) or "").split())
        for node in functions
        if [argument.arg for argument in node.args.kwonlyargs] == ["planted"] and node.name != "block"
    }
