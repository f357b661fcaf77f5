"""The documents show true output, and name everything that exists."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from underlap.cli import main

ROOT = Path(__file__).parents[1]


def in_this_process(run_docs: Any) -> Any:
    """Its `_run`, but underlap need not be loaded for every command."""
    start = run_docs._run

    def run(command: list[str], folder: Path) -> str:
        if command[1:3] != ["-m", "underlap"]:
            printed: str = start(command, folder)
            return printed
        with contextlib.chdir(folder):
            done = CliRunner().invoke(main, command[3:], prog_name="underlap")
        assert done.exit_code in run_docs._OUTCOMES, done.output
        return done.stdout

    return run


@pytest.mark.parametrize("page", ["README.md", "docs/claims.md", "docs/tutorial.md"])
def test_a_page_shows_what_its_commands_print(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("run_docs", ROOT / "tools/run_docs.py")
    assert spec is not None
    assert spec.loader is not None
    run_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_docs)
    monkeypatch.setattr(run_docs, "_run", in_this_process(run_docs))
    text = (ROOT / page).read_text()

    # Regenerate with: python tools/run_docs.py --write
    assert page in run_docs.PAGES
    assert run_docs.refreshed(text) == text


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"underlap {name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_option_of_a_command_has_a_help_text(name: str) -> None:
    options = [parameter for parameter in main.commands[name].params if isinstance(parameter, click.Option)]

    assert [option.name for option in options if not option.help] == []


def test_the_example_of_kernel_names_is_the_one_of_the_page_and_works() -> None:
    from underlap.read.names import NameTable
    from underlap.timeline import OpClass

    example = ROOT / "examples" / "my_kernels.yaml"
    page = (ROOT / "docs" / "names.md").read_text()
    table = NameTable.default().with_file(example)
    found = table.recognize("void acme::ring_all_gather<float, 8>(float*, int)")

    assert page.partition("```yaml\n")[2].partition("```")[0] == example.read_text().partition("\n")[2]
    assert (found.op_class, found.library, found.collective) == (OpClass.COMMUNICATION, "acme", "all_gather")
    assert table.recognize("acme::fused_gemm_all_reduce(int)").op_class == OpClass.FUSED
    assert table.recognize("acme::spin_wait()").op_class == OpClass.WAIT
    assert table.recognize("acme::layer_norm()").known


def test_the_page_of_kernel_names_lists_every_class_and_every_field() -> None:
    from underlap.read import names
    from underlap.read.collective import COLLECTIVES
    from underlap.timeline import OpClass

    page = (ROOT / "docs" / "names.md").read_text()

    assert [kind.name.lower() for kind in OpClass if f"`{kind.name.lower()}`" not in page] == []
    fields = [field.encode_name for field in msgspec.structs.fields(names._FamilyRow)]
    assert [field for field in fields if f"| `{field}` |" not in page] == []
    assert [name for name in ("all_reduce", "send_recv", "combine") if name not in COLLECTIVES or name not in page] == []
