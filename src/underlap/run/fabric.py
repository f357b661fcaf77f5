"""A small network of this machine's own: each rank in a network namespace, a bridge between them, and links of a known rate.

    rank 0: eth0 --- p0 \\
                          br0, with the store's address
    rank 1: eth0 --- p1 /

On loopback gloo copies at the speed of a core, takes the cores that compute needs, and hides next to nothing. Over a link that is
held to a rate (tc's token bucket, in both directions) its threads mostly wait, as those of a network card would. It models a
non-blocking switch and nothing of NVLink, of RDMA or of a card's offloads.

Namespaces have no names: they exist while this process holds their descriptors, or a rank runs in them. So nothing is left after
a crash or SIGKILL, and runs at the same time do not meet. Linux only, as root.

    spec = fabric_spec("500mbit,rank1=250mbit")        # of run/fabric_spec.py
    with fabric(spec, ranks=2) as made:            # raises OptionError where it cannot be made here
        store = made.at_switch(open_the_store)     # at made.store_address
        ...                                        # in the started process of a rank: made.enter(rank), before any socket
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from underlap.errors import OptionError, RunError
from underlap.run.capabilities import NET_ADMIN, SYS_ADMIN, has_capability
from underlap.run.fabric_spec import FabricSpec

INTERFACE = "eth0"
"""Of every rank."""

MOST_RANKS = 250
SWITCH = "10.77.255.254"

_NET = 0x40000000  # CLONE_NEWNET of linux/sched.h
_TOOL_S = 20.0
_TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"

Result = TypeVar("Result")


# ---- whether it can be made here


def missing() -> str | None:
    """Why no fabric can be made here; None where it can, as far as can be told without making one."""
    if sys.platform != "linux":
        return "it is made of Linux network namespaces: run it on Linux, or leave --fabric out"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool, path=_path()) is None]
    if tools:
        return f"{' and '.join(tools)} not found: install iproute2"
    if not has_capability(NET_ADMIN) or not has_capability(SYS_ADMIN):
        return "network namespaces need root (CAP_NET_ADMIN and CAP_SYS_ADMIN): run as root, or leave --fabric out"
    return None


def _path() -> str:
    # ip and tc lie where the PATH of a user often does not look.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


# ---- the fabric


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Namespaces that stand. Can be sent to a process that this one has started."""

    spec: FabricSpec
    ranks: int
    owner: int
    """The process that holds the descriptors."""
    switch: int
    hosts: tuple[int, ...]
    """Descriptors of the namespaces, by rank."""

    interface: str = INTERFACE
    store_address: str = SWITCH
    """Of the bridge: a socket that is opened `at_switch` is reached there by every rank."""

    def address(self, rank: int) -> str:
        """Where a rank is reached by the others."""
        return _address(rank)

    def at_switch(self, make: Callable[[], Result]) -> Result:
        """What `make` gives when it is called inside the switch's namespace: sockets that it opens, and threads, stay there.

        It runs on a thread of its own, so that this process itself stays where it is. Raises what it raises.
        """

        def inside() -> Result:
            _enter(self.switch)
            return make()

        return _elsewhere(inside)

    def enter(self, rank: int) -> None:
        """Move this process to a rank's namespace and a core of its own, and gloo to its link. Before any socket or thread."""
        self._go(self.hosts[rank])
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
        # A rank has one core here: without a number of the user's, the launch gives it one thread for products.
        os.environ.pop("OMP_NUM_THREADS", None)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})

    def scale(self, rank: int, factor: float) -> None:
        """Give this rank's link so many times its rate, in both directions. To be asked after `enter`, between steps."""
        _tool("tc", _shaping(INTERFACE, self.spec, rank, "change", factor))

        def inside() -> None:
            self._go(self.switch)
            _tool("tc", _shaping(f"p{rank}", self.spec, rank, "change", factor))

        _elsewhere(inside)

    def _go(self, held: int) -> None:
        """Into a namespace that the owner holds."""
        try:
            namespace = os.open(f"/proc/{self.owner}/fd/{held}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RunError(f"fabric: its owner, process {self.owner}, is gone or out of reach ({error.strerror})") from None
        _enter(namespace)
        os.close(namespace)

    def counters(self) -> Counters:
        """What has passed this rank's link so far. To be asked after `enter`."""
        return counters(self.interface)


@contextlib.contextmanager
def fabric(spec: FabricSpec, ranks: int) -> Iterator[Fabric]:
    """Namespaces, links and rates for so many ranks; gone afterwards, or with this process.

    Raises OptionError where none can be made here or the spec names ranks that are not there, RunError where the system refuses.
    """
    reason = missing()
    if reason is not None:
        raise OptionError(f"fabric: {reason}")
    if ranks > MOST_RANKS:
        raise OptionError(f"fabric: {ranks} ranks are too many: expected at most {MOST_RANKS}")
    strange = [rank for rank, _ in spec.own_rates if rank >= ranks]
    if strange:
        raise OptionError(f"fabric: rank{strange[0]} has a rate, but there are {ranks} ranks: expected rank0 to rank{ranks - 1}")
    held: list[int] = []
    said = os.environ.get(_TORCH_LOG_LEVEL)
    try:
        # No names are known in these namespaces, and torch would warn of that for every socket.
        os.environ[_TORCH_LOG_LEVEL] = said or "ERROR"
        _elsewhere(lambda: _build(spec, ranks, held))
        yield Fabric(spec=spec, ranks=ranks, owner=os.getpid(), switch=held[0], hosts=tuple(held[1:]))
    finally:
        if said is None:
            del os.environ[_TORCH_LOG_LEVEL]
        for descriptor in held:
            os.close(descriptor)


def _address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def _build(spec: FabricSpec, ranks: int, held: list[int]) -> None:
    """On a thread of its own, as it goes from namespace to namespace. Fills `held`: the switch's, then the ranks'."""
    for _ in range(1 + ranks):
        held.append(_new_namespace())  # noqa: PERF401 - what is held has to be closed though a later one fails
    switch, *hosts = held
    _enter(switch)
    links = [
        "link set lo up",
        # Nothing that the bridge sends by itself is to be counted.
        "link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
        f"addr add {SWITCH}/16 dev br0",
        "link set br0 up",
    ]
    for rank, host in enumerate(hosts):
        links.append(f"link add p{rank} type veth peer name {INTERFACE} netns /proc/self/fd/{host}")
        links.append(f"link set p{rank} master br0 up")
    _tool("ip", links, hosts)
    _tool("tc", [line for rank in range(ranks) for line in _shaping(f"p{rank}", spec, rank)])
    for rank, host in enumerate(hosts):
        _enter(host)
        _tool("ip", ["link set lo up", f"addr add {_address(rank)}/16 dev {INTERFACE}", f"link set {INTERFACE} up"])
        _tool("tc", _shaping(INTERFACE, spec, rank))


def _shaping(device: str, spec: FabricSpec, rank: int, how: str = "add", factor: float = 1.0) -> list[str]:
    rate = spec.rate_of(rank)
    if rate is None:
        return []
    return [
        f"qdisc {how} dev {device} root tbf rate {round(factor * rate)}bit burst {spec.burst} latency {spec.latency_ns // 1000}us"
    ]


def _new_namespace() -> int:
    """A descriptor of a network namespace in which this thread now is."""
    _called("unshare", _NET)
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    # Neighbor discovery would be counted as traffic.
    for which in ("all", "default"):
        _set(f"ipv6/conf/{which}/disable_ipv6", "1")
    # bbr paces by itself, and cubic is refused in namespaces: reno fills a link that drops.
    _set("ipv4/tcp_congestion_control", "reno")
    return descriptor


def _set(name: str, value: str) -> None:
    path = Path("/proc/sys/net", name)
    if path.exists():
        path.write_text(value)


def _enter(descriptor: int) -> None:
    _called("setns", descriptor, _NET)


def _called(name: str, *arguments: int) -> None:
    """A function of the C library that Python has only since 3.12. Raises RunError where the system refuses."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise RunError(
            f"fabric: {name} is refused here ({os.strerror(ctypes.get_errno())}): expected network namespaces; run as root"
        )


def _tool(tool: str, lines: list[str], descriptors: list[int] | None = None) -> None:
    """Have ip or tc do one thing per line. Raises RunError with what it says."""
    if not lines:
        return
    command = shutil.which(tool, path=_path())
    assert command is not None
    done = subprocess.run(  # noqa: S603 - no part of it comes from outside
        [command, "-batch", "-"],
        input="\n".join(lines) + "\n",
        pass_fds=descriptors or [],
        capture_output=True,
        text=True,
        timeout=_TOOL_S,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line] or ["no reason given"]
        raise RunError(f"fabric: {tool} cannot set the links: {said[0]}")


def _elsewhere(do: Callable[[], Result]) -> Result:
    """Do it on a thread that ends with it: a thread can change its namespace and leave the others where they are."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(do())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="fabric")
    thread.start()
    try:
        thread.join()
    except BaseException:
        # Interrupted: what it holds is closed by the caller, so it has to be done with it.
        thread.join(_TOOL_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


# ---- what passed a link


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """What has passed an interface. A packet here is what the stack handed over at once: up to 64 KiB with one header.

    The kernel cuts it into frames of 1514 bytes only for a real card; the bucket charges for all their headers (so 0.956 of the
    rate is left for payload), these counters have one header of 66 bytes per packet (Ethernet 14, IP 20, TCP 20 and its
    time stamps 12). `sent_payload` is without them: the bytes that TCP carried, sent again ones included.
    """

    sent: int
    sent_packets: int
    received: int
    received_packets: int

    @property
    def sent_payload(self) -> int:
        """Bytes without headers."""
        return self.sent - HEADER * self.sent_packets

    @property
    def received_payload(self) -> int:
        """Bytes without headers."""
        return self.received - HEADER * self.received_packets

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))


HEADER = 66


def counters(interface: str = INTERFACE) -> Counters:
    """Of this process's network namespace, as /proc/net/dev has them. Raises RunError where there is no such interface."""
    return parsed_counters(Path("/proc/self/net/dev").read_text(), interface)


def parsed_counters(text: str, interface: str) -> Counters:
    """One row of /proc/net/dev: eight columns received, eight sent, bytes and packets first."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == interface:
            columns = [int(value) for value in rest.split()]
            return Counters(columns[8], columns[9], columns[0], columns[1])
    raise RunError(f"fabric: no interface {interface} in this rank's network namespace: expected the one that was made for it")
