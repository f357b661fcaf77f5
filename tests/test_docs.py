"""The documents show true output, and name everything that exists."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
import pytest

from underlap.cli import main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/claims.md"])
def test_a_page_shows_what_its_commands_print(page: str) -> None:
    spec = importlib.util.spec_from_file_location("run_docs", ROOT / "tools/run_docs.py")
    assert spec is not None
    assert spec.loader is not None
    run_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_docs)
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
