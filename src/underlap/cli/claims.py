"""`underlap claims`: the catalog of published claims about overlap, with their conditions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from underlap.claim import Claim

_FILTERS = (
    click.option("--axis", metavar="NAME", help="Only claims about this axis: tp, ep, dp, fsdp, pp, cp."),
    click.option("--phase", metavar="NAME", help="Only claims about this phase: train, prefill, decode, operator, ..."),
    click.option("--framework", metavar="WORD", help="Only claims about software with this in its name or version."),
    click.option("--hardware", metavar="WORD", help="Only claims about devices, links or topologies with this in them."),
)
_JSON = click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the claims as JSON; '-' writes them to standard output instead of the screen.",
)
_FORCE = click.option("--force", is_flag=True, help="Replace an output file that exists.")


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((*_FILTERS, _JSON, _FORCE)):
        command = option(command)
    return command


@click.group(
    short_help="Look up published claims about overlap.", epilog="\b\nExample:\n  underlap claims list --axis ep --phase decode"
)
def claims() -> None:
    """Look up published claims about overlap, each with its conditions and its source."""


@claims.command("list", short_help="List claims, filtered.", epilog="\b\nExample:\n  underlap claims list --hardware h100")
@_filters
def list_claims(*, json_file: str | None, force: bool, **filters: str | None) -> None:
    """List the claims of the catalog, or those that all filters let through."""
    _show_found((), json_file, force=force, filters=filters)


@claims.command(short_help="Find claims by words.", epilog="\b\nExample:\n  underlap claims search two-batch")
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@_filters
def search(*, words: tuple[str, ...], json_file: str | None, force: bool, **filters: str | None) -> None:
    """List the claims in which every WORD occurs somewhere."""
    _show_found(words, json_file, force=force, filters=filters)


@claims.command(
    short_help="Show one claim with all its fields.", epilog="\b\nExample:\n  underlap claims show sglang-tbo-decode-32"
)
@click.argument("claim", metavar="ID")
@_JSON
@_FORCE
def show(*, claim: str, json_file: str | None, force: bool) -> None:
    """Show one claim of the catalog with all of its fields; what the source does not say is a question mark."""
    path = _checked(json_file, force=force)
    from underlap.flows.claims import by_id
    from underlap.render.claims import claim_text

    found = by_id(claim)
    _write(found, path, claim_text(found), as_json=json_file == STREAM)


def _show_found(words: tuple[str, ...], json_file: str | None, *, force: bool, filters: dict[str, str | None]) -> None:
    path = _checked(json_file, force=force)
    from underlap.flows.claims import catalog, find
    from underlap.render.claims import table_text

    found = find(words=words, **filters)
    _write(found, path, table_text(found, of=len(catalog())), as_json=json_file == STREAM)


def _checked(json_file: str | None, *, force: bool) -> Path | None:
    path = Path(json_file) if json_file is not None and json_file != STREAM else None
    refuse_unsafe([path] if path else [], [], force=force)
    return path


def _write(found: Claim | list[Claim], path: Path | None, text: str, *, as_json: bool) -> None:
    from underlap.flows.claims import to_json
    from underlap.render.files import replacing

    if path is not None:
        with replacing(path) as stream:
            stream.write(to_json(found))
    if as_json:
        write_to_stdout(lambda: sys.stdout.buffer.write(to_json(found)))
    else:
        write_to_stdout(lambda: sys.stdout.write(text))
    if path is not None:
        say_wrote(path)
