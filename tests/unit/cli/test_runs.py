from __future__ import annotations

import pytest

from meshwright import errors
from meshwright.wire.runs import Progress
from tests.unit.cli.conftest import CommandLine


def test_runs_are_listed_newest_first_with_state_and_progress(meshwright: CommandLine) -> None:
    meshwright("bench", "--case", "matmul")
    meshwright.fake.runs.held = True
    with meshwright.fake.client() as client:
        run = client.submit_bench()
    meshwright.fake.runs.advance(run.id, Progress(done=3, total=13, message="permute"))
    lines = [line.split() for line in meshwright("runs").out.splitlines() if line.startswith("run-")]
    assert [line[2] for line in lines] == ["running", "succeeded"]
    assert lines[0][-2:] == ["3/13", "permute"]


def test_a_bench_is_listed_with_its_devices(meshwright: CommandLine) -> None:
    meshwright("bench", "--case", "matmul")
    meshwright("bench", "--case", "matmul", "--devices", "0,1,2,5")
    lines = [line.split() for line in meshwright("runs").out.splitlines() if line.startswith("run-")]
    assert [line[-3] for line in lines] == ["0-2,5", "all"]


def test_no_runs_are_told(meshwright: CommandLine) -> None:
    assert meshwright("runs").out == "no runs\n"


def test_limit_and_state_go_to_the_agent(meshwright: CommandLine) -> None:
    meshwright("runs", "--limit", "3", "--state", "failed")
    assert meshwright.fake.requests[-1].path == "/runs?limit=3&state=failed"


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--state", "done")])
def test_a_wrong_value_is_2(meshwright: CommandLine, arguments: tuple[str, ...]) -> None:
    assert meshwright("runs", *arguments).code == 2


def test_a_failed_run_shows_why(meshwright: CommandLine) -> None:
    meshwright.fake.runs.outcome = errors.WorkerCrashedError("killed by signal 11")
    meshwright("bench")
    assert "killed by signal 11" in meshwright("runs").out


def test_a_running_run_is_cancelled(meshwright: CommandLine) -> None:
    meshwright.fake.runs.held = True
    with meshwright.fake.client() as client:
        run = client.submit_bench()
    printed = meshwright("cancel", run.id)
    assert (printed.code, printed.out) == (0, f"{run.id} was cancelled: by request (DELETE)\n")
    row = next(line for line in meshwright("runs").out.splitlines() if line.startswith(run.id))
    assert row.count(run.id) == 1
    assert row.rstrip().endswith("by request (DELETE)")


def test_a_run_that_is_cancelled_while_it_is_waited_for_is_said_to_be_once(meshwright: CommandLine) -> None:
    def cancel(delay_s: float) -> None:
        with meshwright.fake.client() as client:
            client.cancel_run(client.runs().runs[0].id)

    meshwright.fake.runs.held = True
    meshwright.pause = cancel
    printed = meshwright("bench")
    assert printed.code == 1
    assert printed.err.count("cancelled:") == 1
    assert printed.err.count("run-") == 1


def test_a_run_that_is_over_stays_as_it_is(meshwright: CommandLine) -> None:
    meshwright("bench", "--case", "matmul")
    with meshwright.fake.client() as client:
        run = client.runs().runs[0]
    assert meshwright("cancel", run.id).out == f"{run.id} succeeded\n"


def test_a_run_that_still_runs_is_1(meshwright: CommandLine) -> None:
    meshwright.fake.runs.held = True
    with meshwright.fake.client() as client:
        run = client.submit_bench()
        meshwright.fake.answer("DELETE", "/runs/{run_id}", client.run(run.id))
    assert meshwright("cancel", run.id).code == 1


def test_an_unknown_run_is_1(meshwright: CommandLine) -> None:
    printed = meshwright("cancel", "run-nope")
    assert printed.code == 1
    assert "run-nope" in printed.err
