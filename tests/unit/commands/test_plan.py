"""`meshwright-agent plan` on targets; on this host it is held against a real agent in tests/process/test_planner.py."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from meshwright.planning.request import answer_request
from meshwright.wire.leases import LeasedDevice
from meshwright.wire.mesh import PlanRequest
from meshwright_agent.cli import app
from meshwright_agent.clock import SystemClock, read_boot_clock
from meshwright_agent.leasing.book import LeaseBook
from meshwright_agent.serving.claim import claim_host
from meshwright_agent.store.database import Store
from tests.fakes.machines import plant_machine
from tests.unit.cli.conftest import CommandLine, meshwright
from tests.unit.leasing.leases import build_lease

__all__ = ["meshwright"]

MODEL = (
    '{"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8}'
)
TARGET = ("--target", "v5p:4x4x28", "--mesh", "dp:56,tp:8")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_SIMULATE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env=environment)


def test_json_is_what_the_route_answers() -> None:
    request = PlanRequest(mesh="dp:56,tp:8", target="v5p:4x4x28")
    result = run(*TARGET, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == answer_request(request).model_dump_json() + "\n"


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (("--dcn", "dp:2"), {"dcn": "dp:2"}),
        (("--importance", "dp:9,tp:1"), {"importance": {"dp": 9, "tp": 1}}),
        (("--devices", "host-1/0,host-1/1"), {"devices": ("host-1/0", "host-1/1")}),
        (
            ("--count", "4", "--policy", "spread", "--exclude", "host-0/0"),
            {"devices": {"count": 4, "policy": "spread", "exclude": ("host-0/0",)}},
        ),
        (("--order", "given"), {"device_order": "given"}),
        (("--axis-types", "explicit"), {"axis_types": "explicit"}),
        (("--memory-strategy", "aggressive"), {"memory_strategy": "aggressive"}),
    ],
)
def test_every_option_is_the_requests(options: tuple[str, ...], fields: dict[str, Any]) -> None:
    mesh = "dp:2,tp:-1"
    request = PlanRequest.model_validate({"mesh": mesh, "target": "2*h100:8", **fields})
    result = run("--target", "2*h100:8", "--mesh", mesh, *options, "--json")
    assert result.stdout == answer_request(request).model_dump_json() + "\n", result.stderr


@pytest.mark.parametrize("options", [(), ("--code",), ("--json",)])
def test_it_prints_what_the_other_command_prints(meshwright: CommandLine, options: tuple[str, ...]) -> None:
    other = meshwright("plan", "dp:56,tp:8", "--local", "--target", "v5p:4x4x28", *options)
    result = run(*TARGET, *options)
    assert (result.exit_code, result.stdout, result.stderr) == (other.code, other.out, other.err)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "--mesh"),
        (("--mesh", "dp:2", "--colour"), 2, "--colour"),
        ((*TARGET, "--code", "--json"), 2, "--code"),
        (("--mesh", "dp:9", "--target", "h100:8"), 1, "needs 9 devices"),
        (("--mesh", "dp:4", "--target", "h100:8"), 1, "stay idle"),
        (("--mesh", "dp:8", "--target", "v5q:8"), 1, "did you mean"),
        (("--mesh", "dp:0", "--target", "h100:8"), 2, "size"),
        (("--mesh", "dp:8", "--cpu-devices", "0"), 2, "MESHWRIGHT_CPU_DEVICES"),
        ((*TARGET, "--verify", "compile"), 2, "--model llama3-8b"),
        ((*TARGET, "--model", MODEL, "--verify", "compile"), 2, "training is not given"),
        ((*TARGET, "--timeout", "0"), 2, "write 30"),
    ],
)
def test_an_infeasible_plan_is_1_and_a_wrong_question_is_2(arguments: tuple[str, ...], code: int, said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_on_a_host_that_simulates_the_plan_says_so() -> None:
    result = run("--mesh", "dp:2,tp:8", MESHWRIGHT_SIMULATE="2*h100:8")
    assert result.exit_code == 0
    assert "simulates 2*h100:8" in result.stderr


def test_a_step_is_compiled_in_a_child_and_only_its_yes_is_one() -> None:
    asked = (
        "--mesh",
        "fsdp:2",
        "--target",
        "cpu:2",
        "--model",
        MODEL,
        "--batch",
        "4",
        "--seq",
        "128",
        "--verify",
        "compile",
    )
    result = run(*asked)
    assert result.exit_code == 0, result.output
    assert "compiled: fits on cpu:2" in result.stdout
    late = run(*asked, "--timeout", "0.01", "--json")
    assert late.exit_code == 1
    assert '"status":"aborted"' in late.stdout


def test_the_help_is_the_commands_own() -> None:
    assert "--importance" in run("--help").stdout


# ---- this host ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tpu_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree of a host with eight TPU chips that nobody holds; a JAX that is started here leaves `touched` in it."""
    roots = plant_machine("tpu-v5e-8", tmp_path).roots
    shutil.rmtree(roots.proc / "3110")
    jax = tmp_path / "broken/jax"
    jax.mkdir(parents=True)
    (jax / "__init__.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\nraise ImportError('touched')\n")
    monkeypatch.setenv("PYTHONPATH", f"{jax.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for name, folder in (("SYSFS", roots.sysfs), ("PROC", roots.proc), ("DEV", roots.dev)):
        monkeypatch.setenv(f"MESHWRIGHT_{name}_ROOT", str(folder))
    monkeypatch.setenv("MESHWRIGHT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def leased(tpu_host: Path) -> str:
    """The id of a lease on the first half of them, as an agent that has ended wrote it."""
    lease = build_lease(devices=tuple(LeasedDevice(local_index=place) for place in range(4)))

    async def write() -> None:
        store = await Store.open(tpu_host / "state/meshwright.sqlite3", clock=SystemClock())
        await store.save_leases([LeaseBook(SystemClock(), read_boot_clock(tpu_host / "proc")).date(lease, 600)])
        await store.close()

    asyncio.run(write())
    return lease.id


def list_places(result: Result) -> list[int]:
    return [device["local_index"] for device in json.loads(result.stdout)["plans"][0]["devices"]]


def test_leased_devices_are_left_out_and_jax_is_not_started_beside_them(tpu_host: Path, leased: str) -> None:
    assert sorted(list_places(run("--mesh", "dp:-1", "--json"))) == [4, 5, 6, 7]
    all_of_them = run("--mesh", "dp:8")
    assert (all_of_them.exit_code, leased in all_of_them.stderr) == (1, True)
    assert not (tpu_host / "touched").exists()


def test_jax_is_not_started_beside_the_agent_of_the_host_which_is_named(tpu_host: Path) -> None:
    claim = claim_host(tpu_host / "sys")
    try:
        result = run("--mesh", "dp:-1", "--json")
    finally:
        claim.release()
    assert len(list_places(result)) == 8
    assert f"(process {os.getpid()})" in result.stderr
    assert "meshwright plan" in result.stderr
    assert not (tpu_host / "touched").exists()


def test_on_a_host_that_nobody_has_jax_is_asked(tpu_host: Path) -> None:
    result = run("--mesh", "dp:-1", "--json")
    assert (len(list_places(result)), result.stderr) == (8, "")
    assert (tpu_host / "touched").exists()
