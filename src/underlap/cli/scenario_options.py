"""The options that say which model, machine, layout and work a question is about: the same for all commands that simulate."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from underlap.cli.outputs import STREAM, refuse_unsafe, say_wrote, write_to_stdout

if TYPE_CHECKING:
    from underlap.answers import Answer

    GridType = click.ParamType[tuple[int, ...]]
else:
    GridType = click.ParamType

Command = TypeVar("Command", bound=Callable[..., Any])

_LARGEST = 2**40
_MOST_VALUES = 1000


def scenario_options(layout_help: str) -> Callable[[Command], Command]:
    """--model, --cluster, --gpus, --layout, --workload, --overlap and --no-contention, in this order."""
    options = (
        click.option(
            "--model", required=True, metavar="NAME|FILE", help="A preset, a YAML file, or a config.json of Hugging Face."
        ),
        click.option("--cluster", required=True, metavar="NAME|FILE", help="A preset such as dgx-h100, or a YAML file."),
        click.option(
            "--gpus", metavar="N", type=click.IntRange(min=1), help="GPUs of the job.  [default: as many as the layout has ranks]"
        ),
        click.option("--layout", required=True, metavar="TEXT|FILE", help=layout_help),
        click.option(
            "--workload",
            required=True,
            metavar="TEXT|FILE",
            help="train,gbs=256,mbs=1,seq=8192; prefill,...; decode,...; or a YAML file.",
        ),
        click.option(
            "--overlap",
            "policy",
            default="",
            metavar="TEXT|FILE",
            help="What overlaps: tp=split_batch,dp=bucket:25MB.  [default: nothing]",
        ),
        click.option(
            "--no-contention", is_flag=True, help="Overlap costs nothing: compute and communication never slow each other."
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class Grid(GridType):
    """`1..512`: powers of two; `1,2,4`: a list. Ascending, each once."""

    name = "grid"

    def convert(self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse, or fail with what is wrong and how it should look."""
        if isinstance(value, tuple):
            return value
        numbers: set[int] = set()
        for part in value.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,13})(?:\s*\.\.\s*([0-9]{1,13}))?\s*", part)
            if match is None:
                self.fail(f"'{part}' is no number and no range, in '{value}'. Expected 1,2,4 or 512..131072.", param, ctx)
            first, last = int(match[1]), int(match[2] or match[1])
            if not 1 <= first <= last <= _LARGEST:
                self.fail(f"'{part.strip()}' has to go upward from 1 or more, to {_LARGEST} at most.", param, ctx)
            numbers |= {first} if match[2] is None else self._powers(first, last, part.strip(), param, ctx)
        if len(numbers) > _MOST_VALUES:
            self.fail(f"'{value}' has {len(numbers)} values: at most {_MOST_VALUES} are accepted.", param, ctx)
        return tuple(sorted(numbers))

    def _powers(self, first: int, last: int, part: str, param: click.Parameter | None, ctx: click.Context | None) -> set[int]:
        found = {2**power for power in range(41) if first <= 2**power <= last}
        if not found:
            self.fail(f"There is no power of two in {part}. Write the numbers, as 3,5,6.", param, ctx)
        return found


def checked_path(named: str | None, inputs: list[str], *, force: bool) -> Path | None:
    """Where to write, or None; an output that would replace something is refused before anything is computed."""
    path = Path(named) if named is not None and named != STREAM else None
    if path is not None:
        refuse_unsafe([path], [Path(name) for name in inputs if name], force=force)
    return path


def show(answer: Answer, json_file: str | None, json_path: Path | None, screen: Callable[[Any], None]) -> None:
    """The answer as JSON where it was asked for, else on the screen."""
    from underlap.answers import answer_json

    if json_path is not None:
        from underlap.render.files import replacing

        with replacing(json_path) as stream:
            stream.write(answer_json(answer))
    if json_file == STREAM:
        write_to_stdout(lambda: sys.stdout.buffer.write(answer_json(answer)))
        return
    write_to_stdout(lambda: screen(sys.stdout))
    if json_path is not None:
        say_wrote(json_path)
