"""`underlap judge`: a claim in, the four questions answered; with a Report, whether one's own run holds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout

if TYPE_CHECKING:
    from underlap.judgement import Comparison, Judgement

EXAMPLE = """\b
Example:
  underlap judge domino-up-to-1p3
"""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(epilog=EXAMPLE, short_help="Judge a claim about overlap, alone or against a report.")
@click.argument("claims", metavar="CLAIM...", nargs=-1, required=True)
@click.option("--report", metavar="FILE", type=_FILE, help="JSON of underlap analyze: does this run hold the claim?")
@click.option("--baseline-report", metavar="FILE", type=_FILE, help="JSON of underlap analyze of the run without the change.")
@click.option("--compare", is_flag=True, help="Say whether two claims can be compared, condition by condition.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the judgement as JSON; '-' writes it to standard output instead of the screen.",
)
@click.option("--force", is_flag=True, help="Replace an output file that exists.")
def judge(
    *,
    claims: tuple[str, ...],
    report: Path | None,
    baseline_report: Path | None,
    compare: bool,
    json_file: str | None,
    force: bool,
) -> None:
    """Judge a claim about overlap: what it supports, what it does not, and what stays unknown.

    CLAIM is a YAML file (docs/claims.md), or the id of a claim of the catalog (underlap claims list).

    \b
    Exit codes: with --report, 0 the claim is held, 1 it is refuted, 3 it cannot be decided;
    with --compare, 0 comparable, 1 not comparable, 3 not known; 2 unusable input; else 0.
    """
    _check_words(claims, report, baseline_report, compare=compare)
    json_path = Path(json_file) if json_file is not None and json_file != STREAM else None
    inputs = [*map(Path, claims), *(path for path in (report, baseline_report) if path)]
    refuse_unsafe([json_path] if json_path else [], inputs, force=force)

    from underlap.flows.judge import compare as compare_claims
    from underlap.flows.judge import judge as judge_claim

    if compare:
        comparison = compare_claims(*claims)
        _write(comparison, json_path, as_json=json_file == STREAM)
        sys.exit({"yes": 0, "no": 1}.get(comparison.comparable, 3))
    judgement = judge_claim(claims[0], report, baseline=baseline_report)
    _write(judgement, json_path, as_json=json_file == STREAM)
    if judgement.settlement is not None:
        sys.exit({"held": 0, "refuted": 1}.get(judgement.settlement.outcome, 3))


def _check_words(claims: tuple[str, ...], report: Path | None, baseline_report: Path | None, *, compare: bool) -> None:
    if compare and len(claims) != 2:
        raise click.UsageError(f"--compare takes two claims, got {len(claims)}.")
    if not compare and len(claims) != 1:
        raise click.UsageError(f"Got {len(claims)} claims: pass one, or two with --compare.")
    if compare and (report or baseline_report):
        raise click.UsageError("--compare is about two claims, and takes no report.")
    if baseline_report and not report:
        raise click.UsageError("--baseline-report is compared with --report: pass both.")


def _write(record: Judgement | Comparison, json_path: Path | None, *, as_json: bool) -> None:
    from underlap.judgement import Comparison, to_json
    from underlap.render.files import replacing
    from underlap.render.judgement import comparison_text, judgement_text

    if json_path is not None:
        with replacing(json_path) as stream:
            stream.write(to_json(record))
    if as_json:
        write_to_stdout(lambda: sys.stdout.buffer.write(to_json(record)))
    else:
        text = comparison_text(record) if isinstance(record, Comparison) else judgement_text(record)
        write_to_stdout(lambda: sys.stdout.write(text))
    if json_path is not None:
        say_wrote(json_path)
