"""Labels of a node; the file is read back by a parser that holds node-feature-discovery's own rules."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.devices import Devices
from meshwright.wire.health import Component, Health, State
from meshwright_agent.labels import NAMESPACE, build_labels, fit_value, format_labels, write_labels
from tests.fakes.machines import NAMES, NOW, plant_machine
from tests.fakes.node_labels import read_feature_file
from tests.fakes.stored import build_record

LATER = NOW + timedelta(seconds=60)


def look(folder: Path, name: str, state: State = "healthy") -> tuple[Devices, Health]:
    health = Health(state=state, components=(Component(name="driver", state=state, reason=""),))
    return plant_machine(name, folder).view(), health


# ---- what is said -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_has_labels_that_kubernetes_takes(tmp_path: Path, name: str) -> None:
    devices, health = look(tmp_path, name)
    labels = read_feature_file(format_labels(build_labels(devices, health), LATER), now=NOW)
    assert labels[f"{NAMESPACE}/platform"] == devices.platform
    assert labels[f"{NAMESPACE}/device-count"] == str(len(devices.devices))
    assert all(key.startswith(f"{NAMESPACE}/") for key in labels)


def test_a_host_of_gpus_is_described(tmp_path: Path) -> None:
    labels = build_labels(*look(tmp_path, "dgx-h100", "unhealthy"))
    assert labels["device-product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["device-count"] == "8"
    assert labels["device-memory-bytes"] == str(81559 * 2**20)
    assert labels["driver-version"] == "535.129.03"
    assert labels["health"] == "unhealthy"
    assert "nvlink-domain" not in labels
    assert "slice-shape" not in labels


def test_the_label_of_health_is_that_of_devices_and_driver(tmp_path: Path) -> None:
    devices, health = look(tmp_path, "cpu-vm")
    device = Component(name="device:cpu:0", state="healthy")
    parts = (*health.components, device, Component(name="disk", state="unhealthy"))
    labels = build_labels(devices, Health(state="unhealthy", components=parts))
    assert labels["health"] == "healthy"


def test_what_hosts_share_is_a_label(tmp_path: Path) -> None:
    assert build_labels(*look(tmp_path / "a", "gb200-nvl72"))["nvlink-domain"]
    assert re.fullmatch(r"\d+x\d+(x\d+)?", build_labels(*look(tmp_path / "b", "tpu-v5p-4"))["slice-shape"])


def test_what_is_not_known_has_no_label(tmp_path: Path) -> None:
    devices, health = look(tmp_path, "dgx-h100")
    first, *others = devices.devices
    mixed = devices.model_copy(update={"devices": (first.model_copy(update={"kind": "other"}), *others)})
    labels = build_labels(mixed, health)
    assert "device-product" not in labels
    assert labels["device-count"] == "8"
    assert "all-reduce-busbw-bytes-per-s" not in labels


@pytest.mark.parametrize(("rate", "axis_size", "correct", "expected"), [
    (478.9e9, 8, True, "470000000000"), (478.9e9, 4, True, None), (7.9, 8, True, "7"), (None, 8, True, None),
    (4e11, 8, False, None),
])  # fmt: skip
def test_a_right_and_measured_all_reduce_over_all_devices_is_a_class(
    tmp_path: Path, rate: float | None, axis_size: int, correct: bool, expected: str | None
) -> None:
    devices, health = look(tmp_path, "dgx-h100")
    record = build_record(axis_size=axis_size, busbw_bytes_per_s=rate, correct=correct)
    labels = build_labels(devices, health, (record,))
    assert labels.get("all-reduce-busbw-bytes-per-s") == expected


# ---- values -----------------------------------------------------------------------------------------------------


@given(st.text(max_size=200))
def test_every_value_is_made_legal(text: str) -> None:
    value = fit_value(text)
    if value:
        labels = read_feature_file(format_labels({"name": value}, LATER), now=NOW)
        assert labels == {f"{NAMESPACE}/name": value}


@pytest.mark.parametrize("value", ["H100", "a_b.c-d", "535.129.03", "x" * 63])
def test_a_legal_value_stays_as_it_is(value: str) -> None:
    assert fit_value(value) == value


# ---- the file ---------------------------------------------------------------------------------------------------


def test_labels_vanish_when_nobody_writes_them_any_more() -> None:
    text = format_labels({"health": "healthy"}, LATER)
    assert read_feature_file(text, now=LATER - timedelta(seconds=1))
    assert read_feature_file(text, now=LATER + timedelta(seconds=1)) == {}


def test_the_file_is_put_there_as_a_whole_and_readable_to_all(tmp_path: Path) -> None:
    path = tmp_path / "meshwright"
    write_labels(path, "one\n")
    with path.open() as reader:
        write_labels(path, "two\n")
        assert reader.read() == "one\n"
    assert path.read_text() == "two\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["meshwright"]
