"""Hosts on one machine: network namespaces on one bridge, each with an agent, a name and an address of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.agents import RunningAgent, start_agent

MISSING = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
REASON = f"{', '.join(MISSING)} not here: apt-get install iproute2" if MISSING else "needs root, for network namespaces"
CAN_RUN = not MISSING and os.geteuid() == 0

_NUMBER = os.getpid() % 200 + 20
"""Of the network, so that two test runs on one machine do not meet."""


def run(command: str) -> str:
    """Runs a command to its end."""
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout


def build_prefix(name: str) -> tuple[str, ...]:
    """Returns the words before a command that make it run on a host, and the host's name its own."""
    return (*f"ip netns exec {name} unshare --uts sh -c".split(), f'hostname {name}; exec "$@"', "sh")


class Network:
    """A bridge with hosts."""

    def __init__(self, count: int, faults: Path) -> None:
        """`faults`: the folder with a file for each host that has one of the faults of `bad_children`."""
        self.faults = faults
        self.bridge = f"mwb{_NUMBER}"
        self.names = [f"mw{_NUMBER}h{number}" for number in range(count)]
        self.addresses = [f"10.{_NUMBER}.0.{number + 1}" for number in range(count)]

    def build(self) -> None:
        """Makes the namespaces, their links and their /etc/hosts."""
        run(f"ip link add {self.bridge} type bridge")
        run(f"ip addr add 10.{_NUMBER}.0.254/24 dev {self.bridge}")
        run(f"ip link set {self.bridge} up")
        table = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for address, name in zip(self.addresses, self.names, strict=True)
        )
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            run(f"ip netns add {name}")
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(table)
            outside = self.outside(number)
            run(f"ip link add {outside} type veth peer name eth0 netns {name}")
            run(f"ip link set {outside} master {self.bridge} up")
            run(f"ip -n {name} addr add {address}/24 dev eth0")
            run(f"ip -n {name} link set eth0 up")
            run(f"ip -n {name} link set lo up")

    def remove(self) -> None:
        """Removes all that there is."""
        for number, name in enumerate(self.names):  # the link first: its namespace may outlive its name for a while
            subprocess.run(["ip", "link", "del", self.outside(number)], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)

    def outside(self, number: int) -> str:
        """Returns the name of a host's link at the bridge."""
        return f"mwv{_NUMBER}p{number}"

    def limit_rate(self, number: int, rate: str) -> None:
        """Limits what a host sends and receives."""
        shape = f"root tbf rate {rate} burst 64kb latency 50ms"
        run(f"tc qdisc replace dev {self.outside(number)} {shape}")
        run(f"tc -n {self.names[number]} qdisc replace dev eth0 {shape}")

    def restore_rate(self, number: int) -> None:
        """Removes the limit."""
        run(f"tc qdisc del dev {self.outside(number)} root")
        run(f"tc -n {self.names[number]} qdisc del dev eth0 root")


@contextlib.contextmanager
def taking_turns() -> Iterator[None]:
    """Waits until no other test has preflights on this machine: two at a time slow each other's hosts."""
    with Path(tempfile.gettempdir(), "meshwright-hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def start_hosts(
    count: int, *, cpu_devices: int = 2, **environment: str
) -> Iterator[tuple[Network, list[RunningAgent]]]:
    """Yields the network and the agents of its hosts."""
    with taking_turns(), contextlib.ExitStack() as stack:
        network = Network(count, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        network.remove()
        stack.callback(network.remove)
        network.build()
        agents = [
            stack.enter_context(
                start_agent(
                    cpu_devices=cpu_devices,
                    options=("--host", address, "--port", "8790"),
                    prefix=build_prefix(name),
                    FAULT=str(network.faults / name),
                    **environment,
                )
            )
            for name, address in zip(network.names, network.addresses, strict=True)
        ]
        yield network, agents
