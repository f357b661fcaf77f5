"""Arithmetic of shell scripts: integers, variables, + - * / % and brackets. `$((GPUS * NODES))`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_TERM = re.compile(r"\s*(\$?\{?[A-Za-z_]\w*\}?|\d+|[-+*/%()])")
_MOST_TERMS = 200


def evaluate(text: str, value_of: Callable[[str], str]) -> int | None:
    """The value of an expression, or None where a part of it is not known or not understood."""
    terms: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TERM.match(text, at)
        if found is None or len(terms) > _MOST_TERMS:
            return None
        term = found[1].strip("${}")
        if term and (term[0].isalpha() or term[0] == "_"):
            term = value_of(term).strip()
            if not re.fullmatch(r"\d{1,12}", term):
                return None
        terms.append(term)
        at = found.end()
    try:
        return _Sum(terms).value()
    except (ValueError, IndexError, ZeroDivisionError):
        return None


class _Sum:
    """An expression of integers, by recursive descent; 200 terms at most."""

    def __init__(self, terms: Iterable[str]) -> None:
        self._terms = [*terms, ""]
        self._at = 0

    def value(self) -> int:
        result = self._sum()
        if self._terms[self._at] != "":
            raise ValueError
        return result

    def _sum(self) -> int:
        result = self._product()
        while (sign := self._terms[self._at]) in ("+", "-"):
            self._at += 1
            result = result + self._product() if sign == "+" else result - self._product()
        return result

    def _product(self) -> int:
        result = self._atom()
        while (sign := self._terms[self._at]) in ("*", "/", "%"):
            self._at += 1
            right = self._atom()
            result = result * right if sign == "*" else result // right if sign == "/" else result % right
            if abs(result) > 10**18:
                raise ValueError
        return result

    def _atom(self) -> int:
        term = self._terms[self._at]
        self._at += 1
        if term == "(":
            result = self._sum()
            if self._terms[self._at] != ")":
                raise ValueError
            self._at += 1
            return result
        return int(term)
