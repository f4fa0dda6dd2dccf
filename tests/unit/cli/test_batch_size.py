from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.testing import FakeAgent
from tests.unit.cli.conftest import CommandLine


@pytest.mark.parametrize(("batch", "code", "phrase"), [
    (1, 1, "below minimum"), (100, 0, "below critical"), (512, 0, "batch size 512 is at or above"),
])  # fmt: skip
def test_a_batch_below_the_minimum_is_1(meshwright: CommandLine, batch: int, code: int, phrase: str) -> None:
    printed = meshwright("batch-size", "--hardware", "h100", "--per-device-batch-size", str(batch))
    assert printed.code == code
    assert phrase in printed.out


def test_a_warning_of_the_table_is_printed_with_the_table_alone(meshwright: CommandLine) -> None:
    assert "above the roofline" in meshwright("batch-size", "--hardware", "a100").err
    assert "roofline" not in meshwright("batch-size", "--model", "llama3-8b", "--target", "a100:8", "--offline").err


# ---- a model's step -------------------------------------------------------------------------------------------------

STEP = ("batch-size", "--model", "llama3-8b", "--target", "v5e:4x4", "--mesh", "fsdp:16")


@pytest.mark.parametrize("where", [(), ("--offline",)])
def test_the_batch_of_a_step_comes_first_then_what_others_cost(meshwright: CommandLine, where: tuple[str, ...]) -> None:
    printed = meshwright(*STEP, "--seq-len", "512", *where)
    assert printed.code == 0, printed.err
    assert printed.out.startswith("64 sequences a step on fsdp:16, 4 for each of 16 data-parallel parts: the least")
    rows = [line.split() for line in printed.out.splitlines()]
    assert [row[0] for row in rows if len(row) > 8 and row[-1] in ("compute", "fsdp")][:3] == ["16", "32", "64"]


def test_where_nothing_fits_it_is_1(meshwright: CommandLine) -> None:
    printed = meshwright("batch-size", "--model", "llama3-8b", "--target", "v5e:2x2", "--mesh", "fsdp:4")
    assert printed.code == 1
    assert "nothing fits: one sequence for each of 4 data-parallel parts" in printed.out
    assert re.search(r"needs about 3\d\.\d GiB of a device's 15\.8\n  hint: leave --mesh out", printed.out)


def test_a_plan_of_the_agent_stands_for_mesh_and_target(meshwright: CommandLine, tmp_path: Path) -> None:
    meshwright.fake = FakeAgent("h100:8")
    with meshwright.fake.client() as client:
        plan = client.plan("fsdp:8")
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    for reference in (plan.fingerprint, str(tmp_path / "plan.json")):
        printed = meshwright("batch-size", "--model", "llama3-8b", "--plan", reference)
        assert (printed.code, "on fsdp:8" in printed.out) == (0, True)
    printed = meshwright("batch-size", "--model", "llama3-8b", "--plan", f"mw1-{'0' * 16}")
    assert (printed.code, "hint: `meshwright plan` stores one" in printed.err) == (1, True)


def test_without_an_agent_the_file_of_a_plan_stands_for_mesh_and_target(
    meshwright: CommandLine, tmp_path: Path
) -> None:
    file, offline = str(tmp_path / "plan.json"), ("--model", "llama3-8b", "--offline")
    assert meshwright("plan", "fsdp:8", "--target", "h100:8", "--offline", "--save", file).code == 0
    printed = meshwright("batch-size", "--plan", file, *offline)
    assert (printed.code, "on fsdp:8" in printed.out) == (0, True), printed.err
    assert meshwright("batch-size", "--plan", file, "--mesh", "dp:8", *offline).code == 2


def test_a_plan_that_was_made_again_on_other_hardware_is_refused(meshwright: CommandLine, tmp_path: Path) -> None:
    meshwright.fake = FakeAgent("h100:8")
    with meshwright.fake.client() as client:
        seen, again = (client.plan("fsdp:8", target=target) for target in ("l4:8", "h100:8"))
        assert seen.fingerprint == again.fingerprint
        with pytest.raises(InvalidRequestError, match=r"target 'l4:8' stands beside plan mw1-.*last made on h100:8"):
            client.batch_size(model="llama3-8b", plan=seen)
    (tmp_path / "plan.json").write_text(seen.model_dump_json())
    printed = meshwright("batch-size", "--model", "llama3-8b", "--plan", str(tmp_path / "plan.json"))
    assert (printed.code, "was last made on h100:8" in printed.err) == (2, True)


def test_on_a_host_without_figures_a_step_is_refused_with_what_works(meshwright: CommandLine) -> None:
    meshwright.fake = FakeAgent("cpu:8")
    printed = meshwright("batch-size", "--model", "llama3-8b")
    assert printed.code == 1
    assert "hint: name the hardware" in printed.err
