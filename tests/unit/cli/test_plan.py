from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plan, PlanMemory, Plans, Rejected
from tests.unit.cli.conftest import CommandLine


def _plan(meshwright: CommandLine, mesh: str = "dp:2,tp:4") -> Plan:
    with meshwright.fake.client() as client:
        return client.plan(mesh)


def test_a_plan_is_drawn_where_devices_do_not_stand_in_their_own_order(meshwright: CommandLine) -> None:
    printed = meshwright("plan", "dp:2,tp:-1")
    assert printed.out.startswith("dp:2 × tp:4 on 8 cpu\nplan mw1-")
    assert "tp=0" not in printed.out
    assert (printed.code, printed.err) == (0, "")
    turned = meshwright("plan", "dp:2,tp:-1", "--target", "v5e:2x4")
    assert "dp=0  0,0,0  0,1,0  0,2,0  0,3,0\ndp=1  1,0,0  1,1,0  1,2,0  1,3,0\n" in turned.out


def test_a_kept_plan_is_the_agents_json_and_the_job_is_pointed_at_the_file(
    meshwright: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "my plan.json"
    out = meshwright("plan", "x:8", "--save", str(path)).out
    assert f"export MESHWRIGHT_PLAN='{path}'\n" in out
    assert "MESHWRIGHT_URL" not in out
    assert Plans.model_validate_json(path.read_text()).plans == (_plan(meshwright, "x:8"),)


def test_a_file_that_cannot_be_written_is_2(meshwright: CommandLine, tmp_path: Path) -> None:
    printed = meshwright("plan", "x:8", "--save", str(tmp_path / "none" / "plan.json"))
    words = "cannot be written: No such file or directory; name a file that can be written"
    assert (printed.code, words in printed.err, printed.out) == (2, True, "")  # no plan that names a file without it


def test_code_alone_can_be_run(meshwright: CommandLine) -> None:
    printed = meshwright("plan", "x:8", "--export", "python")
    assert printed.out.rstrip("\n") == _plan(meshwright, "x:8").code.rstrip("\n")
    compile(printed.out, "<plan>", "exec")


@pytest.mark.parametrize(("arguments", "field", "value"), [
    (("--devices", "1,0"), "devices", [1, 0]), (("--count", "4"), "devices", {"count": 4}),
    (("--target", "h100:8"), "target", "h100:8"),
])  # fmt: skip
def test_every_option_reaches_the_agent(
    meshwright: CommandLine, arguments: tuple[str, ...], field: str, value: object
) -> None:
    meshwright("plan", "x:-1", *arguments)
    assert meshwright.body()[field] == value


@pytest.mark.parametrize(("mesh", "code"), [("x:9", 1), ("x:2", 1), ("x:0", 2), ("x", 2), ("x:-1,y:-1", 2)])
def test_an_infeasible_mesh_is_1_and_one_that_is_none_is_2(meshwright: CommandLine, mesh: str, code: int) -> None:
    printed = meshwright("plan", mesh)
    assert (printed.code, printed.out) == (code, "")
    assert printed.err.startswith("error: ")
    assert "  hint: " in printed.err


@pytest.mark.parametrize("arguments", [(), ("--format=json",)])
def test_a_plan_that_does_not_fit_in_memory_is_1(meshwright: CommandLine, arguments: tuple[str, ...]) -> None:
    needed, here = 90 * 2**30, 80 * 2**30
    memory = PlanMemory(per_device_bytes=needed, capacity_bytes=here, fits=False, parts={"weights": needed})
    plan = _plan(meshwright).model_copy(update={"memory": memory})
    meshwright.fake.answer("POST", "/mesh/plan", Plans(plans=(plan,)))
    printed = meshwright("plan", "dp:2,tp:4", *arguments)
    assert (printed.code, "start one process" in printed.out) == (1, False)
    assert arguments or printed.out.startswith("dp:2 × tp:4 on 8 cpu: does not fit, 90 GiB of 80 GiB a device\n")


def test_a_plan_that_the_agent_could_not_store_is_to_be_kept_in_a_file(meshwright: CommandLine) -> None:
    lost = Notice(code="plan_not_stored", message="the disk is full")
    plan = _plan(meshwright).model_copy(update={"warnings": (lost,)})
    meshwright.fake.answer("POST", "/mesh/plan", Plans(plans=(plan,)))
    printed = meshwright("plan", "dp:2,tp:4")
    assert "MESHWRIGHT_PLAN=FILE" in printed.out
    assert f"MESHWRIGHT_PLAN={plan.fingerprint}" not in printed.out


@pytest.mark.parametrize("arguments", [(), ("--format=json",)])
def test_no_plan_at_all_is_1_and_says_why(meshwright: CommandLine, arguments: tuple[str, ...]) -> None:
    rejected = Rejected(mesh_shape={"x": 8}, reason="memory", message="x:8 needs 90 GiB")
    meshwright.fake.answer("POST", "/mesh/search", Plans(plans=(), rejected=(rejected,)))
    printed = meshwright("search", "--model", "gpt2", "--global-batch-size", "8", *arguments)
    assert printed.code == 1
    assert "x:8 needs 90 GiB" in (printed.out)


def test_a_mesh_too_large_to_draw_is_told_and_not_drawn(meshwright: CommandLine) -> None:
    plan = _plan(meshwright, "x:8")
    many = plan.model_copy(update={"mesh_shape": {"x": 800}, "devices": plan.devices[::-1] * 100})
    meshwright.fake.answer("POST", "/mesh/plan", Plans(plans=(many,)))
    out = meshwright("plan", "x:800").out
    assert "the order of the 800 devices is too long to draw; --format json lists it" in out
    assert "x=0" not in out


# ---- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--format=json",), (), ("--export", "python")])
def test_a_local_plan_is_what_the_agent_would_answer_and_asks_nobody(
    meshwright: CommandLine, options: tuple[str, ...]
) -> None:
    asked = meshwright("plan", "dp:2,fsdp:2,tp:-1", "--target", "v5e:4x4", *options)
    assert len(meshwright.asked) == 1
    local = meshwright("plan", "dp:2,fsdp:2,tp:-1", "--target", "v5e:4x4", "--offline", *options)
    assert len(meshwright.asked) == 1
    kept = "  export MESHWRIGHT_URL=http://fake-agent\n  export MESHWRIGHT_PLAN=mw1-"
    assert (local.code, local.err) == (asked.code, asked.err) == (0, "")
    if options:
        assert local.out == asked.out
    else:
        assert asked.out.partition("start one process")[0] == local.out.partition("start one process")[0]
        assert kept in asked.out
        assert "MESHWRIGHT_PLAN=FILE  # their agents do not have it: keep it with --save FILE" in local.out


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (("x:8", "--offline"), 2, "neither target nor topology"), (("x:8", "--offline", "--target", "?"), 2, "no name"),
    (("x:8", "--offline", "--target", "v5q:4x4"), 1, "did you mean"),
    (("x:8", "--offline", "--target", "v5p:3x4x4"), 1, "v5p"), (("x:0", "--offline", "--target", "h100:8"), 2, "size"),
    (("x:9", "--offline", "--target", "h100:8"), 1, "needs 9 devices"),
    (("x:4", "--offline", "--target", "h100:8"), 1, "stay idle"),
    (("x:8", "--offline", "--target", "h100:8", "--target", "b200:8"), 2, "h100:8 and b200:8 are given"),
    (("x:8", "--offline", "--target", "h100:8", "--url", "http://a:1"), 2, "asks no agent"),
])  # fmt: skip
def test_a_local_plan_that_is_infeasible_is_1_and_a_wrong_question_is_2(
    meshwright: CommandLine, arguments: tuple[str, ...], code: int, said: str
) -> None:
    printed = meshwright("plan", *arguments)
    assert (printed.code, printed.out) == (code, "")
    assert said in " ".join(printed.err.split())
    assert meshwright.asked == []


def test_without_a_mesh_the_best_for_a_model_are_ranked_and_the_first_is_drawn(meshwright: CommandLine) -> None:
    printed = meshwright(*SEARCH)
    assert printed.code == 0
    lines = printed.out.splitlines()
    assert lines[0].split()[:3] == ["mesh", "micro-batch", "remat"]
    best = lines.index("") + 1
    assert len([line for line in lines[2 : best - 1] if line.startswith(("fsdp", "dp"))]) == 3
    assert re.match(r"\S.* on 16 .*: fits, .* a device; .* a step$", lines[best])
    assert len(lines) - best <= 30
    assert "█" in printed.out
    assert "reason" not in printed.out


def test_where_nothing_fits_the_reasons_are_shown_and_the_code_is_1(meshwright: CommandLine) -> None:
    asked = ("search", "--offline", "--target", "v5e:2x2", "--model", "llama3-70b", "--global-batch-size", "8")
    printed = meshwright(*asked)
    assert printed.code == 1
    assert "memory" in printed.out
    assert "no mesh of 4 devices holds this training step" in printed.err


SEARCH = (
    "search", "--offline", "--target", "v5e:4x4", "--model", "llama3-8b", "--global-batch-size", "64", "--seq-len",
    "2048",
)  # fmt: skip
