from __future__ import annotations

from meshwright import errors
from meshwright.testing import FakeAgent
from meshwright.wire.runs import Progress
from tests.fakes.scripted import end_run
from tests.fakes.stored import build_run
from tests.unit.cli.conftest import CommandLine


def _submit(fake: FakeAgent, **fields: object) -> str:
    """Starts a bench that is as told from then on; returns its id."""
    fake.answer("POST", "/placement/bench", build_run(**fields))  # type: ignore[arg-type]
    with fake.client() as client:
        return client.submit_bench().id


def test_runs_are_listed_newest_first_with_state_and_progress(meshwright: CommandLine) -> None:
    assert meshwright("runs", "list").out == "no runs\n"
    _submit(meshwright.fake, number=1, state="succeeded")
    _submit(meshwright.fake, number=2, state="running", progress=Progress(done=3, total=13, message="permute"))
    lines = [line.split() for line in meshwright("runs", "list").out.splitlines() if line.startswith("run-")]
    assert [line[2] for line in lines] == ["running", "succeeded"]
    assert lines[0][-2:] == ["3/13", "permute"]


def test_a_failed_run_shows_why(meshwright: CommandLine) -> None:
    killed = errors.UnavailableError(f"killed by signal 11, {'and more, ' * 20}the end", code="worker_failed")
    meshwright.fake.answer("POST", "/placement/bench", end_run(killed))
    meshwright("bench")
    (row,) = (line for line in meshwright("runs", "list").out.splitlines() if line.startswith("run-"))
    assert ("killed by signal 11" in row, row.rstrip().endswith("…")) == (True, True)
    assert "the end" in meshwright("runs", "show", row.split()[0]).out


def test_a_running_run_is_cancelled(meshwright: CommandLine) -> None:
    run_id = _submit(meshwright.fake, state="running")
    printed = meshwright("runs", "cancel", run_id)
    assert (printed.code, printed.out) == (0, f"{run_id} was cancelled: by request (DELETE)\n")
    row = next(line for line in meshwright("runs", "list").out.splitlines() if line.startswith(run_id))
    assert row.count(run_id) == 1
    assert row.rstrip().endswith("by request (DELETE)")


def test_a_run_that_is_over_stays_as_it_is_and_a_newer_agents_result_is_left_out(meshwright: CommandLine) -> None:
    run_id = _submit(meshwright.fake, state="succeeded", result={"records": [{"case": "new"}]})
    assert meshwright("runs", "show", run_id).code == 0
    assert meshwright("runs", "cancel", run_id).out == f"{run_id} succeeded\n"
