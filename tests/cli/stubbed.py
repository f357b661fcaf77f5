"""The command line with stand-ins for the flows that read and analyze: `python -m tests.cli.stubbed analyze PATH`."""

from __future__ import annotations

import os
import sys
import types

from tests.render.hand_written import many_ranks_report


class Flows:
    """What the flows were called with, and what they answer: a value, or an exception to raise."""

    def __init__(self):
        self.timeline = object()
        self.report = many_ranks_report()
        self.read_calls = []
        self.analyze_calls = []
        self.fail = None

    def read(self, *paths, **options):
        self.read_calls.append((paths, options))
        if self.fail is not None:
            raise self.fail
        return self.timeline

    def analyze(self, source, **options):
        self.analyze_calls.append((source, options))
        return self.report

    def modules(self):
        """The modules to put into `sys.modules`."""
        read, analyze = types.ModuleType("underlap.flows.read"), types.ModuleType("underlap.flows.analyze")
        read.read, analyze.analyze = self.read, self.analyze
        return {module.__name__: module for module in (read, analyze)}


if __name__ == "__main__":
    flows = Flows()
    if "INTERRUPT" in os.environ:
        flows.fail = KeyboardInterrupt()
    sys.modules.update(flows.modules())
    from underlap.cli import main

    main(prog_name="underlap")
