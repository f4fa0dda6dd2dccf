"""The health of cards as NVML tells it: all of it, none of it, and the card that is lost."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright_agent.facts.bus import BusRoots
from meshwright_agent.facts.gpu_health import (
    _RECOVERY_FIELD,
    _SHUTDOWN_MARGIN_FIELD,
    _SLOWDOWN_MARGIN_FIELD,
    parse_slowdowns,
)
from meshwright_agent.facts.health import GpuHealth
from meshwright_agent.facts.nvidia import read_nvidia
from tests.fakes.machines import RECORDED
from tests.fakes.nvml import FakeNvml
from tests.fakes.well import WELL

NOWHERE = BusRoots(*[Path("/nowhere")] * 3)


def read(fail: dict[str, int] | None = None, **fields: Any) -> GpuHealth:
    document = json.loads((RECORDED / "dgx-h100" / "nvml.json").read_text())
    nvml = FakeNvml(copy.deepcopy(document), fail)
    nvml.change_gpu(0, **WELL)
    nvml.change_gpu(0, **fields)
    facts = read_nvidia(nvml, here=NOWHERE, describe=lambda pid, used: None)  # type: ignore[arg-type, return-value]
    assert not nvml.is_open
    health = facts.gpus[0].health
    assert health is not None
    return health


def test_a_card_that_is_well_tells_all_of_it() -> None:
    health = read()
    assert health == GpuHealth(
        recovery="",
        temperature_celsius=41,
        slowdown_celsius=87,
        shutdown_celsius=92,
        slowdowns=(),
        power_limit_watts=700.0,
        power_default_watts=700.0,
        uncorrectable_count=0,
        uncorrectable_lifetime_count=0,
        remap_pending=False,
        remap_failed=False,
        pcie_width=16,
        pcie_most_width=16,
        pcie_generation=5,
        pcie_most_generation=5,
        performance_state=0,
        nvlinks_active=18,
        nvlink_errors={"replay": 0, "recovery": 0, "crc": 0},
    )


def test_margins_have_their_sign() -> None:
    health = read(margin=-3, slowdown_margin=-2, shutdown_margin=-8, thresholds=None)
    told = (health.margin_celsius, health.slowdown_margin_celsius, health.shutdown_margin_celsius)
    assert (told, health.slowdown_celsius) == ((-3, -2, -8), None)


def test_what_a_card_does_not_tell_is_null_and_never_well() -> None:
    nothing = dict.fromkeys([*WELL, "nvlinks"])
    assert read(**nothing) == GpuHealth()


def test_pages_are_asked_for_only_where_rows_are_not_remapped() -> None:
    assert read(remapped=None, retirement_pending=1).retirement_pending is True
    assert read(retirement_pending=1).retirement_pending is None


def test_errors_of_links_are_summed_over_those_that_are_up() -> None:
    links = ["switch"] * 16 + [None, None]
    health = read(nvlinks=links, link_errors={"replay": 2, "recovery": 1, "crc": 0})
    assert health.nvlinks_active == 16
    assert health.nvlink_errors == {"replay": 32, "recovery": 16, "crc": 0}


@pytest.mark.parametrize(
    ("code", "words"), [(pynvml.NVML_ERROR_GPU_IS_LOST, "lost"), (pynvml.NVML_ERROR_RESET_REQUIRED, "must be reset")]
)
def test_a_card_that_is_lost_says_so_and_is_not_asked_again(code: int, words: str) -> None:
    health = read(fail={"nvmlDeviceGetRemappedRows": code})
    assert words in (health.error or "")
    assert health.temperature_celsius is None


def test_a_driver_that_lacks_one_function_costs_one_field() -> None:
    health = read(fail={"nvmlDeviceGetTemperature": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    assert (health.temperature_celsius, health.slowdown_celsius, health.error) == (None, 87, None)


@pytest.mark.parametrize("action", range(8))
def test_each_recovery_that_the_driver_asks_for_has_words(action: int) -> None:
    recovery = read(recovery=action).recovery
    assert (recovery == "") == (action == 0)


@pytest.mark.parametrize(
    ("mask", "causes"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x4 | 0x10, ()),  # idle, set clocks, power cap, sync boost: ways to work
        (0x8, ("hardware slowdown",)),
        (0x8 | 0x40, ("hardware thermal slowdown",)),
        (0x80, ("hardware power brake",)),
        (0x20, ("software thermal slowdown",)),
        (0x8 | 0x40 | 0x80, ("hardware thermal slowdown", "hardware power brake")),
    ],
)
def test_clocks_are_held_down_for_the_causes_that_are_faults(mask: int, causes: tuple[str, ...]) -> None:
    assert parse_slowdowns(mask) == causes


def test_the_numbers_are_those_of_nvml() -> None:
    assert pynvml.nvmlClocksEventReasonHwSlowdown == 0x08
    assert pynvml.nvmlClocksEventReasonHwThermalSlowdown == 0x40
    assert pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown == 0x80
    assert pynvml.nvmlClocksEventReasonSwThermalSlowdown == 0x20
    assert pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT == 7
    assert (_SHUTDOWN_MARGIN_FIELD, _SLOWDOWN_MARGIN_FIELD, _RECOVERY_FIELD) == (
        pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT,
        pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    )
