from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from meshwright.topology.links import (
    PCIE_LADDER,
    UNLINKED_COST,
    classify_link,
    price_link,
    price_pair,
    price_pairs,
)
from meshwright.wire.devices import Link
from tests.fakes.topologies import (
    EVIDENCE,
    build_cpu,
    build_dgx1,
    build_dgx_h100,
    build_mig,
    build_pcie,
    build_tpu,
)


def link(kind: str, *, count: int | None = None, rate: float | None = None) -> Link:
    return Link(a=0, b=1, kind=kind, count=count, bandwidth_bytes_per_s=rate, **EVIDENCE)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ICI", "ici"),
        ("NV18", "nvlink"),
        ("NV1", "nvlink"),
        ("PIX", "pcie"),
        ("SYS", "pcie"),
        ("HOST", "host"),
    ],
)
def test_kinds_of_links_fall_into_classes(kind: str, name: str) -> None:
    assert classify_link(kind) == name


def test_each_step_outwards_on_the_pcie_tree_costs_more_also_at_equal_bandwidth() -> None:
    for rate in (None, 64e9):
        costs = [price_link(link(kind, rate=rate)) for kind in PCIE_LADDER]
        assert all(near < far for near, far in pairwise(costs))


def test_more_nvlinks_and_more_bandwidth_cost_less() -> None:
    assert price_link(link("NV18")) < price_link(link("NV2")) < price_link(link("NV1"))
    assert price_link(link("NV2", count=4)) == price_link(link("NV4"))
    assert price_link(link("ICI", rate=90e9)) == price_link(link("ICI", rate=45e9)) / 2 == price_link(link("ICI")) / 2


def test_nvlink_is_faster_than_any_pcie() -> None:
    assert price_link(link("NV2")) < price_link(link("PIX"))


def test_the_price_of_a_way_grows_with_its_hops() -> None:
    slice_ = build_tpu((2, 4))
    one, four = price_pair(slice_, 0, 1), price_pair(slice_, 0, 7)
    assert four == pytest.approx(4 * one)
    cores = build_tpu((2, 2), cores=2)
    assert price_pair(cores, 0, 1) < price_pair(cores, 0, 2)


def test_devices_without_a_link_are_farther_than_any_link() -> None:
    assert price_pair(build_mig(2), 0, 1) == UNLINKED_COST > price_link(link("SYS"))


def test_another_numa_node_costs_more_on_a_cpu_host() -> None:
    host = build_cpu(4, numa_nodes=2)
    assert price_pair(host, 0, 1) < price_pair(host, 1, 2)


@pytest.mark.parametrize("topology", [build_cpu(4), build_dgx1(), build_dgx_h100(), build_pcie(), build_tpu((2, 4))])
def test_costs_are_symmetric_positive_and_nothing_to_oneself(topology) -> None:  # type: ignore[no-untyped-def]
    costs = price_pairs(topology, topology.order)
    assert all(costs[a][b] == costs[b][a] > 0 for a, b in combinations(range(len(costs)), 2))
    assert all(costs[a][a] == 0 for a in range(len(costs)))
