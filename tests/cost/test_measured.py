"""Tables of the user's measurements: what they say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from underlap.cost.measured import measured_from, read_measured
from underlap.errors import InputError, UnreadableError

CSV = "collective,ranks,bytes,us\nall_gather,8,1000,10\nall_gather,8,3000,20\nall_gather,8,2000,14\n"


def written(path: Path, name: str, text: str) -> Path:
    target = path / name
    target.write_text(text)
    return target


def test_a_csv_and_a_yaml_table_say_the_same(tmp_path: Path) -> None:
    rows = [
        f"- {{collective: all_gather, ranks: 8, bytes: {size}, us: {us}}}" for size, us in ((1000, 10), (2000, 14), (3000, 20))
    ]
    by_csv = read_measured(written(tmp_path, "one.csv", CSV))
    by_yaml = read_measured(written(tmp_path, "two.yaml", "\n".join(rows)))

    assert by_csv.curves == by_yaml.curves == {("all_gather", 8, 1): ((1000, 1e4), (2000, 1.4e4), (3000, 2e4))}


def test_times_lie_on_the_lines_between_rows_and_go_on_beyond_the_last() -> None:
    table = measured_from(
        [{"collective": "all_gather", "ranks": 8, "bytes": size, "us": us} for size, us in ((1000, 10), (2000, 14), (3000, 20))],
        "t",
    )
    times = [table.time_ns("all_gather", (8, 1), size) for size in (1, 1000, 1500, 2000, 2500, 3000, 6000)]

    assert times == pytest.approx([1e4, 1e4, 1.2e4, 1.4e4, 1.7e4, 2e4, 3.8e4])


def test_a_group_over_domains_needs_rows_of_its_own() -> None:
    table = measured_from([{"collective": "all_gather", "ranks": 16, "domains": 2, "bytes": 1000, "us": 10}], "t")

    assert table.time_ns("all_gather", (8, 2), 500) == 1e4
    assert table.time_ns("all_gather", (16, 1), 500) is None
    assert table.time_ns("all_reduce", (8, 2), 500) is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "", "expected a list of rows"),
        ("a.csv", "collective,ranks,bytes\nall_gather,8,1\n", "row 1: us missing: expected collective, ranks, bytes, us"),
        ("a.csv", "collective,ranks,bytes,us\nallgather,8,1,1\n", "row 1: unknown collective 'allgather'"),
        ("a.csv", "collective,ranks,bytes,us\nall_gather,eight,1,1\n", "row 1: ranks is 'eight': expected a number"),
        ("a.csv", "collective,ranks,bytes,us\nall_gather,8,1,nan\n", "row 1: us is nan: expected a finite number"),
        ("a.csv", "collective,ranks,bytes,us\nall_gather,8,0,1\n", "expected both above 0"),
        ("a.csv", CSV + "all_gather,8,1000,11\n", "row 4: second row for all_gather of 1000 bytes over 8 ranks"),
        ("a.csv", "collective,ranks,bytes,us,gpu\nall_gather,8,1,1,x\n", "row 1: unknown column 'gpu'"),
        ("a.csv", "collective,ranks,domains,bytes,us\nall_gather,8,3,1,1\n", "ranks a multiple of domains"),
        ("a.yaml", "- 3", "row 1: expected a mapping"),
        ("a.yaml", "[", "no valid YAML"),
        ("a.txt", CSV, "expected a .csv, .yaml or .yml file"),
    ],
)
def test_a_wrong_table_is_refused_with_its_row(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_measured(written(tmp_path, name, text))


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"none\.csv: cannot be read"):
        read_measured(tmp_path / "none.csv")
