"""The words of a command line as pairs of a path and a text: `--tp-size 8`, `--a.b=c`, `model.x=True`, `--config '{...}'`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from underlap.lint import catalog
from underlap.lint.catalog import Kind
from underlap.lint.documents import Pair, pairs_of_json
from underlap.lint.settings import FALSE, TRUE
from underlap.lint.shell_expansion import UNKNOWN, Token

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)
_SWITCH = re.compile(r"--?[A-Za-z]")
_LONGEST = 64_000
_BOOLEAN = TRUE | FALSE
_OPAQUE = {
    *("config", "config_file", "config_name", "config_path", "yaml_cfg", "job.config_file", "args_file", "extra_llm_api_options"),
    *(
        "model_name",
        "model_family_name",
        "model_recipe_name",
        "recipe",
        "use_checkpoint_args",
        "use_mp_args_from_checkpoint_args",
    ),
}
"""Switches that name a file or a recipe in which more switches stand."""


def pairs(words: Sequence[Token]) -> tuple[list[Pair], bool]:
    """The pairs, and whether all switches could be seen."""
    found: list[Pair] = []
    # xargs reads the rest of a command line from elsewhere.
    whole = not (words and words[0].text.rpartition("/")[2] in ("xargs", "parallel"))
    at = 0
    while at < len(words):
        token = words[at]
        at += 1
        if token.text == UNKNOWN or (token.unknown and not _SWITCH.match(token.text) and "=" not in token.text):
            # The value of a switch may be unknown; a word of its own may hold any switch.
            if at < 2 or not _takes_value(words[at - 2].text):
                whole = whole and not token.text.strip("/").endswith(UNKNOWN)
            continue
        if not _SWITCH.match(token.text):
            whole = whole and not re.match(r"@[\w./-]", token.text)
            overriding = list(_override(token))
            # An override of a key has a configuration behind it, and its defaults.
            whole = whole and not any(len(pair.path) > 1 for pair in overriding)
            found += overriding
            continue
        name, equals, value = token.text.partition("=")
        path = tuple(part for part in name.lstrip("-").split(".") if part)
        if not path:
            continue
        if catalog.normal(".".join(path)) in _OPAQUE:
            whole = False
        if name.startswith("-O") and name[2:].isdigit():
            found.append(Pair(("optimization_level",), name[2:], token.line, token.certain))
            continue
        follow = words[at] if at < len(words) else None
        if not equals and follow is not None and _is_value(path, follow.text):
            value = follow.text
            at += 1
            while at < len(words) and _continues(path, words[at].text):
                value += f",{words[at].text}"
                at += 1
            certain = token.certain and follow.certain
        else:
            certain = token.certain
            value = value if equals else "true"
        found += _pair(path, value, token.line, certain=certain)
    return found, whole


def _takes_value(text: str) -> bool:
    """Whether a switch that the catalog may not know is likely to have a value after it."""
    if not _SWITCH.match(text) or "=" in text:
        return False
    known = catalog.match(tuple(part for part in text.lstrip("-").split(".") if part))
    return known is None or known[0].kind is not Kind.FLAG


def _is_value(path: tuple[str, ...], text: str) -> bool:
    if _SWITCH.match(text):
        return False
    known = catalog.match(path) or _negated(path)
    if known is not None and known[0].kind is Kind.FLAG:
        return text.lower() in _BOOLEAN or bool(re.fullmatch(r"[01](\.\d+)?", text))
    return True


def _continues(path: tuple[str, ...], text: str) -> bool:
    known = catalog.match(path)
    return known is not None and known[0].kind is Kind.WORD and not _SWITCH.match(text) and text.lower() in known[0].words


def _negated(path: tuple[str, ...]) -> tuple[catalog.Known, str, int] | None:
    last = catalog.normal(path[-1])
    return catalog.match((*path[:-1], last[3:])) if last.startswith("no_") else None


def _pair(path: tuple[str, ...], value: str, line: int, *, certain: bool) -> Iterator[Pair]:
    if value.startswith("{") and value.endswith("}") and len(value) < _LONGEST:
        inner = pairs_of_json(value, None, line=line, strict=False)
        yield from (Pair((*path, *pair.path), pair.text, line, certain) for pair in inner)
        if inner or not value.startswith("{{"):
            return
        # A template that is filled in elsewhere (Helm, Jinja): given, and not known.
    negated = _negated(path)
    if catalog.match(path) is None and negated is not None and negated[0].kind is Kind.FLAG:
        path = (*path[:-1], negated[1].rpartition(".")[2])
        value = "false" if value.lower() in TRUE else "true"
    yield Pair(path, value, line, certain)


def _override(token: Token) -> Iterator[Pair]:
    found = _OVERRIDE.fullmatch(token.text)
    if found is None:
        return
    name = found[1]
    if name in catalog.VARIABLES or name == "XLA_FLAGS":
        yield Pair((name,), found[2], token.line, token.certain)
    elif "," in found[2] and "=" in found[2]:
        # srun --export=ALL,NAME=value arrives here only as a part; taken apart by the caller.
        yield Pair((name,), found[2].partition(",")[0], token.line, token.certain)
    else:
        yield Pair(tuple(name.split(".")), found[2], token.line, token.certain)


def exported(words: Sequence[Token]) -> Iterator[Pair]:
    """Variables given to a program by its launcher: `--export=ALL,A=1`, `-x A=1`, `-e A=1`, `--env A=1`, `env A=1`."""
    for token in words:
        name, equals, value = token.text.partition("=")
        given = value.split(",") if name in ("--export", "--env", "-e", "-x", "--environment") else [token.text]
        for piece in given if equals else ():
            variable, _, text = piece.partition("=")
            if variable in catalog.VARIABLES or variable == "XLA_FLAGS":
                yield Pair((variable,), text, token.line, token.certain)
