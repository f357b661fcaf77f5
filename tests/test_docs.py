"""The documents show true output, and name everything that exists."""

from __future__ import annotations

import runpy
from pathlib import Path

import click
import pytest

from underlap.cli import main

ROOT = Path(__file__).parents[1]


RUN_DOCS = runpy.run_path(str(ROOT / "tools" / "run_docs.py"))


@pytest.mark.parametrize("document", RUN_DOCS["DOCUMENTS"])
def test_a_document_shows_what_its_commands_print(document: str) -> None:
    shown = (ROOT / document).read_text(encoding="utf-8")

    # Regenerate with: python tools/run_docs.py --write
    assert RUN_DOCS["refreshed"](shown) == shown


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"underlap {name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_option_of_a_command_has_a_help_text(name: str) -> None:
    options = [parameter for parameter in main.commands[name].params if isinstance(parameter, click.Option)]

    assert [option.name for option in options if not option.help] == []
