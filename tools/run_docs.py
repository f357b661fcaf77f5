"""Run the commands that the pages show, and compare or replace the output that they show for them.

    python tools/run_docs.py            says what differs, exit code 1 if anything does
    python tools/run_docs.py --write    replaces it

A block that starts with `$ ` holds commands, and the output of the last one. A `python` block is run, and the plain block that
follows it holds what it prints. All commands of a page run in one empty folder, which has `examples/`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/claims.md", "docs/tutorial.md")
_FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTCOMES = (0, 1, 3)
"""Exit codes of commands that did what they were asked."""


def refreshed(text: str) -> str:
    """The text with the output of every command as it is now."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        return _refreshed(text, Path(folder))


def _refreshed(text: str, folder: Path) -> str:
    printed: str | None = None

    def block(found: re.Match[str]) -> str:
        nonlocal printed
        language, body = found.groups()
        if language == "python":
            printed = _run([sys.executable, "-c", body], folder)
            return found.group()
        if body.startswith("$ "):
            commands = [line for line in body.splitlines() if line.startswith("$ ")]
            outputs = []
            for command in commands:
                program, *rest = shlex.split(command[2:])
                assert program == "underlap"
                outputs.append(_run([sys.executable, "-m", "underlap", *rest], folder))
            return "```\n" + "\n".join(commands) + f"\n{outputs[-1]}```"
        if not language and printed is not None:
            output, printed = printed, None
            return f"```\n{output}```"
        return found.group()

    return _FENCES.sub(block, text)


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode in _OUTCOMES, done.stderr
    return done.stdout


def main() -> int:
    differing = []
    for name in PAGES:
        page = ROOT / name
        before = page.read_text()
        after = refreshed(before)
        if before != after:
            differing.append(name)
            if "--write" in sys.argv[1:]:
                page.write_text(after)
    if differing and "--write" not in sys.argv[1:]:
        print(f"{', '.join(differing)}: other output than the commands print; run: python tools/run_docs.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
