"""Plan -> Timeline: when everything would happen, on a machine whose resources it has to share."""

from __future__ import annotations

from underlap.simulate.folding import Folded, Known, fold
from underlap.simulate.run import Machine, Simulated, simulate

__all__ = ["Folded", "Known", "Machine", "Simulated", "fold", "simulate"]
