"""Run the commands that README.md and docs/tutorial.md show, and compare or replace the output that they show for them.

    python tools/run_docs.py            says what differs, exit code 1 if anything does
    python tools/run_docs.py --write    replaces it

A block that starts with `$ ` holds one command and its output. A `python` block is run, and the plain block that follows
it holds what it prints.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/tutorial.md")
_FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def refreshed(text: str) -> str:
    """The text with the output of every command as it is now."""
    printed: str | None = None

    def block(found: re.Match[str]) -> str:
        nonlocal printed
        language, body = found.groups()
        if language == "python":
            printed = _run([sys.executable, "-c", body])
            return found.group()
        if body.startswith("$ "):
            command = body.partition("\n")[0]
            program, *rest = shlex.split(command[2:])
            assert program == "underlap"
            return f"```\n{command}\n{_run([sys.executable, '-m', 'underlap', *rest])}```"
        if not language and printed is not None:
            output, printed = printed, None
            return f"```\n{output}```"
        return found.group()

    return _FENCES.sub(block, text)


def _run(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Check or replace both documents."""
    wrong = []
    for name in DOCUMENTS:
        document = ROOT / name
        before = document.read_text(encoding="utf-8")
        after = refreshed(before)
        if "--write" in sys.argv[1:]:
            document.write_text(after, encoding="utf-8")
        elif before != after:
            wrong.append(name)
    if wrong:
        print(f"{' and '.join(wrong)}: other output than the commands print; run: python tools/run_docs.py --write")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
