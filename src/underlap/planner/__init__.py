"""Inputs -> Plan: what each rank does in one step, with nothing overlapped. Passes of `schedule` start from here."""

from __future__ import annotations

from underlap.planner.build import plan

__all__ = ["plan"]
