"""docs/inputs.md: every example is read, and every preset, pass and family is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from underlap import inputs
from underlap.documents import parse_document
from underlap.hugging_face import _FAMILIES
from underlap.policy import PASSES, RESOURCES

PAGE = (Path(__file__).parents[2] / "docs/inputs.md").read_text()
BLOCKS = re.findall(r"```(text|yaml) (\w+)\n(.*?)```", PAGE, re.DOTALL)
READERS: dict[tuple[str, str], Callable[[str], object]] = {
    ("text", "layout"): inputs.layout,
    ("text", "workload"): inputs.workload,
    ("text", "policy"): inputs.policy,
    ("yaml", "model"): lambda text: inputs.model_of_document(parse_document(text, "docs"), "docs"),
    ("yaml", "cluster"): lambda text: inputs.cluster_of_document(parse_document(text, "docs"), "docs"),
}


def test_the_page_has_an_example_of_every_form() -> None:
    assert {(form, noun) for form, noun, _ in BLOCKS} == set(READERS)


@pytest.mark.parametrize(("form", "noun", "content"), BLOCKS)
def test_every_example_of_the_page_is_read(form: str, noun: str, content: str) -> None:
    for example in [content] if form == "yaml" else content.splitlines():
        READERS[form, noun](example)


def test_the_page_names_every_preset_pass_and_family() -> None:
    names = [*inputs.presets("models"), *inputs.presets("clusters"), *PASSES, *RESOURCES]

    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert [family for family in _FAMILIES if family not in PAGE] == []


@pytest.mark.parametrize("name", [*PASSES, *RESOURCES])
def test_the_page_gives_axes_and_meaning_of_every_pass(name: str) -> None:
    known = PASSES.get(name) or RESOURCES[name]

    assert re.search(rf"^\| `{name}` \| {', '.join(known.axes)} \| .* \| {re.escape(known.meaning)} \|$", PAGE, re.MULTILINE)
