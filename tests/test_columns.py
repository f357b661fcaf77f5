"""Tables handed to data-frame libraries, which are optional."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from underlap.errors import MissingExtraError
from underlap.timeline import Operations


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_data_frame_is_made_of_all_columns_in_order(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(DataFrame=lambda columns: columns))
    table = Operations.empty()
    made = getattr(table, f"to_{library}")()

    assert list(made) == list(Operations.dtypes())
    assert all(made[name] is getattr(table, name) for name in made)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_not_installed_is_named_with_its_command(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(MissingExtraError, match=f"pip install {library}"):
        getattr(Operations.empty(), f"to_{library}")()


def test_appending_tables_keeps_rows_and_types() -> None:
    one = Operations.from_columns(**{name: [1, 2] for name in Operations.dtypes()})
    both = Operations.concatenate([one, Operations.empty(), one])

    assert len(both) == 4
    assert {name: column.dtype for name, column in both.columns().items()} == Operations.dtypes()
    assert np.array_equal(both.take(np.array([3, 0])).start_ns, [2, 1])
