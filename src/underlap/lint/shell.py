"""Launch scripts: what a shell script gives to the programs that it starts, as far as reading can tell.

Variables, arrays, exports, continuations, `KEY=value program`, `bash -c`, here-documents with JSON and defaults (`${A:-1}`) are
followed. What stands under a condition or in a loop is kept as uncertain: it may hold or not. Nothing is run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from underlap.lint.shell_expansion import DEEPEST, LONGEST_VALUE, UNKNOWN, Scope, Token, Value, expand, filled, joined, split
from underlap.lint.shell_words import Form, Lexer, Part, Word

MOST_WORDS = 20_000
"""Words of one program; expansions that grow beyond are cut and called unknown."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_EXPORTING = {"export", "declare", "typeset", "local", "readonly"}
_OPENING = {"if", "for", "while", "until", "case", "select"}
_CLOSING = {"fi", "done", "esac"}
_PASSED_OVER = {"then", "else", "elif", "do", "{", "}", "!", "time", "nohup", "exec", "eval", "command", "builtin"}
_QUIET = {
    *(
        "echo",
        "printf",
        "cat",
        "grep",
        "sed",
        "awk",
        "mkdir",
        "cd",
        "ls",
        "rm",
        "cp",
        "mv",
        "pip",
        "pip3",
        "apt",
        "apt-get",
        "git",
    ),
    *("source", ".", "set", "shopt", "test", "[", "[[", "module", "sleep", "kill", "pkill", "read", "trap", "wait", "exit"),
    *("return", "nvidia-smi", "curl", "wget", "tee", "chmod", "tail", "head", "alias", "ulimit", "scontrol"),
}
"""Programs whose words are no switches of a job."""
_SHELLS = {"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program that the script starts."""

    words: list[Token]
    environment: dict[str, Token | None]
    """Exported variables as they are then; None where the script unsets one."""
    line: int


@dataclasses.dataclass(slots=True)
class _State(Scope):
    export_all: bool = False
    depth: int = 0
    launches: list[Launch] = dataclasses.field(default_factory=list)
    documents: list[Token] = dataclasses.field(default_factory=list)
    told: Collection[str] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script does, in order."""

    launches: list[Launch]
    documents: list[Token]
    """Texts of here-documents, with their variables filled in, and the line on which they start."""
    leftovers: list[Token]
    """Words of variables that no program received: arguments kept in a file of their own."""
    environment: dict[str, Token | None]
    """What is exported at the end."""


def read(text: str, variables: Collection[str], line: int = 1) -> Script:
    """Read a script that starts on a line. Of its exports only those of the names in `variables` are told."""
    state = _State(told=variables)
    _run(Lexer(text, line).words(), state, nested=0)
    leftovers = [
        token
        for name, value in state.variables.items()
        if name not in state.expanded
        for token in value.words
        if "--" in token.text
    ]
    return Script(
        launches=state.launches,
        documents=state.documents,
        leftovers=[piece for token in leftovers for piece in split(token)],
        environment=_environment(state),
    )


def _run(words: list[Word], state: _State, *, nested: int) -> None:
    at, guarded = 0, False
    while at < len(words):
        word = words[at]
        if word.operator:
            if word.document is not None:
                text = word.document if word.verbatim else filled(word.document, state)
                state.documents.append(Token(text, state.depth == 0 and not guarded, word.line))
            elif word.plain not in ("&&", "||"):
                guarded = False
            at += 1
            continue
        end = at
        while end < len(words) and not words[end].operator:
            end += 1
            # An array: the brackets and line ends in it are part of the assignment.
            if end < len(words) and words[end].operator and words[end].plain == "(" and _opens_array(words[end - 1]):
                end = _array_end(words, end)
        command = words[at:end]
        follows = words[end].plain if end < len(words) else None
        tested = _command(command, state, guarded=guarded, nested=nested)
        guarded = (guarded or tested) if follows == "&&" else follows == "||"
        at = end


def _opens_array(word: Word) -> bool:
    text = word.bare or ""
    found = _ASSIGNMENT.match(text)
    return found is not None and found.end() == len(text)


def _array_end(words: list[Word], at: int) -> int:
    while at < len(words) and not (words[at].operator and words[at].plain == ")"):
        at += 1
    return min(at + 1, len(words))


def _command(command: list[Word], state: _State, *, guarded: bool, nested: int) -> bool:
    """Follow one command; whether it was a test that decides about the next."""
    command = _past_keywords(command, state)
    if not command:
        return False
    certain = state.depth == 0 and not guarded
    first = command[0].bare or ""
    if first in ("[", "test", "((") or first.startswith("[["):
        return True
    if first in _EXPORTING:
        _assignments(command[1:], state, certain=certain, export=first == "export")
    elif first == "unset":
        for word in command[1:]:
            if (name := word.plain) is not None:
                _unset(name, state, certain=certain, line=word.line)
    elif first == "set":
        state.export_all |= any((word.plain or "").startswith("-a") for word in command[1:])
    else:
        taken = _leading_assignments(command)
        if taken == len(command):
            _assignments(command, state, certain=certain, export=False)
        else:
            _launch(command[taken:], command[:taken], state, certain=certain, nested=nested)
    return False


def _past_keywords(command: list[Word], state: _State) -> list[Word]:
    """The command after `then`, `do` and the like; nothing where the rest is a list of words or a pattern."""
    at = 0
    while at < len(command) and (keyword := command[at].bare) is not None and keyword in _PASSED_OVER | _OPENING | _CLOSING:
        if keyword in _OPENING:
            state.depth += 1
            if keyword in ("for", "select") and at + 1 < len(command) and (name := command[at + 1].bare):
                state.variables[name] = Value([Token(UNKNOWN, True, command[at].line)])
            if keyword in ("for", "select", "case"):
                return []
        elif keyword in _CLOSING:
            state.depth = max(0, state.depth - 1)
        at += 1
    return command[at:]


def _leading_assignments(command: list[Word]) -> int:
    at = 0
    while at < len(command) and _starts_assignment(command[at]):
        at += 1
        if at < len(command) and command[at].operator:
            while at < len(command) and not (command[at].operator and command[at].plain == ")"):
                at += 1
            at += 1
    return min(at, len(command))


def _starts_assignment(word: Word) -> bool:
    if not word.parts or word.parts[0].quoted or word.parts[0].form is not Form.TEXT:
        return False
    return _ASSIGNMENT.match(word.parts[0].text) is not None


def _unset(name: str, state: _State, *, certain: bool, line: int) -> None:
    value = state.variables.pop(name, None)
    if not certain and value is not None:
        state.variables[name] = dataclasses.replace(
            value, words=[dataclasses.replace(token, certain=False) for token in value.words]
        )
    elif certain:
        state.unset[name] = None
    else:
        state.unset[name] = Token(UNKNOWN, False, line)


def _assignments(command: list[Word], state: _State, *, certain: bool, export: bool) -> None:
    at = 0
    while at < len(command):
        word = command[at]
        if word.operator:
            at += 1
            continue
        if not _starts_assignment(word):
            name = word.plain
            if export and name and name in state.variables:
                state.variables[name].exported = True
            elif export and word.parts and name is None:
                # export $VARIABLES: words of the form NAME=value.
                for token in expand(word, state, nested=0):
                    _assign_text(token, state, certain=certain, export=True)
            at += 1
            continue
        found = _ASSIGNMENT.match(word.parts[0].text)
        assert found is not None
        name, append = found[1], bool(found[2])
        rest = Word((Part(Form.TEXT, word.parts[0].text[found.end() :], False), *word.parts[1:]), word.line)
        at += 1
        if at < len(command) and command[at].operator and command[at].plain == "(":
            end = _array_end(command, at)
            words = [token for item in command[at + 1 : end - 1] if not item.operator for token in expand(item, state, nested=0)]
            value = Value(words, array=True)
            at = end
        else:
            whole = joined(expand(rest, state, nested=0, apart=False), word.line)
            value = Value([whole])
        _assign(name, value, state, append=append, certain=certain, export=export)


def _assign_text(token: Token, state: _State, *, certain: bool, export: bool) -> None:
    found = _ASSIGNMENT.match(token.text)
    if found:
        value = Value([Token(token.text[found.end() :], token.certain, token.line)])
        _assign(found[1], value, state, append=False, certain=certain, export=export)


def _assign(name: str, value: Value, state: _State, *, append: bool, certain: bool, export: bool) -> None:
    before = state.variables.get(name)
    words = value.words
    if not certain:
        same = before is not None and [token.text for token in before.words] == [token.text for token in words]
        if not same:
            words = [dataclasses.replace(token, certain=False) for token in words]
            if before is not None and not append:
                words = [*(dataclasses.replace(token, certain=False) for token in before.words), *words]
    if append and before is not None:
        words = [*before.words, *words]
    exported = export or state.export_all or (before is not None and before.exported)
    state.unset.pop(name, None)
    if sum(len(token.text) for token in words) > LONGEST_VALUE or len(words) > MOST_WORDS:
        words = [Token(UNKNOWN, False, words[0].line)]
    array = value.array or (before.array if append and before else False)
    state.variables[name] = Value(words, array=array, exported=exported)


def _environment(state: _State) -> dict[str, Token | None]:
    found: dict[str, Token | None] = {}
    for name in state.told:
        if name in state.unset:
            found[name] = state.unset[name]
        value = state.variables.get(name)
        if value is not None and value.exported and not value.array:
            certain = all(token.certain for token in value.words) and len(value.words) == 1
            found[name] = dataclasses.replace(joined(value.words, value.words[0].line), certain=certain) if value.words else None
    return found


def _launch(command: list[Word], prefix: list[Word], state: _State, *, certain: bool, nested: int) -> None:
    words: list[Token] = []
    for word in command:
        words += expand(word, state, nested=nested)
        if len(words) > MOST_WORDS:
            words = [*words[:MOST_WORDS], Token(UNKNOWN, True, word.line)]
            break
    if not words:
        return
    if words[0].text.rsplit("/", 1)[-1] in _QUIET:
        return
    environment = _environment(state)
    inner = _State(depth=state.depth, told=state.told)
    _assignments(prefix, inner, certain=True, export=True)
    for name, value in inner.variables.items():
        environment[name] = value.words[0] if len(value.words) == 1 else None
    text = _inner_script(words)
    if text is not None and nested < DEEPEST:
        below = _State(
            variables={
                **state.variables,
                **{name: dataclasses.replace(value, exported=True) for name, value in inner.variables.items()},
            },
            unset=dict(state.unset),
            depth=0 if certain else 1,
            told=state.told,
        )
        _run(Lexer(text.text, text.line).words(), below, nested=nested + 1)
        state.launches += below.launches
        state.expanded |= below.expanded
        if below.launches:
            return
    state.launches.append(Launch(words=words, environment=environment, line=command[0].line))


def _inner_script(words: list[Token]) -> Token | None:
    """The word after `bash -c`, or another word that is a whole command line."""
    for at, token in enumerate(words[:-2]):
        if token.text in _SHELLS:
            for option in range(at + 1, min(at + 4, len(words) - 1)):
                if re.fullmatch(r"-[a-z]*c[a-z]*", words[option].text):
                    return words[option + 1]
    for before, token in zip([None, *words], words, strict=False):
        named = before is not None and before.text.startswith("-")
        if " " in token.text and not named and "{" not in token.text and token.text[:1].isalpha():
            head, _, rest = token.text.partition(" ")
            if " -" in f" {rest}" and "=" not in head:
                return token
    return None
