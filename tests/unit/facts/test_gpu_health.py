"""The health of cards as NVML tells it: all of it, none of it, and the card that is lost."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright_agent.facts.model import GpuHealth
from meshwright_agent.facts.nvidia import parse_slowdowns, read_nvidia
from meshwright_agent.facts.nvml import QUESTIONS, name_error
from meshwright_agent.facts.sysfs import Roots
from tests.fakes.nvml import NO_TABLE, FakeNvml
from tests.fakes.tree import RECORDED
from tests.fakes.well import WELL

NOWHERE = Roots(Path("/nowhere"))


def read(fail: dict[str, int] | None = None, **fields: Any) -> GpuHealth:
    document = json.loads((RECORDED / "dgx-h100" / "nvml.json").read_text())
    nvml = FakeNvml(copy.deepcopy(document), fail)
    nvml.change_gpu(0, **WELL)
    nvml.change_gpu(0, **fields)
    facts = read_nvidia(nvml, NOWHERE, NO_TABLE)
    assert not nvml.is_open
    health = facts.gpus[0].health
    assert health is not None
    return health


def read_fields(**fields: Any) -> GpuHealth:
    """All but what became of each question."""
    return replace(read(**fields), answers={})


def test_a_card_that_is_well_tells_all_of_it() -> None:
    assert read_fields() == GpuHealth(
        recovery="", temperature_celsius=41, slowdown_celsius=87, shutdown_celsius=92, slowdowns=(),
        power_limit_watts=700.0, power_default_watts=700.0, uncorrectable_count=0, uncorrectable_lifetime_count=0,
        remap_pending=False, remap_failed=False, pcie_width=16, pcie_most_width=16, pcie_generation=5,
        pcie_most_generation=5, performance_state=0, nvlinks_active=18,
        nvlink_errors={f"{name} {link}": 0 for name in ("replay", "recovery", "crc") for link in range(18)},
    )  # fmt: skip


def test_margins_have_their_sign() -> None:
    health = read(margin=-3, slowdown_margin=-2, shutdown_margin=-8, thresholds=None)
    told = (health.margin_celsius, health.slowdown_margin_celsius, health.shutdown_margin_celsius)
    assert (told, health.slowdown_celsius) == ((-3, -2, -8), None)


def test_what_a_card_does_not_tell_is_null_and_never_well() -> None:
    nothing = dict.fromkeys([*WELL, "nvlinks"])
    assert read_fields(**nothing) == GpuHealth()


def test_pages_are_asked_for_only_where_rows_are_not_remapped() -> None:
    assert read(remapped=None, retirement_pending=1).retirement_pending is True
    assert read(retirement_pending=1).retirement_pending is None


def test_errors_are_those_of_each_link_that_is_up() -> None:
    health = read(nvlinks=["switch", "switch", None], link_errors={"replay": 2, "recovery": 1, "crc": 0})
    errors = {"replay 0": 2, "recovery 0": 1, "crc 0": 0, "replay 1": 2, "recovery 1": 1, "crc 1": 0}
    assert (health.nvlinks_active, health.nvlink_errors) == (2, errors)


@pytest.mark.parametrize(
    ("code", "words"), [(pynvml.NVML_ERROR_GPU_IS_LOST, "lost"), (pynvml.NVML_ERROR_RESET_REQUIRED, "must be reset")]
)
def test_a_card_that_is_lost_says_so_and_is_not_asked_again(code: int, words: str) -> None:
    health = read(fail={"nvmlDeviceGetRemappedRows": code})
    assert words in (health.error or "")
    assert health.temperature_celsius is None


@pytest.mark.parametrize(("code", "came"), [
    (pynvml.NVML_ERROR_NOT_SUPPORTED, "absent"), (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "absent"),
    (pynvml.NVML_ERROR_TIMEOUT, "NVML_ERROR_TIMEOUT"), (12345, "NVML error 12345"),
])  # fmt: skip
def test_a_question_that_fails_costs_one_field_and_what_became_of_it_is_kept(code: int, came: str) -> None:
    health = read(fail={"nvmlDeviceGetTemperature": code})
    answers = health.answers
    assert (health.temperature_celsius, health.slowdown_celsius, health.error) == (None, 87, None)
    assert (answers["temperature_celsius"], answers["slowdown_celsius"]) == (came, "answered")
    assert "architecture" not in answers  # it is not required


def test_a_field_that_fails_in_its_reply_is_not_answered_and_one_that_the_driver_does_not_know_is_absent() -> None:
    timeout, unknown_number = pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_INVALID_ARGUMENT
    answers = read(fail={"field:230": timeout, "field:193": unknown_number}).answers
    assert (answers["recovery"], answers["shutdown_margin_celsius"]) == ("NVML_ERROR_TIMEOUT", "absent")


@pytest.mark.parametrize("link", [0, 7, 17])
def test_nvlinks_one_of_which_cannot_be_read_are_not_counted(link: int) -> None:
    health = read(fail={f"nvmlDeviceGetNvLinkState/{link}": pynvml.NVML_ERROR_UNKNOWN})
    assert (health.nvlinks_active, health.answers["nvlink_state"]) == (None, "NVML_ERROR_UNKNOWN")
    assert "nvlink_errors" not in health.answers


def test_the_row_of_nvlinks_ends_with_an_invalid_argument_but_does_not_begin_with_one() -> None:
    assert read().answers["nvlink_state"] == "answered"
    invalid = pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert read(fail={"nvmlDeviceGetNvLinkState": invalid}).answers["nvlink_state"] == "NVML_ERROR_INVALID_ARGUMENT"


def test_a_release_of_the_module_without_a_function_has_no_such_question() -> None:
    class Older(FakeNvml):
        nvmlDeviceGetMarginTemperature = None  # type: ignore[assignment] # noqa: N815

    document = json.loads((RECORDED / "dgx-h100" / "nvml.json").read_text())
    found = read_nvidia(Older(document), NOWHERE, NO_TABLE)
    health = found.gpus[0].health
    assert health is not None
    assert (health.answers["margin_celsius"], found.problems) == ("absent", ())


@pytest.mark.parametrize("action", range(8))
def test_each_recovery_that_the_driver_asks_for_has_words(action: int) -> None:
    recovery = read(recovery=action).recovery
    assert (recovery == "") == (action == 0)


@pytest.mark.parametrize(("mask", "causes"), [
    (0x0, ()),
    (0x1 | 0x2 | 0x4 | 0x10, ()),  # idle, set clocks, power cap, sync boost: ways to work
    (0x8, ("hardware slowdown",)),
    (0x8 | 0x40, ("hardware thermal slowdown",)),
    (0x80, ("hardware power brake",)),
    (0x20, ("software thermal slowdown",)),
    (0x8 | 0x40 | 0x80, ("hardware thermal slowdown", "hardware power brake")),
])  # fmt: skip
def test_clocks_are_held_down_for_the_causes_that_are_faults(mask: int, causes: tuple[str, ...]) -> None:
    assert parse_slowdowns(mask) == causes


def test_the_numbers_are_those_of_nvml() -> None:
    assert pynvml.nvmlClocksEventReasonHwSlowdown == 0x08
    assert pynvml.nvmlClocksEventReasonHwThermalSlowdown == 0x40
    assert pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown == 0x80
    assert pynvml.nvmlClocksEventReasonSwThermalSlowdown == 0x20
    assert pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT == 7
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    assert QUESTIONS["uncorrectable_count"].arguments == (uncorrected, pynvml.NVML_VOLATILE_ECC)
    assert QUESTIONS["uncorrectable_lifetime_count"].arguments == (uncorrected, pynvml.NVML_AGGREGATE_ECC)
    names = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert {code: name_error(pynvml, code) for code in names} == names
