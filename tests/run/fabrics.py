"""Whether a fabric can be made where the tests run."""

from __future__ import annotations

import functools

import pytest

from underlap.errors import RunError
from underlap.run import fabric as module
from underlap.run.fabric_spec import fabric_spec


@functools.cache
def unavailable() -> str | None:
    """Why none can: rights or tools that are missing, or a kernel without what it is made of. None where one was made."""
    reason = module.missing()
    if reason is not None:
        return reason
    try:
        with module.fabric(fabric_spec("500mbit"), 1):
            return None
    except RunError as error:
        return str(error)


needs_fabric = pytest.mark.skipif(unavailable() is not None, reason=f"no fabric: {unavailable()}")
