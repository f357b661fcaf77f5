"""Plan -> Timeline: when everything would happen, on a machine whose resources it has to share."""

from __future__ import annotations

from underlap.simulate.run import Machine, Simulated, simulate

__all__ = ["Machine", "Simulated", "simulate"]
