"""Four hosts in network namespaces, one of them bad: a preflight names it, and every host is free afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.agents import RunningAgent, wait_for
from tests.process import namespaces
from tests.process.bad_hosts import FAULTS, STEADY, check, list_blamed
from tests.process.living import find_children
from tests.process.namespaces import CAN_RUN, REASON, Network, start_hosts

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900), pytest.mark.skipif(not CAN_RUN, reason=REASON)]
BAD = 2


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Network, list[RunningAgent]]]:
    with start_hosts(4, **STEADY) as found:
        yield found


def test_good_hosts_are_well(hosts: tuple[Network, list[RunningAgent]]) -> None:
    code, report = check(hosts[1])
    assert (code, list_blamed(report)) == (0, {}), str(report)


@pytest.mark.parametrize("name", FAULTS)
def test_the_bad_host_is_named_and_no_other(hosts: tuple[Network, list[RunningAgent]], name: str) -> None:
    fault = FAULTS[name]
    with fault.make(*hosts, BAD):
        code, report = check(hosts[1])
    blamed = list_blamed(report)
    assert (code, list(blamed)) == (1, [BAD]), str(report)
    assert fault.words in blamed[BAD]


def test_of_two_hosts_that_cannot_reach_each_other_both_are_named(hosts: tuple[Network, list[RunningAgent]]) -> None:
    network, agents = hosts
    route = f"blackhole {network.addresses[3]}/32"
    namespaces.run(f"ip -n {network.names[BAD]} route add {route}")
    try:
        code, report = check(agents[1:])
    finally:
        namespaces.run(f"ip -n {network.names[BAD]} route del {route}")
    assert (code, set(list_blamed(report))) == (1, {BAD - 1, 2}), str(report)
    assert "no TCP connection between it and" in list_blamed(report)[BAD - 1]


def test_every_host_is_free_and_healthy_after_all_that(hosts: tuple[Network, list[RunningAgent]]) -> None:
    for agent in hosts[1]:
        assert httpx.get(f"{agent.url}/leases").json()["leases"] == []
        wait_for(lambda agent=agent: not find_children(agent, "preflight"), limit_s=10)
        assert httpx.get(f"{agent.url}/health").json()["state"] == "healthy"
