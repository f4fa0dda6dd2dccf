"""What collectives reach: the table, measured curves that it was not fitted to."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from meshwright.planning.cost.collectives import (
    Reached,
    calibrate,
    gpu_wire,
    network_wire,
    time_across,
    time_collective,
)
from meshwright.planning.hardware import HardwareType
from meshwright.topology.chips import read_chips, read_table

time_all_reduce = partial(time_collective, "all_reduce")

CHIPS = {chip.family: chip for chip in read_chips()}
ROWS = read_table("meshwright.planning.cost", "reached.csv", Reached)
NOMINAL = {"a100": 3e11, "v100": 1.5e11}

CURVES = list(csv.DictReader((Path(__file__).parent / "allreduce.csv").read_text().splitlines()))
"""All-reduces of NCCL inside a node, odd MiB only: the fit has seen the even ones. Source: the tables of
github.com/VIA-Research/vTrain, 15 of 512 odd sizes each."""


def read_errors(family: str, *, least_mebibytes: int = 0) -> list[float]:
    rows = [row for row in CURVES if row["family"] == family and int(row["mebibytes"]) >= least_mebibytes]
    sizes = np.array([int(row["size"]) for row in rows])
    wire = calibrate(gpu_wire(NOMINAL[family], sizes), CHIPS[family], "all_reduce")
    times = time_all_reduce(np.array([int(row["mebibytes"]) << 20 for row in rows]), wire)
    return list(np.abs(times / np.array([float(row["time_s"]) for row in rows]) - 1))


@pytest.mark.parametrize(("family", "median", "most"), [("a100", 0.005, 0.07), ("v100", 0.002, 0.03)])
def test_messages_that_the_fit_has_not_seen_keep_to_its_stated_errors(family: str, median: float, most: float) -> None:
    large = read_errors(family, least_mebibytes=64)
    assert len(large) == 63
    assert float(np.median(large)) < median
    assert max(large) < most


def test_an_h100_has_what_others_measured_of_it() -> None:
    """Its row has the peak of long messages alone; both figures are of gpus.md, measured."""
    node = gpu_wire(4.5e11, 8)
    reduced = 8192 * 3584 * 2
    rate = reduced / time_all_reduce(reduced, calibrate(node, CHIPS["h100"], "all_reduce"))
    assert rate == pytest.approx(150e9, rel=0.03)
    gathered = time_collective("all_gather", 4096 * 65536 * 2, calibrate(node, CHIPS["h100"], "all_gather"))
    assert gathered == pytest.approx(1.5e-3, rel=0.05)


def test_many_a100_nodes_have_nearly_what_nvidia_measures() -> None:
    node = calibrate(gpu_wire(3e11, 8), CHIPS["a100"], "all_reduce")
    across = calibrate(network_wire(2.5e10, 128), CHIPS["a100"], "all_reduce", "across")
    bus_bytes_per_s = 2 * 8e9 / time_across("all_reduce", 8e9, node, across)
    assert bus_bytes_per_s == pytest.approx(192e9, rel=0.03)


def test_every_row_is_of_a_known_family_with_a_source_and_a_ratio_that_can_be() -> None:
    families = {member.value for member in HardwareType} | {"gpu", "tpu"}
    for row in ROWS:
        assert row.family in families
        assert 0 < row.reached_ratio <= 1
        assert len(row.source) > 8
    keys = [(row.family, row.tier, row.operation, row.size) for row in ROWS]
    assert len(set(keys)) == len(keys)
