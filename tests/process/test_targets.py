"""Targets beside what libtpu describes, for every named slice: coordinates, cores, processes, order of devices."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from meshwright.testing import FakeAgent
from meshwright.wire.mesh import Plan
from tests.fakes.slices import NamedSlice, read_named_slices
from tests.process.described_job import digest
from tests.process.slice_environment import needs_tpu_compiler, run_on_slices

PROGRAM = Path(__file__).with_name("described_job.py")
LIMIT_S = 200.0

pytestmark = needs_tpu_compiler

SEVERAL: list[tuple[str, dict[str, Any]]] = [
    ("2*v5e:4x4", {"topology_name": "v5e:4x4", "num_slices": 2}),
    ("3*v5p:2x2x2", {"topology_name": "v5p:2x2x2", "num_slices": 3}),
    ("2*tpu7x:4x4x4", {"topology_name": "tpu7x:4x4x4", "num_slices": 2}),
]
UNNAMED: list[tuple[str, dict[str, Any]]] = [
    ("v2:8x16", {"topology_name": "v2:8x16"}),
    ("v2:2x4", {"topology_name": "v2:2x4"}),
    ("v3:16x32", {"topology_name": "v3:16x32"}),
    ("v5p:4x8x16", {"topology_name": "v5p:4x8x16"}),
    ("tpu7x:4x4x576", {"topology_name": "tpu7x:4x4x576"}),
    ("v5p:4x4x8_twisted", {"topology_name": "v5p:4x4x8_twisted", "wrap": [True, True, True]}),
    ("tpu7x:8x16x16_twisted", {"topology_name": "tpu7x:8x16x16_twisted", "wrap": [True, True, True]}),
]


def write_case(named: NamedSlice) -> dict[str, Any]:
    config = {} if named.chip_config == "default" else {"chip_config_name": named.chip_config}
    return {"topology_name": named.topology_name, "chips_per_host_bounds": named.host, "wrap": named.wrap, **config}


FEW = ("v4-8", "v5e-8", "v5p-16", "v6e-8", "tpu7x-8", "2*v5e:4x4")
"""One of each generation, and several slices. The others are exhaustive."""

MAX_CHIPS = 2048
"""Of the named slices above it the largest of each generation is compared: libtpu takes seconds to describe one."""


def choose_slices() -> list[NamedSlice]:
    """Returns the named slices to compare."""
    by_size = sorted(read_named_slices(), key=lambda each: math.prod(each.shape))
    largest = {each.name.partition("-")[0]: each for each in by_size}
    return [each for each in by_size if math.prod(each.shape) <= MAX_CHIPS or each in largest.values()]


CASES = [(named.name, write_case(named)) for named in choose_slices()] + SEVERAL + UNNAMED


@pytest.fixture(scope="module")
def described(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What libtpu says of each target that this run asks for, in one process."""
    asked = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    cases = [(name, case) for name, case in CASES if name in asked]
    answers = run_on_slices(PROGRAM, [case for _, case in cases], LIMIT_S)
    return dict(zip((name for name, _ in cases), answers, strict=True))


def plan_here(target: str, folder: Path) -> Plan:
    """Returns the plan of the command line without an agent, which lists any number of devices."""
    request, printed = folder / "request.json", io.StringIO()
    request.write_text('{"device_order": "given"}')
    command = ["--format=json", "plan", "x:-1", "--target", target, "--offline", "--request", str(request)]
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit, match=r"^0$"):
        main(command)
    return Plan.model_validate(json.loads(printed.getvalue())["plans"][0])


def tell(plan: Plan) -> list[str]:
    return [
        " ".join(map(str, (device.slice_index or 0, *(device.coords or ()), device.core_on_chip, device.process_index)))
        for device in plan.devices
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.exhaustive) for name, _ in CASES]
)
def test_a_target_is_what_libtpu_describes(described: dict[str, dict[str, Any]], name: str, tmp_path: Path) -> None:
    told, plan = described[name], plan_here(name, tmp_path)
    with FakeAgent().client() as client:
        kinds = {chip.chip: chip.kind for chip in client.targets().chips}
    assert plan.target is not None
    assert len(plan.devices) == told["count"]
    assert kinds[plan.target.rpartition("*")[2].partition(":")[0]] == told["kind"]
    assert (plan.devices[0].slice_index is not None) == told["has_slice_index"]
    assert digest(tell(plan)) == told["digest"], "jax.Device.id counts in canonical order"
