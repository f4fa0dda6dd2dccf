"""What the compiler says, as `plan`, `batch-size` and `verify` print it and put it into their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.cli import session
from meshwright.testing import FakeAgent
from meshwright.wire.base import Notice
from meshwright.wire.verification import MemoryParts, Verification, VerificationStatus, VerifiedCollective
from tests.fakes.scripted import VERIFIED, compile_with
from tests.unit.cli.conftest import CommandLine

MODEL = (
    '{"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8}'
)
STEP = ("--model", MODEL, "--global-batch-size", "8", "--seq-len", "128", "--compile")
GIB = 2**30

REPORT = Verification(
    status="verified",
    target="v5e:4x2",
    peak_memory_bytes=12 * GIB,
    capacity_bytes=15 * GIB,
    memory=MemoryParts(argument_bytes=8 * GIB, temporary_bytes=4 * GIB, alias_bytes=0),
    collectives=(
        VerifiedCollective(
            axis="tp", op="all-reduce", count=64, bytes=2.0 * GIB, group_size=4, asynchronous_count=3,
        ),
    ),
    estimated_step_s=0.125,
    parameter_count=8_030_261_248,
    compile_s=12.5,
    versions={"jax": "0.10.2", "libtpu": "0.0.42.1"},
    warnings=(Notice(code="involuntary_rematerialization", message="it moves a whole array", hint="shard it"),),
)  # fmt: skip


def unfit(**fields: Any) -> Verification:
    said = {"status": "does_not_fit", "needed_bytes": 20 * GIB, "capacity_bytes": 15 * GIB, **fields}
    return Verification.model_validate(said)


def test_a_report_says_what_it_needs_what_it_moves_and_how_it_is_known(meshwright: CommandLine) -> None:
    compile_with(meshwright.fake, REPORT)
    printed = meshwright("plan", "dp:2,tp:4", *STEP)
    assert printed.code == 0
    for line in (
        "compiled: fits on v5e:4x2 (compiled in 12.5 s; jax 0.10.2, libtpu 0.0.42.1)",
        "  peak 12 GiB of 15 GiB a device: 3 GiB to spare",
        "  arguments 8 GiB, temporaries 4 GiB",
        "  8,030,261,248 parameters",
        "  about 125 ms a step by the compiler's cycles, without collectives",
    ):
        assert f"{line}\n" in printed.out
    row = next(line.split() for line in printed.out.splitlines() if "all-reduce" in line)
    assert row == ["tp", "all-reduce", "64", "2", "GiB", "4", "3"]
    assert printed.err.startswith("warning: it moves a whole array\n  hint: shard it\n")


@pytest.mark.parametrize(("verification", "words"), [
    (unfit(), "needs 20 GiB of 15 GiB a device: 5 GiB too much"),
    (unfit(peak_memory_bytes=16 * GIB, needed_bytes=16 * GIB), "peak 16 GiB of 15 GiB a device: 1 GiB too much"),
    (unfit(peak_memory_bytes=14 * GIB, needed_bytes=16 * GIB), "needs 16 GiB of 15 GiB a device: 1 GiB too much"),
    (Verification(status="not_compiled", reason="libtpu is not installed"), "libtpu is not installed"),
    (Verification(status="aborted", reason="the compiler aborted (SIGABRT)"), "the compiler aborted (SIGABRT)"),
])  # fmt: skip
@pytest.mark.parametrize("options", [(), ("--format=json",), ("--export", "python")])
def test_only_verified_is_a_yes(
    meshwright: CommandLine, verification: Verification, words: str, options: tuple[str, ...]
) -> None:
    compile_with(meshwright.fake, verification)
    printed = meshwright("plan", "dp:2,tp:4", *STEP, *options)
    assert printed.code == 1
    match options:
        case ():
            assert f"  {words}\n" in printed.out
        case ("--format=json",):
            assert printed.json["plans"][0]["verification"]["status"] == verification.status
        case _:
            assert ("mesh" in printed.out, words in printed.out, f"  {words}\n" in printed.err) == (True, False, True)


def test_code_says_on_stderr_why_it_is_no_plan_and_nothing_where_it_is_one(meshwright: CommandLine) -> None:
    compile_with(meshwright.fake, Verification(status="aborted", reason="it hung", log=("the last words",)))
    printed = meshwright("plan", "dp:8", *STEP, "--export", "python")
    said = "the compiler gave no answer: nothing is verified\n  it hung\n  log: the last words\n"
    assert printed.err.startswith(said)
    compile_with(meshwright.fake)
    assert "compiler" not in meshwright("plan", "dp:8", *STEP, "--export", "python").err


def test_where_the_memory_of_a_device_is_not_known_nothing_is_said_to_fit(meshwright: CommandLine) -> None:
    compile_with(meshwright.fake, REPORT.model_copy(update={"capacity_bytes": None, "warnings": ()}))
    printed = meshwright("plan", "dp:2,tp:4", *STEP)
    assert printed.code == 0
    assert printed.out.splitlines()[3].startswith("compiled: whether it fits is not known on v5e:4x2 (")
    assert "compiled: fits" not in printed.out
    assert "peak 12 GiB a device; how much it may use is not known" in printed.out


@pytest.mark.parametrize("command", ["plan", "batch-size"])
def test_timeout_bounds_the_wait_for_the_agents_compile_which_goes_on(
    meshwright: CommandLine, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GRACE_S", 60.0)  # of the whole command, which a busy machine may need
    compile_with(meshwright.fake, None)
    asked = ("plan", "dp:8", *STEP) if command == "plan" else BATCH
    printed = meshwright(*asked, "--timeout", "0.05")
    assert printed.code == 2
    assert "the time to wait for run-" in printed.err
    assert "  hint: the compile goes on: `meshwright runs list` shows it" in printed.err
    assert not any(request.method == "DELETE" for request in meshwright.fake.requests)
    (run,) = json.loads(meshwright("runs", "list", "--format=json").out)["runs"]
    assert run["state"] in ("queued", "running")
    meshwright.fake.fail_next(httpx.ReadTimeout("late"), times=9)
    late = meshwright("plan", "dp:8", "--timeout", "5")
    assert (late.code, "the compile goes on" in late.err) == (2, False)


def test_the_compilers_last_lines_stand_on_stderr_where_it_failed(meshwright: CommandLine) -> None:
    lines = tuple(f"line {number} \x1b[31m" for number in range(99))
    for status, shown in (("aborted", True), ("verified", False)):
        meshwright.fake = FakeAgent()
        compile_with(meshwright.fake, Verification(status=status, log=lines))  # type: ignore[arg-type]
        err = meshwright("plan", "dp:8", *STEP).err
        assert ("log: line 98" in err) == shown
        assert "\x1b" not in err
        assert "line 3 " not in err


def test_an_earlier_compiles_answer_says_so(meshwright: CommandLine) -> None:
    compile_with(meshwright.fake, VERIFIED.model_copy(update={"stored": True, "versions": {"jax": "0"}}))
    assert "(an earlier compile's answer; jax 0)" in meshwright("plan", "dp:8", *STEP).out


@pytest.mark.parametrize(("arguments", "said"), [
    (("--model", "no/such/config.json"), "--model no/such/config.json: cannot be read"), (("--model", "{"), "no JSON"),
    (("--global-batch-size", "8"), "--model llama3-8b"), (("--compile",), "--model llama3-8b"),
    (("--model", "llama3-8b", "--global-batch-size", "0"), "--global-batch-size"), ((*STEP, "--offline"), "target"),
])  # fmt: skip
def test_a_wrong_step_is_2(meshwright: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    printed = meshwright("plan", "dp:8", *arguments)
    assert printed.code == 2
    assert said in printed.err


# ---- batch sizes ----

BATCH = ("batch-size", "--model", MODEL, "--mesh", "fsdp:8", "--seq-len", "128", "--compile")


def test_the_largest_batch_is_told_with_its_margin(meshwright: CommandLine) -> None:
    compile_with(meshwright.fake)
    printed = meshwright(*BATCH, "--target", "v5e:2x4")
    assert printed.code == 0
    assert "largest batch 8 × 8 = 64 sequences a step (one more does not fit)\n" in printed.out
    assert "peak 10 GiB of 15 GiB a device: 5 GiB to spare\n" in printed.out
    body = meshwright.body(0)
    assert (body["target"], body["mesh"], body["training"]) == ("v5e:2x4", "fsdp:8", {"seq_len": 128})


@pytest.mark.parametrize("status", ["does_not_fit", "not_compiled", "aborted"])
def test_no_batch_that_fits_is_1(meshwright: CommandLine, status: VerificationStatus) -> None:
    compile_with(meshwright.fake, Verification(status=status, reason="why not"))
    printed = meshwright(*BATCH)
    assert printed.code == 1
    assert "largest batch" not in printed.out
    assert "  why not\n" in printed.out


# ---- a step of your own ----


def test_verify_wants_a_function_and_a_plan(meshwright: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    meshwright("plan", "dp:8", "--save", str(path))
    for arguments, said in (
        (("train:build",), "--plan"),
        (("train", "--plan", str(path)), "module:function"),
        (("train:build", "--plan", str(tmp_path / "none.json")), "no file that can be read"),
        (("train:build", "--plan", str(path), "--target", "v5q:8"), "did you mean"),
    ):
        printed = meshwright("compile", *arguments)
        assert said in printed.err
        assert printed.code == (1 if "v5q:8" in arguments else 2)


@pytest.mark.exhaustive
def test_verify_compiles_the_step_of_a_builder(meshwright: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    meshwright("plan", "dp:2,tp:2", "--offline", "--target", "cpu:4", "--save", str(path))
    printed = meshwright("compile", "tests.process.verify_steps:build", "--plan", str(path))
    assert printed.code == 0, printed.err
    assert "compiled: fits on cpu:4" in printed.out
    assert not meshwright.fake.requests
    failed = meshwright("compile", "tests.process.verify_steps:fails", "--plan", str(path), "--format=json")
    assert (failed.code, failed.json["status"]) == (1, "not_compiled")


def test_plan_local_compiles_in_a_child_of_its_own(meshwright: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    printed = meshwright("plan", "fsdp:2", "--offline", "--target", "cpu:2", *STEP, "--save", str(path))
    assert printed.code == 0, printed.err
    assert "compiled: fits on cpu:2" in printed.out
    assert json.loads(path.read_text())["plans"][0]["verification"]["status"] == "verified"
