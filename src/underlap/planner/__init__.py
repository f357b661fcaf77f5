"""Inputs -> Plan: what each rank does in one step, with nothing overlapped. Passes of `schedule` start from here."""

from __future__ import annotations

from underlap.planner.build import plan
from underlap.planner.roles import unfold

__all__ = ["plan", "unfold"]
