"""Equally long NumPy columns with declared types, and small ids for repeated values: what Timeline tables are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from underlap.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas
    import polars

NONE = -1
"""The id of nothing, or of what is not known."""

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Equally long columns. Subclasses declare one array per column."""

    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in declared order."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def take(self, rows: NDArray[Any]) -> Self:
        """The rows that an index array or a boolean mask selects."""
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    def replace(self, **columns: NDArray[Any]) -> Self:
        """This table with some columns exchanged."""
        return dataclasses.replace(self, **columns)

    @classmethod
    def empty(cls) -> Self:
        """A table without rows."""
        return cls(**{name: np.empty(0, dtype=dtype) for name, dtype in cls.dtypes().items()})

    @classmethod
    def dtypes(cls) -> dict[str, np.dtype[Any]]:
        """The dtype of each column, in declared order."""
        widths: dict[str, type[np.generic]] = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64}
        return {field.name: np.dtype(widths[str(field.type)]) for field in dataclasses.fields(cls)}

    @classmethod
    def from_columns(cls, **columns: Sequence[int] | NDArray[Any]) -> Self:
        """A table from sequences, each cast to its column's dtype."""
        return cls(**{name: np.asarray(columns[name], dtype=dtype) for name, dtype in cls.dtypes().items()})

    @classmethod
    def concatenate(cls, tables: Iterable[Self]) -> Self:
        """The rows of several tables, one after the other."""
        parts = list(tables)
        if not parts:
            return cls.empty()
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.dtypes()})

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame with the same columns."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtraError("to_pandas() needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame(self.columns())

    def to_polars(self) -> polars.DataFrame:
        """A polars DataFrame with the same columns."""
        try:
            import polars
        except ModuleNotFoundError as error:
            raise MissingExtraError("to_polars() needs polars, which is not installed: pip install polars") from error
        return polars.DataFrame(self.columns())


def rows_by(keys: NDArray[Any]) -> Iterator[tuple[int, Int64]]:
    """(key, the rows that have it, in order) for each key that occurs, ascending: one sort instead of a mask per key."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    return zip(found.tolist(), np.split(order, first[1:]), strict=True) if len(found) else iter(())


class Interner:
    """Gives equal values one small id, in order of first appearance."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._ids: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found

    def optional(self, value: Any) -> int:
        """The id of the value, or -1 for None."""
        return NONE if value is None else self(value)
