"""Where a command's results go: files that are not overwritten by accident, and standard output.

The content comes from the renderers and from `report.to_json`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from underlap.errors import OptionError

STREAM = "-"


def refuse_unsafe(outputs: Sequence[Path], inputs: Sequence[Path], *, force: bool) -> None:
    """Raise `OptionError` if an output is an input, is named twice, or exists and may not be replaced."""
    seen: set[str] = set()
    sources = {os.path.realpath(path) for path in inputs}
    for path in outputs:
        real = os.path.realpath(path)
        if real in sources:
            raise OptionError(f"{path} is an input: name another file for the output.")
        if real in seen:
            raise OptionError(f"{path} is named for two outputs: name two files.")
        seen.add(real)
        if path.exists() and not path.is_file():
            raise OptionError(
                f"{path} exists and is no regular file: name a file, or {STREAM} for standard output where it is offered."
            )
        if path.exists() and any(Path(source).is_dir() and Path(real).is_relative_to(source) for source in sources):
            raise OptionError(f"{path} lies in a folder that is an input: name a file elsewhere for the output.")
        if path.exists() and not force:
            raise OptionError(f"{path} exists: name another file, or pass --force to replace it.")
        if not Path(real).parent.is_dir():
            raise OptionError(f"The folder {Path(real).parent} of {path} does not exist: create it, or name another file.")
        if not os.access(Path(real).parent, os.W_OK):
            raise OptionError(f"The folder {Path(real).parent} of {path} cannot be written to: name another file.")


def write_to_stdout(write: Callable[[], object]) -> None:
    """Call what writes to standard output. When its reader has gone (`| head`), the rest is dropped in silence."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit; that must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_wrote(path: Path) -> None:
    """The last word on a file that was written."""
    click.echo(f"Wrote {path}", err=True)
