"""Rates from what benches timed: by hand for each case, and every reason for which a timing does not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.request import Inventory, answer_request
from meshwright.planning.search.candidates import Hardware
from meshwright.planning.search.measured import Measurement, Measurements, Timed, find_newest, pick_newest
from meshwright.topology.join import join_devices
from meshwright.topology.targets import build_target
from meshwright.wire.devices import Devices, MeasuredNetwork
from meshwright.wire.mesh import PlanRequest, SearchRequest
from meshwright.wire.model import TrainingSpec
from tests.fakes.fleets import AT
from tests.fakes.fleets import build_host as build_reply
from tests.fakes.measured import FACTORS, MIB, build_collective, build_host, build_matmul

HOST = build_target("h100:8")


def choose(rows: Sequence[Measurement], places: Sequence[int] = range(8)) -> Any:
    return Measurements.of(rows, HOST, places)


def test_two_sizes_give_the_rate_without_what_each_call_takes() -> None:
    # 8192³ takes 1.0995e12 FLOP: 2.7488 ms at 400 TFLOP/s, and 0.2 ms more that 4096³ takes as well.
    assert build_matmul(0, 4e14).median_s == pytest.approx(2.9488e-3, rel=1e-4)
    assert choose(build_host(4e14)).find("matmul", "bfloat16").rate == pytest.approx(4e14)


def test_the_slowest_of_the_planned_devices_counts_since_all_wait_for_it() -> None:
    rows = [build_matmul(index, 4e14 if index == 5 else 6e14, n=n) for index in range(8) for n in (4096, 8192)]
    assert choose(rows).find("matmul", "bfloat16").rate == pytest.approx(4e14)
    assert choose(rows, (0, 1, 2, 3)).find("matmul", "bfloat16").rate == pytest.approx(6e14)


def test_an_all_reduce_over_all_planned_devices_gives_its_bus_bandwidth() -> None:
    rows = [build_collective("all_reduce", 3e11, size_bytes=size * MIB) for size in (16, 256)]
    assert choose(rows).find("all_reduce").rate == pytest.approx(3e11)
    assert choose(rows, (2, 3)).find("all_reduce").rate == pytest.approx(3e11)
    assert choose(rows, (2,)).find("all_reduce") is None  # one device has nobody to exchange with


@pytest.mark.parametrize(("target", "part"), [("h100:8", 1.0), ("a100:8", 1.0), ("mi300x:8", 0.51 / 0.8)])
def test_a_gpu_that_is_slow_alone_is_priced_as_much_slower(target: str, part: float) -> None:
    hardware = Hardware.of(build_target(target), 8, range(8))
    assert hardware.build_machine().flops_per_s == pytest.approx(part * hardware.chip.flops_per_s, rel=5e-3)


def test_the_newest_run_counts_and_an_older_one_where_it_is_too_short() -> None:
    older = build_collective("all_reduce", 3e11, run_id="run-0001")
    newer = build_collective("all_reduce", 2e11, run_id="run-0002")
    short = build_collective("all_reduce", 4e11, run_id="run-0003", size_bytes=64 * MIB)
    assert find_newest([older, newer]) == Timed(newer)
    assert find_newest([older, newer, short]) == Timed(newer)
    assert find_newest([short]) is None


rows_of_runs = st.lists(
    st.builds(
        lambda run, size, rate, case: build_collective(case, rate, size_bytes=size * MIB, run_id=f"run-{run}"),
        st.integers(1, 3),
        st.sampled_from([8, 16, 64, 256, 1024]),
        st.floats(1e9, 1e13),
        st.sampled_from(sorted(FACTORS)),
    ),
    max_size=12,
)


@given(rows_of_runs)
def test_what_is_kept_of_many_runs_gives_the_same_rates(rows: list[Measurement]) -> None:
    rows = sorted(rows, key=lambda row: row.run_id)
    whole, kept = choose(rows), choose(pick_newest(rows))
    assert kept.find("all_reduce") == whole.find("all_reduce")
    assert len(kept.rows) <= 2


@pytest.mark.parametrize(("rate", "is_slower"), [(50e9, False), (1.25e9, True)])
def test_what_a_preflight_measured_between_hosts_is_in_plans_and_searches(rate: float, is_slower: bool) -> None:
    network = MeasuredNetwork(bytes_per_s=rate, run_id="run-7", basis="measured", observed_at=AT, age_s=60.0)
    hosts, before = (Inventory(replace(build_target("2*h100:8"), network=each)) for each in (network, None))
    search = SearchRequest(model="llama3-8b", training=TrainingSpec(global_batch_size=64), targets=())
    found, usual = (answer_request(search, each).plans[0] for each in (hosts, before))
    (figure,) = found.measured
    assert (figure.name, figure.value, figure.run_id, figure.age_s) == ("network_bytes_per_s", rate, "run-7", 60.0)
    assert 20e9 < figure.default <= 50e9
    assert usual.measured == ()
    assert "measured: network between hosts" in found.step_time.basis
    assert (found.step_time.total_s > 1.2 * usual.step_time.total_s) is is_slower
    axis = answer_request(PlanRequest(mesh="dp:2,tp:8"), hosts).plans[0].axes[0]
    assert (axis.name, axis.link, axis.bandwidth_bytes_per_s, axis.basis) == ("dp", "dcn", rate, "measured")


def test_of_several_hosts_the_slowest_network_counts_if_all_have_measured_theirs() -> None:
    def build(name: str, rate: float | None) -> Devices:
        told = rate and MeasuredNetwork(bytes_per_s=rate, run_id="r", basis="measured", observed_at=AT, age_s=60.0)
        return build_reply(name, "h100:8").model_copy(update={"network": told})

    def join(*rates: float | None) -> Any:
        return join_devices([build(f"n{place}", rate) for place, rate in enumerate(rates)]).topology.network

    assert join(4e9, None, None) is None
    assert join(4e9, 3e9, 3e9).bytes_per_s == 3e9
