"""Rates from what benches timed: by hand for each case, and every reason for which a timing does not count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.search.measured import Measurement, Measurements, Rate, Timed, find_newest, pick_newest
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from tests.fakes.machines import plant_machine
from tests.fakes.measured import (
    FACTORS,
    H100,
    MIB,
    START_S,
    build_collective,
    build_host,
    build_matmul,
    build_measurement,
    build_memory,
)

HOST = build_target("h100:8")


def choose(rows: Sequence[Measurement], places: Sequence[int] = range(8), topology: Topology = HOST) -> Measurements:
    return Measurements.of(rows, topology, places)


def read_rate(rate: Rate | None) -> float:
    assert rate is not None
    return rate.value


def test_two_sizes_give_the_rate_without_what_each_call_takes() -> None:
    # 8192³ takes 1.0995e12 FLOP: 2.7488 ms at 400 TFLOP/s, and 0.2 ms more that 4096³ takes as well.
    assert build_matmul(0, 4e14).median_s == pytest.approx(2.9488e-3, rel=1e-4)
    assert read_rate(choose(build_host(4e14)).find_matmul("bfloat16")) == pytest.approx(4e14)


def test_one_size_alone_counts_with_its_start_where_that_is_a_small_part() -> None:
    rows = [build_matmul(index, 4e14) for index in range(8)]
    assert read_rate(choose(rows).find_matmul("bfloat16")) == pytest.approx(2 * 8192**3 / 2.9488e-3, rel=1e-4)
    # At 1,500 TFLOP/s it takes 0.73 ms and 0.2 of start: too short to be told apart from it.
    assert choose([build_matmul(index, 1.5e15) for index in range(8)]).find_matmul("bfloat16") is None


def test_the_slowest_of_the_planned_devices_counts_since_all_wait_for_it() -> None:
    rows = [build_matmul(index, 4e14 if index == 5 else 6e14, n=n) for index in range(8) for n in (4096, 8192)]
    assert read_rate(choose(rows).find_matmul("bfloat16")) == pytest.approx(4e14)
    assert read_rate(choose(rows, (0, 1, 2, 3)).find_matmul("bfloat16")) == pytest.approx(6e14)


def test_nothing_is_said_where_a_planned_device_was_not_measured() -> None:
    rows = [row for row in build_host(4e14) if row.device_indices != (7,)]
    assert choose(rows).find_matmul("bfloat16") is None
    assert read_rate(choose(rows, range(7)).find_matmul("bfloat16")) == pytest.approx(4e14)


def test_another_dtype_and_small_matmuls_say_nothing() -> None:
    assert choose(build_host(4e14, dtype="float16")).find_matmul("bfloat16") is None
    assert choose(build_host(4e14, dtype="float16")).find_matmul("float16") is not None
    assert choose([build_matmul(index, 1e13, n=4095) for index in range(8)]).find_matmul("bfloat16") is None


def test_memory_is_what_is_read_and_written_together() -> None:
    # 768 MiB more take 0.40265 ms more: 805.3e6 bytes at 2 TB/s.
    rows = [build_memory(index, 2e12, size_bytes=size * MIB) for index in range(8) for size in (256, 1024)]
    assert rows[1].median_s - rows[0].median_s == pytest.approx(0.40265e-3, rel=1e-4)
    rate = choose(rows).find_memory()
    assert read_rate(rate) == pytest.approx(2e12)
    assert rate is not None
    assert rate.name == "memory_bytes_per_s"


def test_memory_of_one_size_is_mostly_start_on_fast_chips_and_does_not_count() -> None:
    assert choose([build_memory(index, 2e12, size_bytes=256 * MIB) for index in range(8)]).find_memory() is None
    small = [build_memory(index, 1e10, size_bytes=255 * MIB) for index in range(8)]  # may lie in a cache
    assert choose(small).find_memory() is None
    slow = [build_memory(index, 1e11, size_bytes=256 * MIB) for index in range(8)]  # 2.7 ms beside 0.2
    assert read_rate(choose(slow).find_memory()) == pytest.approx(256 * MIB / (START_S + 256 * MIB / 1e11))


@pytest.mark.parametrize("case", FACTORS)
def test_a_collective_over_all_planned_devices_gives_its_bus_bandwidth(case: Any) -> None:
    rows = [build_collective(case, 3e11, size_bytes=size * MIB) for size in (16, 256)]
    assert read_rate(choose(rows).find_collective(case)) == pytest.approx(3e11)
    assert read_rate(choose(rows, (2, 3)).find_collective(case)) == pytest.approx(3e11)
    assert choose(rows, (2,)).find_collective(case) is None  # one device has nobody to exchange with


@pytest.mark.parametrize(
    "fields",
    [
        {"axis_size": 4},  # groups of four, all at once
        {"device_indices": (0, 1, 2, 3), "axis_size": 4},  # a part of what is planned on
        {"size_bytes": 16 * MIB - 1},
        {"case": "device_to_device"},
        {"device_kind": "NVIDIA H200"},
        {"median_s": 1.2e-3},
    ],
)
def test_other_groups_sizes_cases_and_kinds_are_not_taken(fields: dict[str, Any]) -> None:
    row = build_collective("all_reduce", 3e11)
    assert choose([row]).find_collective("all_reduce") is not None
    assert choose([row.model_copy(update=fields)]).find_collective("all_reduce") is None


def test_figures_of_one_host_say_nothing_of_several() -> None:
    two = build_target("2*h100:8")
    assert choose(build_host(4e14), range(16), two) == Measurements()
    assert choose(build_host(4e14), range(8), two).find_matmul("bfloat16") is not None


def test_where_nvlink_joins_some_pairs_and_not_others_no_collective_is_taken(tmp_path: Path) -> None:
    hybrid = Topology.of(plant_machine("dgx-1v", tmp_path).view())
    kind = hybrid.devices[0].kind
    rows = [build_collective("all_reduce", 1e11, device_kind=kind), build_matmul(0, 9e13, device_kind=kind)]
    assert choose(rows, range(8), hybrid).find_collective("all_reduce") is None
    assert choose(rows, range(4), hybrid).find_collective("all_reduce") is not None  # these four are all joined
    assert [row.case for row in choose(rows, range(8), hybrid).rows] == ["matmul"]


def test_the_newest_run_counts_and_an_older_one_where_it_is_too_short() -> None:
    older = build_collective("all_reduce", 3e11, run_id="run-0001")
    newer = build_collective("all_reduce", 2e11, run_id="run-0002")
    short = build_collective("all_reduce", 4e11, run_id="run-0003", size_bytes=64 * MIB)
    assert find_newest([older, newer]) == Timed(newer)
    assert find_newest([older, newer, short]) == Timed(newer)
    assert find_newest([short]) is None


def test_sizes_of_two_runs_are_not_taken_from_each_other() -> None:
    small = build_collective("all_reduce", 3e11, run_id="run-0001", size_bytes=16 * MIB)
    large = build_collective("all_reduce", 2e11, run_id="run-0002")
    assert find_newest([small, large]) == Timed(large)


def test_a_size_that_is_hardly_smaller_is_no_second_one() -> None:
    rows = [build_collective("all_reduce", 2e11, size_bytes=size * MIB) for size in (250, 256)]
    assert find_newest(rows) == Timed(rows[1])


def test_a_larger_size_that_takes_no_longer_is_no_rate() -> None:
    rows = [build_measurement(**_permute(size)) for size in (64 * MIB, 256 * MIB)]
    assert find_newest(rows) is None


def _permute(size_bytes: int) -> dict[str, Any]:
    shape = {"case": "permute", "device_indices": (0, 1), "axis_size": 2, "busbw_factor": 1.0}
    return {**shape, "size_bytes": size_bytes, "median_s": 2e-3}


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
    for case in FACTORS:
        assert kept.find_collective(case) == whole.find_collective(case)  # type: ignore[arg-type]
    assert len(kept.rows) <= 2 * len(FACTORS)


def test_what_no_such_chip_can_do_is_refused_with_both_values() -> None:
    rate = choose(build_host(1.3e15)).find_matmul("bfloat16")
    assert rate is not None
    assert not rate.is_plausible(989e12)
    assert rate.is_plausible(1.3e15 / 1.2 * 1.001)
    assert rate.is_plausible(1.3e15 / 0.05 * 0.999)
    assert not rate.is_plausible(1.3e15 / 0.05 * 1.001)
    high, low = rate.refuse(989e12, 794e12).message, rate.refuse(989e14, 794e14).message
    assert "1.3e+15 FLOP/s in run-0001, more than 1.2 times it" in high
    assert "9.89e+14" in high
    assert "7.94e+14 was taken" in high
    assert "less than 5% of it" in low


def test_a_plan_is_told_value_default_run_and_age() -> None:
    rate = choose(build_host(4e14, age_s=90.0)).find_matmul("bfloat16")
    assert rate is not None
    told = rate.tell(7.9e14)
    assert (told.name, told.case, told.default, told.run_id, told.age_s) == (
        "flops_per_s",
        "matmul",
        7.9e14,
        "run-0001",
        90.0,
    )
    assert told.value == pytest.approx(4e14)
    assert told.observed_at == "2026-11-21T07:00:00+00:00"
    assert rate.timed.large.device_kind == H100
