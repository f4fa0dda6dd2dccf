"""Measured rates in the place of the tables': what grows by how much, and what plans say of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.planning.cost.collectives import AxisLinks
from meshwright.planning.cost.spans import Layout
from meshwright.planning.cost.step_time import LAW
from meshwright.planning.request import Inventory, answer_request
from meshwright.planning.search.candidates import Hardware
from meshwright.planning.search.measured import Measurement, Measurements
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import PlanRequest
from tests.fakes.asking import ask_planner
from tests.fakes.hosts import build_devices
from tests.fakes.machines import plant_machine
from tests.fakes.measured import FACTORS, MIB, build_collective, build_host, build_memory

HOST = build_target("h100:8")
TRAINING = {"seq_len": 4096, "global_batch_size": 32, "remat": "full", "gradient_accumulation_steps": 1}


def build(rows: Sequence[Measurement], topology: Topology = HOST) -> Hardware:
    places = range(len(topology.devices))
    return Hardware.of(topology, len(places), places, Measurements.of(rows, topology, places))


def ask(rows: Sequence[Measurement] = (), **fields: Any) -> Any:
    asked = {"mesh": "fsdp:8", "model": "llama3-8b", "training": TRAINING, "include_devices": False, **fields}
    return ask_planner(Inventory(HOST, measured=tuple(rows)), **asked)


def plan(rows: Sequence[Measurement] = (), **fields: Any) -> Any:
    return ask(rows, **fields).plans[0]


def build_pair(case: str, busbw: float, **fields: Any) -> list[Measurement]:
    return [build_collective(case, busbw, size_bytes=size * MIB, **fields) for size in (16, 256)]


# ---- what the cost model takes -------------------------------------------------------------------------


def test_a_matmul_at_half_the_rate_makes_compute_twice_as_long() -> None:
    fast, slow = (plan(build_host(rate)).step_time.compute_s for rate in (6e14, 3e14))
    lost = 1 / LAW.efficiency, 989e12 / 3.35e12 / LAW.intensity
    # At half the peak a matmul waits half as much for the memory; the optimizer, 0.2 % of the step, takes as long.
    half, whole = (lost[0] + lost[1] * rate / 794.5e12 for rate in (3e14, 6e14))
    assert slow / fast == pytest.approx(2 * half / whole, rel=3e-3)


def test_memory_goes_at_the_rate_of_the_bench_and_mfu_stays_of_the_peak() -> None:
    rows = [build_memory(index, 2e12, size_bytes=size * MIB) for index in range(8) for size in (256, 1024)]
    machine = build(rows).build_machine()
    assert machine.memory_bytes_per_s == pytest.approx(2e12 / 0.8)
    assert machine.flops_per_s == 989e12
    slow, fast = plan(rows), plan()
    assert slow.mfu / fast.mfu == pytest.approx(fast.step_time.total_s / slow.step_time.total_s)


def test_an_all_reduce_is_estimated_to_take_what_it_took_and_other_collectives_go_as_it_does() -> None:
    published, measured = build([]).lay(Layout(tp=8)), build(build_pair("all_reduce", 2e11)).lay(Layout(tp=8))
    taken = [float(measured["tp"].time("all_reduce", size * MIB)) for size in (16, 256)]
    assert taken[1] - taken[0] == pytest.approx(240 * MIB * FACTORS["all_reduce"] / 2e11, rel=0.05)
    ratios = {axis: read_rate(measured[axis].inner) / read_rate(published[axis].inner) for axis in measured}
    assert len({round(ratio, 9) for ratio in ratios.values()}) == 1


def read_rate(wire: AxisLinks) -> float:
    return float(np.asarray(wire.bytes_per_s))


def test_a_torus_is_estimated_to_take_what_it_took(tmp_path: Path) -> None:
    slice_ = Topology.of(plant_machine("tpu-v5e-8", tmp_path).view())
    rows = build_pair("all_reduce", 5e10, device_kind="TPU v5 lite")
    hardware = build(rows, slice_)
    span = hardware.lay(Layout(tp=8))["tp"]
    taken = [float(span.time("all_reduce", size * MIB)) for size in (16, 256)]
    assert taken[1] - taken[0] == pytest.approx(240 * MIB * 1.75 / 5e10, rel=0.05)
    published, half = build([], slice_).lay(Layout(tp=2))["tp"].inner, hardware.lay(Layout(tp=2))["tp"].inner
    ratio = float(np.asarray(half.bytes_per_s) / np.asarray(published.bytes_per_s))
    assert float(np.asarray(half.neighbor_bytes_per_s) / np.asarray(published.neighbor_bytes_per_s)) == ratio != 1


def test_a_plan_whose_axis_has_a_slower_link_is_priced_at_what_was_measured_over_all(tmp_path: Path) -> None:
    host = Topology.of(plant_machine("pcie-l40s", tmp_path).view())
    count = len(host.devices)
    fields = {"device_kind": host.devices[0].kind, "devices": range(count)}
    rows = build_pair("all_reduce", 1.2e10, **fields)
    asked = PlanRequest.model_validate({"mesh": f"tp:{count}", "include_devices": False})
    made = answer_request(asked, Inventory(host)).plans[0]
    hardware = build(rows, host)
    axes = tuple(axis.model_copy(update={"link": "pcie", "bandwidth_bytes_per_s": 5e9}) for axis in made.axes)
    slower = made.model_copy(update={"axes": axes})
    assert float(np.asarray(build([], host).read(slower)["tp"].inner.bytes_per_s)) == 5e9
    span = hardware.read(slower)["tp"]
    laid = hardware.lay(Layout(tp=count))["tp"]
    assert float(np.asarray(span.inner.bytes_per_s)) == pytest.approx(float(np.asarray(laid.inner.bytes_per_s)))
    # The fakes' factor is that of 8 ranks, whatever the size of the group.
    taken = [float(span.time("all_reduce", size * MIB)) for size in (16, 256)]
    assert taken[1] - taken[0] == pytest.approx(240 * MIB * 1.75 / 1.2e10, rel=0.05)


# ---- what plans say ------------------------------------------------------------------------------------


def test_a_plan_tells_each_figure_beside_the_tables_own_with_run_and_age() -> None:
    (figure,) = plan(build_host(4e14, run_id="run-0042", age_s=3600.0)).measured
    assert figure.value == pytest.approx(4e14)
    assert figure.default == pytest.approx(794.5e12, rel=1e-3)  # 80.3 % of 989 TFLOP/s
    assert (figure.name, figure.run_id, figure.age_s) == ("flops_per_s", "run-0042", 3600.0)
    memory = [build_memory(index, 1e12, size_bytes=2048 * MIB) for index in range(8)]
    assert [each.default for each in plan(memory).measured] == [pytest.approx(0.8 * 3.35e12)]
    (wire,) = plan(build_pair("all_reduce", 2e11)).measured
    # 82.2 % of 450 GB/s, and 16 to 256 MiB come up to speed by 7.26 ns for each √byte.
    moved = [size * MIB * 1.75 for size in (16, 256)]
    taken = [part / (0.822 * 450e9) + 7.26e-9 * part**0.5 for part in moved]
    assert wire.default == pytest.approx((moved[1] - moved[0]) / (taken[1] - taken[0]))


@pytest.mark.parametrize("hardware", [{"target": "h100:8"}, {"topology": build_devices("h100:8")}])
def test_a_plan_on_a_target_or_on_other_hosts_is_not_touched(hardware: dict[str, Any]) -> None:
    rows = [*build_host(3e14), *build_pair("all_reduce", 1e11)]
    assert ask(rows, **hardware) == ask(**hardware)
    assert plan(rows) != plan()


@pytest.mark.parametrize(("rate", "said"), [(1.3e15, "more than 1.2 times"), (4e13, "less than 5%")])
@pytest.mark.parametrize("mesh", ["fsdp:8", None])
def test_what_no_such_chip_can_have_is_left_out_with_a_warning(rate: float, said: str, mesh: str | None) -> None:
    told, published = plan(build_host(rate), mesh=mesh), plan(mesh=mesh)
    assert told.measured == ()
    assert told.step_time == published.step_time
    (notice,) = (each for each in told.warnings if each.code == "measurement_left_out")
    assert said in notice.message
    assert f"{rate:.3g} FLOP/s" in notice.message
    assert "9.89e+14" in notice.message
    assert "/placement/bench" in notice.hint
