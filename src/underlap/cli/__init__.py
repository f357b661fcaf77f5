"""The command `underlap`. Each subcommand is a file here: it parses, calls a flow and hands the result to a renderer.

Flows and renderers are imported inside the commands, so that `underlap --help` is quick.

Exit codes: 0 done or held, 1 findings (lint), a claim refuted or ranks of a run failed, 2 usage or unusable input, 3 a claim
cannot be decided, 130 interrupted. A reader that closes the pipe early is no failure.
"""

from __future__ import annotations

from typing import Any

import click

from underlap._version import __version__
from underlap.cli.analyze import analyze
from underlap.cli.calibrate import calibrate
from underlap.cli.claims import claims
from underlap.cli.judge import judge
from underlap.cli.ladder import ladder
from underlap.cli.levers import levers
from underlap.cli.lint import lint
from underlap.cli.run import run
from underlap.cli.simulate import simulate
from underlap.cli.sweep import sweep
from underlap.errors import RunError, ToldElsewhereError, UnderlapError


class Refusal(click.ClickException):
    """An `UnderlapError` on its way out."""

    exit_code = 2


class Failure(click.ClickException):
    """A `RunError` on its way out."""

    exit_code = 1


class Commands(click.Group):
    """A group that turns the errors we raise on purpose into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except ToldElsewhereError:
            ctx.exit(1)
        except UnderlapError as error:
            from underlap.render.plain import printable

            refusal = Failure if isinstance(error, RunError) else Refusal
            raise refusal(printable(str(error))) from error
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            ctx.exit(130)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  underlap analyze traces/",
)
@click.version_option(__version__, prog_name="underlap", message="%(prog)s %(version)s")
def main() -> None:
    """Tell which communication is really hidden behind compute, in traces or before the run, and what claims of it are worth."""


main.add_command(analyze)
main.add_command(ladder)
main.add_command(levers)
main.add_command(run)
main.add_command(calibrate)
main.add_command(simulate)
main.add_command(sweep)
main.add_command(lint)
main.add_command(claims)
main.add_command(judge)
