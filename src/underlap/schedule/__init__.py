"""Plan -> Plan: overlap as a transformation that keeps every byte and every data dependence."""

from __future__ import annotations

from underlap.schedule.applying import Applied, Refusal, apply
from underlap.schedule.checked import check_kept

__all__ = ["Applied", "Refusal", "apply", "check_kept"]
