from __future__ import annotations

import pytest

from meshwright.topology.model import Topology
from meshwright.wire.devices import Link
from tests.fakes.topologies import EVIDENCE, build_cpu, build_dgx1, build_dgx_h100, build_mig, build_tpu


@pytest.mark.parametrize(("a", "b"), [(0, 4), (-1, 0), (2, 2)])
def test_a_link_must_join_two_devices_that_are_there(a: int, b: int) -> None:
    cpu = build_cpu(4)
    with pytest.raises(ValueError, match="must join two of the 4 devices"):
        Topology(cpu.devices, (Link(a=a, b=b, kind="HOST", **EVIDENCE),), cpu.granules)


def test_a_machine_is_uniform_when_every_pair_is_joined_alike() -> None:
    assert build_dgx_h100().is_uniform
    assert build_cpu(8).is_uniform
    assert build_cpu(8, with_links=False).is_uniform
    assert not build_cpu(8, numa_nodes=2).is_uniform
    assert not build_dgx1().is_uniform
    assert not build_tpu((2, 2)).is_uniform
    assert not build_mig(3).is_uniform
