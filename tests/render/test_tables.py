"""Instances as CSV and Parquet: all columns, nothing half-written."""

from __future__ import annotations

import csv
import os
import stat
import sys
import types

import pytest

from tests.render.hand_written import HOSTILE, instance
from underlap.errors import MissingExtraError, OptionError
from underlap.render import tables
from underlap.render.files import replacing
from underlap.report import InstanceRow


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def arrow(monkeypatch):
    """In the place of pyarrow: notes the type and the values of each column."""
    module, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")
    for name in ("int64", "string", "bool_", "float64"):
        setattr(module, name, lambda name=name: name)
    module.array = lambda values, **options: (options["type"], values)
    module.table = lambda columns: columns
    module.parquet = parquet
    module.written = []

    def write_table(table, stream):
        module.written.append(table)
        stream.write(b"PAR1")

    parquet.write_table = write_table
    monkeypatch.setitem(sys.modules, "pyarrow", module)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    return module


def test_no_instances_are_a_table_with_headings_only(tmp_path):
    tables.write_instances([], tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == ",".join(InstanceRow.__struct_fields__) + "\n"


def test_csv_has_every_column_and_leaves_unknown_values_empty(tmp_path):
    tables.write_instances([instance(), instance(outlier=True, axis=None)], tmp_path / "out.csv")
    first, second = rows_of(tmp_path / "out.csv")
    assert tuple(first) == InstanceRow.__struct_fields__
    assert (first["launch_ns"], first["payload_bytes"], first["outlier"], first["axis"]) == ("", "1024", "false", "dp")
    assert (second["outlier"], second["axis"]) == ("true", "")


def test_csv_keeps_hostile_names_in_their_cell(tmp_path):
    tables.write_instances([instance(kernel=HOSTILE, call_site='a,"b"\nc\ud800')], tmp_path / "out.csv")
    (row,) = rows_of(tmp_path / "out.csv")
    assert row["kernel"] == HOSTILE
    assert row["call_site"] == 'a,"b"\nc\\ud800'


def test_parquet_columns_have_the_type_of_the_record_even_without_values(tmp_path, arrow):
    tables.write_instances([instance()], tmp_path / "out.parquet")
    (table,) = arrow.written
    assert tuple(table) == InstanceRow.__struct_fields__
    assert table["launch_ns"] == ("int64", [None])
    assert table["collective"] == ("string", ["all_reduce"])
    assert table["outlier"] == ("bool_", [False])
    assert (tmp_path / "out.parquet").read_bytes() == b"PAR1"


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'underlap\[parquet\]'"):
        tables.write_instances([], tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "found"), [("out.xlsx", "'.xlsx'"), ("out", "no suffix"), ("out.csv.gz", "'.gz'")])
def test_another_suffix_is_refused_with_those_that_work(tmp_path, name, found):
    with pytest.raises(OptionError, match=rf"expected a name that ends in \.csv or \.parquet, got .*{found}"):
        tables.write_instances([], tmp_path / name)


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(TypeError):
        tables.write_instances([instance(), None], path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_the_new_file_replaces_the_old_one_only_at_the_end(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with replacing(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path):
    with replacing(tmp_path / "ours"):
        pass
    (tmp_path / "any").touch()
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with replacing(tmp_path / "link") as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_missing_folder_is_an_option_error(tmp_path):
    with pytest.raises(OptionError, match="No such file or directory"):
        tables.write_instances([], tmp_path / "missing" / "out.csv")


def test_a_device_is_never_replaced():
    with pytest.raises(OptionError, match="no regular file"), replacing(tables.Path("/dev/null")):
        pass
