"""The list of public names: it is what the project promises."""

import subprocess
import sys

import pytest

import underlap


def test_the_list_of_public_names_is_sorted() -> None:
    assert underlap.__all__ == sorted(underlap.__all__)


@pytest.mark.parametrize("name", underlap.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(underlap, name) is not None


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert dir(underlap) == underlap.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'underlap' has no attribute 'nothing'"):
        _ = underlap.nothing


@pytest.mark.parametrize(
    "first",
    ["import underlap", "import underlap.cli", "import underlap.read, underlap.analyze, underlap.judge, underlap.simulate"],
)
def test_the_public_functions_stay_functions_whatever_is_imported_first(first: str) -> None:
    # underlap.read and others are folders too; an imported folder becomes an attribute of its package.
    told = "print(*(callable(getattr(underlap, name)) for name in ('read', 'analyze', 'judge', 'simulate')))"
    code = f"{first}\nimport underlap\nfor _ in range(2):\n    {told}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True True True True\n" * 2
