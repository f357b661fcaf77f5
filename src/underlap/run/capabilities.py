"""What this process may do beyond reading and writing files: capabilities, as linux/capability.h numbers them."""

from __future__ import annotations

from pathlib import Path

NET_ADMIN, SYS_ADMIN, SYS_NICE = 12, 21, 23


def has_capability(number: int) -> bool:
    """Whether it has one in effect. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False
