"""Two local processes that run scenarios over a slow link, and are gone afterwards.

The link is loopback in a network namespace of its own, held to 1 Gbit/s by tc: on plain loopback gloo copies at the speed of the
CPU, takes the cores that compute needs, and hides next to nothing. Windows of 128 KiB keep what stands in front of the link
short, as a transfer would otherwise wait for what another had already handed to it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
RATE_MBIT = 1000
SHAPED = f"""
set -e
ip link set lo up mtu 16384
tc qdisc add dev lo root tbf rate {RATE_MBIT}mbit burst 128kb latency 100ms
sysctl -q -w net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_wmem='4096 65536 131072' net.ipv4.tcp_rmem='4096 65536 131072'
exec "$@"
"""
LAUNCH_TIMEOUT_S = 90.0


class RealRunError(Exception):
    """The processes did not do what they were started for."""


@dataclasses.dataclass(frozen=True)
class Launched:
    """What a launch left behind."""

    out: Path
    seen: dict[str, list[dict[str, Any]]]
    """Scenario -> per rank what its clock saw: planted and removed, a list of blocks each."""
    seconds: float


@functools.cache
def missing() -> str | None:
    """Why nothing can be run here; None where all is there."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: make test, or pip install -e .[run]"
    if sys.platform != "linux":
        return "a slow link needs Linux"
    tools = [tool for tool in ("unshare", "ip", "tc", "sysctl") if shutil.which(tool) is None]
    if tools:
        return f"a slow link needs {', '.join(tools)} (util-linux, iproute2, procps)"
    tried = subprocess.run([*own_network(), "true"], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode:
        return f"no slow link can be made here: {(tried.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return None


def own_network() -> list[str]:
    """The command that another one is put behind to run in a network namespace with the slow link."""
    # Without being root, in a user namespace in which one is.
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    return [*unshare, "sh", "-c", SHAPED, "sh"]


def launch(out: Path, scenarios: list[str], turns: int) -> Launched:
    """Run them on two ranks. Both processes are ended before this returns, whatever happens."""
    out.mkdir(parents=True)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    options = ["--scenarios", ",".join(scenarios), "--turns", str(turns)]
    begin = time.monotonic()
    logs = [(out / f"log{rank}.txt").open("w") for rank in (0, 1)]
    # One process in the namespace starts the other, as a namespace cannot be named from outside.
    command = [*own_network(), sys.executable, "-m", "tests.real.scenario", str(out), *options]
    pair = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=logs[0], stderr=logs[1])
    try:
        code = pair.wait(timeout=LAUNCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RealRunError(f"no end after {LAUNCH_TIMEOUT_S:.0f} s{_last(out)}") from None
    finally:
        _end(pair)
        for log in logs:
            log.close()
    if code:
        raise RealRunError(f"ended with code {code}{_last(out)}")
    seen = {name: [json.loads((out / f"{name}_rank{rank}.json").read_text()) for rank in (0, 1)] for name in scenarios}
    return Launched(out=out, seen=seen, seconds=time.monotonic() - begin)


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """It ends its own children when it is asked to end; the kernel does where it cannot."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5)


def _last(out: Path) -> str:
    lines = [line for rank in (0, 1) for line in (out / f"log{rank}.txt").read_text().splitlines() if line and "USDT" not in line]
    return f": {lines[-1]}" if lines else ""
