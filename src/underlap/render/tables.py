"""The instances of a Report as a table for pandas, polars or a spreadsheet: one row per call of a collective on one rank.

Columns and units are those of `InstanceRow`. Other tables of the Report are not written: its JSON has them.
"""

from __future__ import annotations

import csv
import io
import os
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from underlap.errors import MissingExtraError, OptionError
from underlap.render.files import replacing
from underlap.report import InstanceRow

Writer = Callable[[Sequence[InstanceRow], BinaryIO], None]


def write_instances(instances: Sequence[InstanceRow], path: str | os.PathLike[str]) -> None:
    """Write `.csv` or `.parquet`, as the suffix says. An existing file is replaced; a failure leaves it as it was."""
    write = writer_for(path)
    with replacing(Path(path)) as stream:
        write(instances, stream)


def writer_for(path: str | os.PathLike[str]) -> Writer:
    """What writes a file with this suffix. Raises `OptionError` or `MissingExtraError`, before any work is done."""
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        return _write_csv
    if suffix == ".parquet":
        _pyarrow()
        return _write_parquet
    found = f"the suffix '{suffix}'" if suffix else "no suffix"
    raise OptionError(f"Cannot write instances to {path}: expected a name that ends in .csv or .parquet, got {found}.")


def _write_csv(instances: Sequence[InstanceRow], stream: BinaryIO) -> None:
    # Unknown is an empty field. A name that is no valid Unicode must not cost the table.
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(InstanceRow.__struct_fields__)
        rows.writerows([_csv_value(value) for value in msgspec.structs.astuple(row)] for row in instances)
    finally:
        text.detach()  # flushes, and leaves the stream open for its owner


def _csv_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _write_parquet(instances: Sequence[InstanceRow], stream: BinaryIO) -> None:
    arrow, parquet = _pyarrow()
    names = {int: arrow.int64(), str: arrow.string(), bool: arrow.bool_(), float: arrow.float64()}
    # Types come from the record, not from the values: a column without a known value keeps its type.
    columns = {
        field.name: arrow.array([getattr(row, field.name) for row in instances], type=names[_plain_type(field.type)])
        for field in msgspec.structs.fields(InstanceRow)
    }
    parquet.write_table(arrow.table(columns), stream)


def _plain_type(declared: Any) -> Any:
    """Int for `int | None`."""
    if not isinstance(declared, types.UnionType):
        return declared
    (plain,) = (part for part in typing.get_args(declared) if part is not types.NoneType)
    return plain


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        message = "Writing .parquet needs pyarrow, which is not installed: pip install 'underlap[parquet]'. Or write .csv."
        raise MissingExtraError(message) from error
    return pyarrow, pyarrow.parquet
