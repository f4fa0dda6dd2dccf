"""The agent is restarted under load, and upgraded while it works: clients see no error, runs end with the reason."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from meshwright import Client
from meshwright.errors import NotFoundError
from tests.agents import RunningAgent, start_agent, wait_for
from tests.process.living import (
    QUICK,
    ask,
    await_end,
    await_state,
    is_alive,
    list_children,
    post_bench,
    read_run,
    start_long_bench,
    stopped,
)
from tests.process.test_leases import lease, put_lease
from tests.process.test_verified_plans import await_compiler, build_request, submit

pytestmark = pytest.mark.exhaustive

MAX_RETRIES = 30
"""Many more than the default, which outlast a start on a machine that does nothing else."""

Told = tuple[list[object], list[Exception]]
"""What was answered, and what was raised."""


@contextlib.contextmanager
def asking(uds: Path, question: Callable[[Client], object]) -> Iterator[Told]:
    """Asks again and again for the length of the block; yields the answers and the errors, as they come."""
    answered: list[object] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def ask_on() -> None:
        with Client(f"unix://{uds}", max_retries=MAX_RETRIES) as client:
            while not ended.is_set():
                try:
                    answered.append(question(client))
                except Exception as error:
                    errors.append(error)

    asker = threading.Thread(target=ask_on)
    asker.start()
    try:
        yield answered, errors
    finally:
        ended.set()
        asker.join(timeout=120)


def reserve(client: Client) -> object:
    """Returns a lease that has ended; that a repeated end finds it ended already is no error of the restart."""
    lease = client.lease([1], purpose="job 7", ttl_s=60)
    with contextlib.suppress(NotFoundError):
        client.end_lease(lease)
    return lease


QUESTIONS: dict[str, Callable[[Client], object]] = {
    "devices": lambda client: client.devices(),
    "plan": lambda client: client.plan("dp:1", allow_unused=True),
    "health": lambda client: client.health(),
    "lease": reserve,
}


def await_answers(agent: RunningAgent, told: Sequence[Told]) -> None:
    """Waits until each who asks has been answered ten times by this agent."""
    goals = [(answered, len(answered) + 10) for answered, _ in told]
    wait_for(lambda: all(len(answered) >= goal for answered, goal in goals), agent, limit_s=120)


@pytest.mark.timeout(600)
# httpcore leaves closing to the collector:
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_that_is_restarted_under_load_is_hidden_by_the_clients_retries(tmp_path: Path) -> None:
    uds, state_dir = tmp_path / "agent.sock", tmp_path / "state"
    start = functools.partial(start_agent, cpu_devices=2, state_dir=state_dir, uds=uds)
    with contextlib.ExitStack() as askers:
        told: list[Told] = []
        for how in ("stopped", "killed"):
            with start() as agent:
                if not told:
                    told = [askers.enter_context(asking(uds, question)) for question in QUESTIONS.values()]
                await_answers(agent, told)
                if how == "killed":
                    agent.kill()
                else:
                    assert agent.stop() == 0
        with start() as agent:
            await_answers(agent, told)
            askers.close()
            assert [errors for _, errors in told] == [[]] * len(QUESTIONS)


def test_an_upgrade_ends_a_bench_and_a_compile_as_cancelled_with_the_reason_and_leaves_the_leases(
    tmp_path: Path,
) -> None:
    with start_agent(cpu_devices=3, state_dir=tmp_path) as before:
        await_state(before, "driver", "healthy")  # until then the host's memory is not known, and a bench is small
        compiling = submit(before, build_request(2))
        job = lease(before, [2], ttl_s=1000, purpose="slurm job 7", lease_id="job-7")
        own = lease(before, [0, 1], ttl_s=1000, purpose="acceptance", preemptible=True)
        with stopped(await_compiler(before, compiling)):  # it does not end by itself meanwhile
            running = [start_long_bench(before, devices=[0, 1], lease=own["id"]), compiling]
            children = list_children(before.pid)
            assert before.stop() == 0
        wait_for(lambda: not any(map(is_alive, children)), limit_s=10)
    with start_agent(cpu_devices=3, state_dir=tmp_path) as after:
        for run in (read_run(after, run_id) for run_id in running):
            assert (run["state"], run["error"]["code"]) == ("cancelled", "run_cancelled")
            assert "the agent is shutting down" in run["error"]["detail"]
        assert ask(after, "/runs?state=running")["runs"] == []
        kept = ask(after, "/leases")["leases"]
        purposes = [(each["id"], each["purpose"]) for each in kept]
        assert purposes == [(job["id"], "slurm job 7"), (own["id"], "acceptance")]
        assert all(900 < each["expires_in_s"] < 1000 for each in kept)
        refused = post_bench(after, {**QUICK, "devices": [2], "lease": own["id"]})
        assert (refused.status_code, refused.json()["code"]) == (409, "device_leased")
        assert put_lease(after, [2], ttl_s=1000, purpose="slurm job 7", lease_id="job-7").json()["id"] == job["id"]
        again = await_end(after, post_bench(after, {**QUICK, "devices": [0, 1], "lease": own["id"]}).json()["id"])
        assert again["state"] == "succeeded", again["error"]
