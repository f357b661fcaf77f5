"""Files written whole or not at all.

For what the command line writes. It does not ask whether an existing file may be replaced: the caller does.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from underlap.errors import OptionError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream for the new content of `path`, which changes only if the block ends without an error."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OptionError(f"Cannot write {path}: it exists and is no regular file. Name a file in an existing folder.")
    # In the same folder, as a rename is atomic within one file system only; not by tempfile, which denies others reading.
    temporary = target.with_name(f".underlap-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
        os.replace(temporary, target)
    except OSError as error:
        raise OptionError(
            f"Cannot write {path}: {error.strerror or error}. Name a file in a folder that you may write to."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
