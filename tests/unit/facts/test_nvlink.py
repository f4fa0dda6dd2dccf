from __future__ import annotations

from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.facts.model import FabricFacts
from meshwright_agent.facts.nvlink import (
    NvLinks,
    are_joined,
    count_nvlinks,
    describe_fault,
    leads_to_switch,
    parse_fabric,
    parse_link_rate,
)

CLUSTER = "9c6f5af3-53bf-49b5-a436-b66766c413c3"
UP = FabricFacts("completed", cluster_uuid=CLUSTER, clique_id=1)
OTHER = FabricFacts("completed", cluster_uuid=CLUSTER, clique_id=2)
BOX = FabricFacts("completed", clique_id=0)
ABSENT = FabricFacts("not_supported")
FAILED = FabricFacts("completed", error="Unknown Error", cluster_uuid=CLUSTER, clique_id=1)
DOWN = (FabricFacts("not_started"), FabricFacts("in_progress"), FAILED)


def fabric(**fields: Any) -> FabricFacts | None:
    given: dict[str, Any] = {"clusterUuid": bytes(16), "cliqueId": 0, "state": 3, "status": 0, "healthMask": 0}
    return parse_fabric(SimpleNamespace(**(given | fields)), "Unknown Error")


@given(st.integers(0, 36), st.integers(0, 36), st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_links_between_two_cards_count_the_same_from_both_ends(s1: int, s2: int, d1: int, d2: int, on: bool) -> None:
    a, b = NvLinks({"b": d1} if d1 else {}, s1), NvLinks({"a": d2} if d2 else {}, s2)
    count = count_nvlinks("a", a, "b", b, switched=on)
    assert count == count_nvlinks("b", b, "a", a, switched=on) <= max(s1, d1)


def test_cards_whose_addresses_are_unknown_are_not_taken_for_neighbors() -> None:
    assert count_nvlinks(None, NvLinks({"b": 2}), None, NvLinks({"a": 2})) == 0


@pytest.mark.parametrize(("speed", "rate"), [
    (20625, 20e9), (25781, 25e9), (25000, 25e9), (26562, 25e9), (53125, 50e9), (100000, 100e9), (0, None),
])  # fmt: skip
def test_a_links_rate_is_the_data_that_it_carries(speed: int, rate: float | None) -> None:
    assert parse_link_rate(speed) == rate


@pytest.mark.parametrize(("remote", "kind", "switch"), [
    (pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, None, True), (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, "0x030200", False),
    (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, None, False), (pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU, None, False),
    (pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN, None, True), (pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN, "0x068000", True),
    (pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN, "0x030200", False), (None, "0x030200", False), (None, "0x068000", True),
])  # fmt: skip
def test_the_other_end_of_a_link_is_told_by_nvml_else_by_the_bus(
    remote: int | None, kind: str | None, switch: bool
) -> None:
    assert leads_to_switch(remote, kind) == switch


@pytest.mark.parametrize(("state", "name"), [
    (pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, "not_supported"),
    (pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, "not_started"),
    (pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, "in_progress"), (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, "completed"),
    (0xABCDEF03, "completed"),
])  # fmt: skip
def test_the_state_is_the_lowest_byte_of_what_the_module_shows(state: int, name: str) -> None:
    found = fabric(state=state)
    assert found is not None
    assert found.state == name


def test_a_state_that_nobody_knows_is_no_fabric() -> None:
    assert fabric(state=9) is None


def test_a_domain_is_cluster_and_clique_of_a_registration_that_succeeded() -> None:
    cluster = UUID(CLUSTER).bytes
    for found, domain in (
        (fabric(clusterUuid=cluster, cliqueId=4026), f"{CLUSTER}.4026"),
        (fabric(clusterUuid=cluster, cliqueId=0), f"{CLUSTER}.0"),
        (fabric(clusterUuid=cluster, status=999), None),
        (fabric(clusterUuid=cluster, state=2), None),
        (fabric(clusterUuid=bytes(16), clique=3), None),
    ):
        assert found is not None
        assert found.domain == domain


HEALTH = {
    "DEGRADED_BW_TRUE": "bandwidth is degraded", "ROUTE_RECOVERY_TRUE": "routes are being recovered",
    "ROUTE_UNHEALTHY_TRUE": "route is unhealthy", "ACCESS_TIMEOUT_RECOVERY_TRUE": "access timeout",
    "INCORRECT_CONFIGURATION_INCORRECT_SYSGUID": "system GUID",
    "INCORRECT_CONFIGURATION_INCORRECT_CHASSIS_SN": "chassis serial number",
    "INCORRECT_CONFIGURATION_NO_PARTITION": "no partition",
    "INCORRECT_CONFIGURATION_INSUFFICIENT_NVLINKS": "too few NVLinks",
    "INCORRECT_CONFIGURATION_INCOMPATIBLE_GPU_FW": "firmware",
    "INCORRECT_CONFIGURATION_INVALID_LOCATION": "invalid location",
    "INCORRECT_CONFIGURATION_GPU_STATE_INVALID": "GPU state", "INCORRECT_CONFIGURATION_NONE": "",
    "DEGRADED_BW_FALSE": "", "ROUTE_UNHEALTHY_NOT_SUPPORTED": "",
}  # fmt: skip
GROUPS = ("DEGRADED_BW", "ROUTE_RECOVERY", "ROUTE_UNHEALTHY", "ACCESS_TIMEOUT_RECOVERY", "INCORRECT_CONFIGURATION")


@pytest.mark.parametrize(("name", "told"), HEALTH.items())
def test_each_value_of_the_health_mask_is_told_in_words(name: str, told: str) -> None:
    group = next(group for group in GROUPS if name.startswith(group))
    prefix = "NVML_GPU_FABRIC_HEALTH_MASK_"
    value, shift = getattr(pynvml, f"{prefix}{name}"), getattr(pynvml, f"{prefix}SHIFT_{group}")
    fault = describe_fault(fabric(healthMask=value << shift))
    assert (fault is None) == (told == "")
    assert told in (fault or "")


def test_several_faults_are_all_told_and_none_before_the_registration_is_complete() -> None:
    both = fabric(healthMask=0b0101)
    assert both is not None
    assert len(both.faults) == 2
    assert fabric(state=2, healthMask=0b0101) == FabricFacts("in_progress", clique_id=0)


@pytest.mark.parametrize("pair", list(combinations_with_replacement([None, ABSENT, BOX, UP, OTHER, *DOWN], 2)))
def test_switches_join_cards_unless_one_is_out_or_they_are_in_two_fabrics(
    pair: tuple[FabricFacts | None, FabricFacts | None],
) -> None:
    apart = any(one in DOWN for one in pair) or set(pair) == {UP, OTHER}
    assert are_joined(*pair) == are_joined(*pair[::-1]) == (not apart)
