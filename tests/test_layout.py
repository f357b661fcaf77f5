"""Rules about the tree that a linter does not know. CONTRIBUTING.md says why they exist."""

import ast
import re
import subprocess
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

EMPTY_WORDS = {"base", "common", "helpers", "manager", "utils"}
LONGEST_FILE = 400
REGISTRY = re.compile(r"https?://[^\s/]*(pypi|pythonhosted|anaconda|conda-forge|npmjs|download\.pytorch)", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.-])/(work|root|tmp/wt)/")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in (ROOT / name for name in listed.split("\0") if name) if path.is_file()]


def text(path: Path) -> str:
    """The content, inflated where it is compressed; bytes that are no text do not matter here."""
    content = path.read_bytes()
    return (zlib.decompress(content, wbits=31) if path.suffix == ".gz" else content).decode(errors="replace")


def where(pattern: re.Pattern[str]) -> list[str]:
    hits = ((path, pattern.search(text(path))) for path in tracked())
    return [f"{path.relative_to(ROOT)}: {hit.group()}" for path, hit in hits if hit]


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [path for path in SOURCES if EMPTY_WORDS & {path.stem, *path.relative_to(ROOT).parts}] == []


def test_a_long_source_file_says_why_it_is_long() -> None:
    contents = {path: path.read_text() for path in SOURCES}
    long = {path: content for path, content in contents.items() if len(content.splitlines()) > LONGEST_FILE}

    assert [path for path, content in long.items() if not re.search(r"^# long because: \S", content, re.MULTILINE)] == []


def test_every_test_name_is_a_sentence() -> None:
    names = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]

    assert names
    assert [name for name in names if len(name.rpartition(": test_")[2].split("_")) < 4] == []


def test_no_tracked_file_names_a_registry_host() -> None:
    assert where(REGISTRY) == []


def test_no_tracked_file_holds_a_path_of_one_machine() -> None:
    assert where(MACHINE_PATH) == []


def test_the_recorded_examples_are_small_and_name_no_host() -> None:
    traces = sorted((ROOT / "examples" / "traces").rglob("*.json.gz"))

    assert len(traces) == 8
    assert max(path.stat().st_size for path in traces) < 300_000
    assert [path for path in traces if re.search(r'"(host_?name|user_?name)"', text(path))] == []
