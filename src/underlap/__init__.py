"""Which communication is really hidden behind compute, why the rest is exposed, and what it would take.

    import underlap

    timeline = underlap.read("traces/")
    report = underlap.analyze(timeline)

    asked = underlap.scenario(model="llama3-8b", cluster="dgx-h100", layout="tp=8,sp", workload="prefill,batch=4,seq=2048")
    report = underlap.simulate(asked)

Names are loaded on first use, so that importing the package is quick.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from underlap._version import __version__

if TYPE_CHECKING:
    from underlap.claim import Claim
    from underlap.errors import UnderlapError
    from underlap.flows.analyze import analyze
    from underlap.flows.judge import judge
    from underlap.flows.ladder import ladder
    from underlap.flows.levers import levers
    from underlap.flows.lint import lint
    from underlap.flows.read import read
    from underlap.flows.simulate import scenario, simulate
    from underlap.flows.sweep import sweep
    from underlap.judgement import Judgement
    from underlap.report import Report
    from underlap.timeline import Timeline

_HOME = {
    "Claim": "underlap.claim",
    "Judgement": "underlap.judgement",
    "Report": "underlap.report",
    "Timeline": "underlap.timeline",
    "UnderlapError": "underlap.errors",
    "analyze": "underlap.flows.analyze",
    "judge": "underlap.flows.judge",
    "ladder": "underlap.flows.ladder",
    "levers": "underlap.flows.levers",
    "lint": "underlap.flows.lint",
    "read": "underlap.flows.read",
    "scenario": "underlap.flows.simulate",
    "simulate": "underlap.flows.simulate",
    "sweep": "underlap.flows.sweep",
}

__all__ = [
    "Claim",
    "Judgement",
    "Report",
    "Timeline",
    "UnderlapError",
    "__version__",
    "analyze",
    "judge",
    "ladder",
    "levers",
    "lint",
    "read",
    "scenario",
    "simulate",
    "sweep",
]


class _Package(ModuleType):
    """Keeps `underlap.read`, `analyze`, `simulate`, `lint` and `judge` the functions, though folders so named hold their parts.

    The import system binds a submodule in its package when it is first imported; here that would hide the function. The
    parts are reached by `from underlap.read import kineto`; `import underlap.read.kineto as kineto` finds the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'underlap' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
