"""Input that cannot be used: one clear line and exit code 2, soon, and no traceback."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from underlap.cli import main
from underlap.lint import shell
from underlap.lint.documents import pairs_of_json, pairs_of_yaml
from underlap.lint.reading import LARGEST


def run(*words: str) -> Result:
    start = time.monotonic()
    result = CliRunner().invoke(main, ["lint", *words])
    assert time.monotonic() - start < 20
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*words: str) -> str:
    """The message of a refusal: exit code 2, a single line after `Error: `."""
    result = run(*words)
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert result.output.strip().endswith(line)
    return line


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
MAPPING_BOMB = "a: &a {tp: 1, pp: 2, cp: 3, ep: 4}\n" + "".join(
    f"{name}: &{name} {{{', '.join(f'k{at}: *{before}' for at in range(9))}}}\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)

CONTENTS: dict[str, tuple[str, bytes, str]] = {
    "binary": ("train.sh", b"\x7fELF\x02\x01\x00\x00" * 50, "binary"),
    "no text": ("train.sh", b"\xff\xfe\x00a\xd8\xd9" * 50, "binary"),
    "latin": ("train.sh", "caf\xe9".encode("latin-1"), "UTF-8"),
    "huge": ("train.sh", b"#" * (LARGEST + 1), "larger than"),
    "a yaml bomb": ("job.yaml", MAPPING_BOMB.encode(), "more than"),
    "deep yaml": ("job.yaml", b"[" * 200_000, "no valid YAML"),
    "deep block yaml": ("job.yaml", "".join(f"{' ' * at}a:\n" for at in range(2000)).encode(), "nested deeper"),
    "deep json": ("job.json", b"[" * 200_000, "nested deeper"),
    "closed deep json": ("job.json", b'{"a":' * 900 + b"1" + b"}" * 900, "nested deeper"),
    "deep toml": ("job.toml", b"a = " + b"[" * 50_000, "nested deeper"),
    "broken yaml": ("job.yaml", b"a: [1\nb: }", "no valid YAML"),
    "broken json": ("job.json", b'{"a": ', "no valid JSON (line 1"),
    "broken toml": ("job.toml", b"a = \n", "no valid TOML"),
    "an undefined alias": ("job.yaml", b"a: *nowhere\n", ""),
    "python": ("recipe.py", b"import torch\n", "does not run it"),
}


@pytest.mark.parametrize("kind", [kind for kind, (_, _, says) in CONTENTS.items() if says])
def test_unusable_content_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    name, content, says = CONTENTS[kind]
    path = tmp_path / name
    path.write_bytes(content)

    message = refused(str(path))
    assert says in message
    assert str(path) in message


@pytest.mark.parametrize("kind", CONTENTS)
def test_unusable_content_as_an_environment_ends_without_a_traceback(kind: str, tmp_path: Path) -> None:
    name, content, _ = CONTENTS[kind]
    path = tmp_path / name
    path.write_bytes(content)

    assert run("--env", str(path)).exit_code in (0, 2)


def test_a_bomb_of_lists_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(BOMB)

    assert run(str(path)).exit_code in (0, 2)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "does not exist" in refused(str(tmp_path / "nothing.sh")).lower() or "No such file" in refused(
        str(tmp_path / "nothing.sh")
    )
    assert "folder" in refused(str(tmp_path))
    assert "no regular file" in refused(str(pipe))
    assert "no regular file" in refused("/dev/null")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("true\n")
    path.chmod(0)

    assert "Permission denied" in refused(str(path))


def test_wrong_types_are_unknown_and_no_error(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": [1, {"a": 2}], "overlap_comm": {"x": 1}, "contiguous_gradients": "maybe"}}')

    result = run(str(path))
    assert (result.exit_code, "nothing found" in result.output) == (0, True)


@pytest.mark.parametrize("text", ["", "null", "[]", "3", '"x"', "[[]]", "{}", '{"": 1}'])
def test_a_document_of_any_shape_is_read(text: str, tmp_path: Path) -> None:
    for name in ("job.yaml", "job.json"):
        path = tmp_path / name
        path.write_text(text)
        assert run(str(path)).exit_code in (0, 2)


def test_a_script_that_doubles_a_variable_ends_soon(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("A='--bf16 --x'\n" + 'A="$A $A"\n' * 60 + "torchrun pretrain_gpt.py $A --tp-comm-overlap\n")

    assert run(str(path)).exit_code in (0, 1)


def test_a_script_that_nests_itself_ends_soon(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "A=${A:-" * 500 + "1" + "}" * 500 + "\n" + "$(" * 5000 + "\n" + "bash -c '" * 300 + "\n" + "B=$((" + "(" * 300 + "\n"
    )

    assert run(str(path)).exit_code in (0, 1)


@given(st.text(alphabet="ab \"'\\\n$(){}[]=;&|<>#`!*-+:%/,0", max_size=200))
def test_any_text_is_a_script_that_is_read(text: str) -> None:
    shell.read(text, ["A"])
    shell.read(f"torchrun pretrain_gpt.py {text} --tp-comm-overlap\n{text}", ["A"])


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#\n ?,0", max_size=120))
def test_any_text_is_yaml_or_an_error_of_ours(text: str) -> None:
    from underlap.errors import InputError

    for reader in (pairs_of_yaml, pairs_of_json):
        with contextlib.suppress(InputError):
            reader(text, "x")


def test_the_time_for_a_script_grows_with_its_length_only(tmp_path: Path) -> None:
    random.seed(3)
    lines = [f'export V{at}="$V{at - 1} x{at % 7}"' if at % 50 else "torchrun pretrain_gpt.py --bf16 $V3" for at in range(20_000)]
    path = tmp_path / "train.sh"
    path.write_text("\n".join(lines))

    assert run(str(path)).exit_code in (0, 1)


LONG = {
    "escaped quotes": ("train.sh", "cat <<E\n{" + '\\"' * 1_500_000 + "$A\nE\n"),
    "a long word": ("train.sh", "cat <<E\n{" + "a" * 3_000_000 + " $A\nE\n"),
    "a long value": ("train.sh", "A=" + "y" * 90_000 + "\ncat <<E\n{" + "$A" * 1_000_000 + "\nE\n"),
    "many shells": ("job.yaml", 'command: "' + "sh " * 200_000 + '"\nargs: [b, "c d"]\n'),
}


@pytest.mark.parametrize("kind", LONG)
def test_long_documents_and_command_lines_are_read_in_seconds(kind: str, tmp_path: Path) -> None:
    name, text = LONG[kind]
    (tmp_path / name).write_text(text)

    assert run(str(tmp_path / name)).exit_code == 0
