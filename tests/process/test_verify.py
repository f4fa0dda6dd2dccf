"""A user's own step, compiled for a plan's target by the real compiler in a real child process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from meshwright.errors import InvalidRequestError
from meshwright.testing import FakeAgent
from meshwright.verify import verify
from meshwright.wire.mesh import Plan
from meshwright.wire.runs import Progress
from meshwright.wire.verification import Verification
from tests.process import verify_steps as steps
from tests.process.living import list_own_children

P = PartitionSpec
ROOT = Path(__file__).parents[2]
MODULE = "tests.process.verify_steps"
GRADIENT_BYTES = 128 * 64 * 4
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def make_plan(target: str = "cpu:4", mesh: str = "dp:2,tp:2") -> Plan:
    with FakeAgent().client() as client:
        return client.plan(mesh, target=target)


def list_collectives(found: Verification) -> list[tuple[str, str, float]]:
    return [(each.axis, each.op, each.bytes) for each in found.collectives]


def check_data_parallel(found: Verification) -> None:
    """The gradient of a matrix whose columns are split over tp is summed over dp, by half of it a device."""
    assert (found.status, found.reason) == ("verified", None)
    assert [each for each in list_collectives(found) if each[0] == "dp"] == [("dp", "all-reduce", GRADIENT_BYTES / 2)]
    assert found.peak_memory_bytes is not None
    assert found.versions["jax"]


def test_a_jitted_function_is_found_by_its_name_and_split_as_in_specs_say() -> None:
    heard: list[Progress] = []
    specs = (P(None, "tp"), P("dp"))
    found = verify(make_plan(), steps.jitted, steps.WEIGHTS, steps.BATCH, in_specs=specs, on_progress=heard.append)
    check_data_parallel(found)
    assert found.memory is not None
    assert found.memory.alias_bytes == GRADIENT_BYTES / 2  # donated by the step itself
    assert [each.done for each in heard] == sorted(each.done for each in heard)
    assert [each.message for each in heard[:2]] == ["starting the compiler", "describing cpu:4"]


def test_a_step_may_want_the_mesh_scalars_donation_and_its_constraints() -> None:
    arguments = (steps.constrained, steps.WEIGHTS, steps.BATCH, 0.1)
    found = verify(make_plan(), *arguments, in_specs=(P(None, "tp"), None, None), donate_argnums=0)
    check_data_parallel(found)
    assert found.memory is not None
    assert found.memory.alias_bytes == GRADIENT_BYTES / 2


def test_a_closure_is_brought_over_and_a_step_that_nothing_splits_is_told() -> None:
    rate = 0.5
    found = verify(make_plan(), lambda w, x: steps.jitted(w, x) * rate, np.ones((128, 64), np.float32), steps.BATCH)
    assert (found.status, found.collectives) == ("verified", ())
    assert [notice.code for notice in found.warnings] == ["nothing_is_split"]


@pytest.mark.parametrize(("ask", "reason"), [
    (lambda: verify(make_plan(), steps.mismatched, steps.WEIGHTS, steps.BATCH), "does not trace: TypeError: dot_g"),
    (lambda: verify(make_plan(), f"{MODULE}:fails"), "arguments)): RuntimeError: no such checkpoint"),
])  # fmt: skip
def test_a_step_that_cannot_be_traced_is_not_compiled_and_says_where(
    ask: Callable[[], Verification], reason: str
) -> None:
    found = ask()
    assert found.status == "not_compiled"
    assert found.reason is not None
    assert reason in found.reason
    assert any(line.strip() for line in found.log)


@pytest.mark.parametrize(("step", "said"), [
    ("tests.process.no_such:build", "there is no module tests.process.no_such"),
    (f"{MODULE}:nobody", "has no nobody; it has build, "),
    (f"{MODULE}:WEIGHTS", "a step is a function"),
    (f"{ROOT}/no/such/file.py:build", "there is no file"),
])  # fmt: skip
def test_a_step_that_is_not_there_is_refused(step: str, said: str) -> None:
    before = list_own_children(os.getpid())
    with pytest.raises(InvalidRequestError, match=said):
        verify(make_plan(), step)
    assert list_own_children(os.getpid()) <= before


def run_script(*arguments: str, cwd: Path) -> Any:
    """Returns what a script says of the plan that lies beside it as plan.json."""
    (cwd / "plan.json").write_text(make_plan().model_dump_json())
    environ, command = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}, [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Verification.model_validate_json(done.stdout.splitlines()[-1])


def test_a_function_of_the_script_itself_is_found_there(tmp_path: Path) -> None:
    found = run_script(f"{ROOT}/tests/process/verify_steps.py", "plan.json", cwd=tmp_path)
    assert list_collectives(found) == [("dp", "all-reduce", GRADIENT_BYTES)]


def test_a_script_without_its_guard_is_told_and_does_not_start_itself_for_ever(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from meshwright.verify import verify\n"
        "def step(x):\n    return x\n"
        "print(verify('plan.json', step, 1.0).model_dump_json())\n"
    )
    found = run_script("train.py", cwd=tmp_path)
    assert found.status == "not_compiled"
    assert "__name__ == '__main__'" in found.reason


TYPED = """
import jax, jax.numpy as jnp
from typing import NamedTuple
from meshwright.verify import verify
class Batch(NamedTuple):
    x: object
def double(x): return x * 2
def step(batch): return {body}
jitted = jax.jit(double)
try:
    found = verify("plan.json", {step}, Batch(jax.ShapeDtypeStruct((8,), jnp.float32)))
    print(found.model_dump_json())
except TypeError as error:
    from meshwright.wire.verification import Verification
    print(Verification(status="aborted", reason=str(error)).model_dump_json())
"""


def test_a_function_that_was_typed_in_goes_by_value(tmp_path: Path) -> None:
    code = TYPED.format(step="lambda batch: step(batch) + 1", body="double(batch.x)")
    found = run_script("-c", code, cwd=tmp_path)
    assert (found.status, found.reason) == ("verified", None)


def test_what_was_typed_in_without_cloudpickle_is_refused_with_a_way(tmp_path: Path) -> None:
    code = "import sys; sys.modules['cloudpickle'] = None\n" + TYPED.format(step="step", body="double(batch.x)")
    found = run_script("-c", code, cwd=tmp_path)
    assert "it was typed in, so no other process finds it by its name" in found.reason
    assert "pip install 'meshwright[verify]'" in found.reason


def test_code_that_reads_stdin_finds_it_empty_and_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text("input('name? ')\n")
    found = verify(make_plan(), f"{tmp_path / 'reads.py'}:build", limit_s=60.0)
    assert found.status == "not_compiled"
    assert "EOFError: EOF when reading a line" in str(found.reason)


def test_a_jitted_step_that_is_named_takes_no_donation_either() -> None:
    with pytest.raises(TypeError, match="step is jitted already, and donate_argnums is for one that is not"):
        verify(make_plan(), f"{MODULE}:jitted", steps.WEIGHTS, steps.BATCH, donate_argnums=0)


def test_a_plan_with_manual_axes_is_named_as_the_cause() -> None:
    with FakeAgent().client() as client:
        plan = client.plan("dp:2,tp:2", target="cpu:4", axis_types={"dp": "manual"})
    found = verify(plan, f"{MODULE}:build")
    assert found.status == "not_compiled"
    assert str(found.reason).startswith("the plan's axis types are dp manual, tp auto")


@needs_libtpu
def test_a_state_in_the_hosts_memory_needs_none_of_the_devices() -> None:
    found = verify(make_plan("v5e:2x2"), f"{MODULE}:build_on_host")
    assert found.status == "verified"
    assert found.peak_memory_bytes is not None
    assert found.peak_memory_bytes < 2**20 < 4096 * 4096 * 4 / 2


@needs_libtpu
def test_on_a_tpu_that_is_not_here_the_compiler_says_what_fits() -> None:
    check_data_parallel(verify(make_plan("v5e:2x2"), f"{MODULE}:build"))
    found = verify(make_plan("v5e:2x2"), f"{MODULE}:build_huge")
    assert found.status == "does_not_fit"
    assert found.needed_bytes is not None
    assert found.capacity_bytes is not None
    assert found.needed_bytes > found.capacity_bytes > 15 * 2**30


@needs_libtpu
def test_of_jaxs_own_kernels_the_report_says_what_the_compiler_does_not_tell() -> None:
    for step, says, sends in (
        ("build_splash_attention", "their time (splash_mha_fwd", False),
        ("build_ring_all_gather", "what they send between devices", True),
    ):
        found = verify(make_plan("v5e:2x2"), f"{MODULE}:{step}")
        assert (found.status, found.collectives) == ("verified", ())
        (kernels,) = found.warnings
        assert (kernels.code, says in kernels.message, "send" in kernels.message) == ("custom_kernels", True, sends)
