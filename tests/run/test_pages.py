"""Memory for what a plan computes with: pieces of one mapping, each by itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from underlap.run.pages import pieces  # noqa: E402 - only with torch

SIZES = (5, 0, 3 << 20, 256, 1)


def test_each_piece_has_its_size_begins_at_a_boundary_and_is_zero() -> None:
    found = pieces(SIZES)

    assert [piece.numel() for piece in found] == list(SIZES)
    assert all(piece.dtype == torch.uint8 and not piece.any() for piece in found)
    assert all(piece.data_ptr() % 256 == 0 for piece in found if piece.numel())
    assert pieces([]) == []


def test_what_is_written_to_one_piece_changes_no_other() -> None:
    found = pieces(SIZES)
    for number, piece in enumerate(found, 1):
        piece.fill_(number)

    assert all((piece == number).all() for number, piece in enumerate(found, 1))
