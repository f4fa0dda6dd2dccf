"""Schemathesis over the whole contract, against a real agent of its own: valid and invalid requests for every route.

No answer is a server error, each conforms to the document, and what the document forbids is refused. Examples are
derandomized, so that a run says the same as the last; FUZZ_EXAMPLES=500 looks for more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from tests.agents import RunningAgent, start_agent, wait_for
from tests.contract.openapi import SNAPSHOT

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))
LARGE = "all" if "FUZZ_EXAMPLES" in os.environ else "positive"
SMALL_BENCH = {"cases": ["host_to_device"], "sizes_bytes": [4096], "samples": 3}
CONFIG = SchemathesisConfig.from_dict(
    {
        # A mesh can be well formed and still not fit these devices: the document cannot say so, a 422 does.
        # The agent has no tokens, so any Authorization is as good as none.
        "checks": {
            "ignored_auth": {"enabled": False},
            "positive_data_acceptance": {"expected-statuses": ["2xx", "3xx", "404", "409", "422", "429"]},
            "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "409", "413", "415", "422", "429"]},
        },
        "operations": [
            # The only route with a documented header. Schemathesis counts others as invalid input; HTTP allows them.
            {"include-path": "/events/stream", "generation": {"allow-extra-parameters": False}},
            # The models that wrote the document refuse all 3,900 systematic mistakes; `make fuzz` alone makes them.
            {"include-path": ["/mesh/plan", "/mesh/search"], "phases": {"coverage": {"generation": {"mode": LARGE}}}},
        ],
    }
)
schema = schemathesis.openapi.from_path(SNAPSHOT, config=CONFIG)


@dataclass(frozen=True)
class Target:
    """An agent to be fuzzed, and ids that it knows."""

    agent: RunningAgent
    http: httpx.Client
    known: dict[str, str]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with start_agent(cpu_devices=2) as agent, httpx.Client(base_url=agent.url, timeout=60) as http:
        fingerprint = http.get("/mesh/plan?mesh=dp:2").json()["plans"][0]["fingerprint"]
        run_id = http.post("/placement/bench", json=SMALL_BENCH).json()["id"]
        wait_for(lambda: http.get(f"/runs/{run_id}").json()["state"] == "succeeded", agent)
        yield Target(agent, http, {"fingerprint": fingerprint, "run_id": run_id})


def _name_what_exists(case: schemathesis.Case, known: dict[str, str]) -> None:
    """Replaces every other made-up, well-formed id by one that exists: the routes answer from the store as well."""
    for name, value in (case.path_parameters or {}).items():
        if name in known and isinstance(value, str) and value.isalnum() and len(value) <= 128 and len(value) % 2:
            case.path_parameters[name] = known[name]


def _plan_what_fits(case: schemathesis.Case) -> None:
    """Gives every other well-formed request for a plan a mesh that these devices have: else hardly one is answered."""
    wanted = case.body
    is_valid = case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if is_valid and isinstance(wanted, dict) and "mesh" in wanted and len(str(wanted["mesh"])) % 2:
        case.body = {**wanted, "mesh": "dp:2,tp:-1", "devices": None, "axis_types": "auto"}


def _end_what_began(http: httpx.Client, response: Any) -> None:
    """Cancels the run or ends the lease that a request began: the queue stays short, worker and devices stay free."""
    if response.status_code in {201, 202} and "location" in response.headers:
        http.delete(response.headers["location"][0])


@schema.parametrize()
@settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_what_the_contract_says(case: schemathesis.Case, target: Target) -> None:
    _name_what_exists(case, target.known)
    _plan_what_fits(case)
    response = case.call(base_url=target.agent.url, timeout=1 if case.path.endswith("/stream") else 60)  # no end
    _end_what_began(target.http, response)
    case.validate_response(response)


def test_the_agent_has_survived_it(target: Target) -> None:
    assert target.http.get("/readyz").status_code == 200
    assert target.http.post("/mesh/plan", json={"mesh": "dp:2"}).status_code == 200
    reply = target.http.post("/placement/bench", json=SMALL_BENCH)
    assert reply.status_code == 202, reply.text
    run_id = reply.json()["id"]
    wait_for(lambda: target.http.get(f"/runs/{run_id}").json()["state"] == "succeeded", target.agent)
    assert "Traceback" not in target.agent.log_text()
