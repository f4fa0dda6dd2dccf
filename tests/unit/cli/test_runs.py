from __future__ import annotations

from meshwright import errors
from meshwright.wire.runs import Progress
from tests.unit.cli.conftest import CommandLine


def test_runs_are_listed_newest_first_with_state_and_progress(meshwright: CommandLine) -> None:
    meshwright("bench", "--case", "matmul")
    meshwright.fake.runs.held = True
    with meshwright.fake.client() as client:
        run = client.submit_bench()
    meshwright.fake.runs.advance(run.id, Progress(done=3, total=13, message="permute"))
    lines = [line.split() for line in meshwright("runs", "list").out.splitlines() if line.startswith("run-")]
    assert [line[2] for line in lines] == ["running", "succeeded"]
    assert lines[0][-2:] == ["3/13", "permute"]


def test_no_runs_are_told(meshwright: CommandLine) -> None:
    assert meshwright("runs", "list").out == "no runs\n"


def test_a_failed_run_shows_why(meshwright: CommandLine) -> None:
    meshwright.fake.runs.outcome = errors.WorkerFailedError("killed by signal 11")
    meshwright("bench")
    assert "killed by signal 11" in meshwright("runs", "list").out


def test_a_running_run_is_cancelled(meshwright: CommandLine) -> None:
    meshwright.fake.runs.held = True
    with meshwright.fake.client() as client:
        run = client.submit_bench()
    printed = meshwright("runs", "cancel", run.id)
    assert (printed.code, printed.out) == (0, f"{run.id} was cancelled: by request (DELETE)\n")
    row = next(line for line in meshwright("runs", "list").out.splitlines() if line.startswith(run.id))
    assert row.count(run.id) == 1
    assert row.rstrip().endswith("by request (DELETE)")


def test_a_run_that_is_over_stays_as_it_is(meshwright: CommandLine) -> None:
    meshwright("bench", "--case", "matmul")
    with meshwright.fake.client() as client:
        run = client.runs().runs[0]
    assert meshwright("runs", "cancel", run.id).out == f"{run.id} succeeded\n"


def test_an_unknown_run_is_1(meshwright: CommandLine) -> None:
    printed = meshwright("runs", "cancel", "run-nope")
    assert printed.code == 1
    assert "run-nope" in printed.err
