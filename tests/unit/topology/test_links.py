from __future__ import annotations

from itertools import combinations

import pytest

from meshwright.topology.links import (
    classify_link,
    price_pairs,
)
from tests.fakes.topologies import (
    build_cpu,
    build_dgx1,
    build_dgx_h100,
    build_pcie,
    build_tpu,
)


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


@pytest.mark.parametrize("topology", [build_cpu(4), build_dgx1(), build_dgx_h100(), build_pcie(), build_tpu((2, 4))])
def test_costs_are_symmetric_positive_and_nothing_to_oneself(topology) -> None:  # type: ignore[no-untyped-def]
    costs = price_pairs(topology, topology.order)
    assert all(costs[a][b] == costs[b][a] > 0 for a, b in combinations(range(len(costs)), 2))
    assert all(costs[a][a] == 0 for a in range(len(costs)))
