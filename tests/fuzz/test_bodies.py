"""No well-formed body makes a server error: real bodies of every route, with values and names in them exchanged.

The generator is seeded, so that a run says the same as the last; FUZZ_EXAMPLES=1000 sends 6,000 bodies.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.agents import RunningAgent, start_agent
from tests.fuzz import scale

pytestmark = pytest.mark.exhaustive

BODIES: Final = 180
TRAINING: Final = {"seq_len": 4096, "global_batch_size": 64}
MODEL: Final = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
SEEDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/mesh/plan", {"mesh": "dp:2,tp:4", "importance": {"tp": 8.0}, "axis_types": ["auto", "explicit"]}),
    ("/mesh/plan", {"mesh": {"dp": 2, "tp": 4}, "devices": {"count": 8, "exclude": [3]}}),
    ("/mesh/plan", {"mesh": [["dp", 2], ["tp", -1]], "target": "2*v5e:2x2", "dcn": {"dp": 2}}),
    ("/mesh/plan", {"mesh": "fsdp:8", "target": "h100:8", "model": "llama3-8b", "training": TRAINING}),
    ("/mesh/search", {"targets": ["h100:8"], "model": MODEL, "training": TRAINING, "top": 2, "axes": {"tp": 2}}),
    ("/mesh/search", {"targets": ["h100:8", "v5e:2x2"], "model": MODEL, "training": TRAINING, "fallback": True}),
    ("/batch-size", {"hardware": "h100", "per_device_batch_size": 256}),
    ("/batch-size", {"model": "llama3-8b", "target": "v5e:4x4", "mesh": "fsdp:16", "training": {"seq_len": 64}}),
    ("/batch-size", {"model": MODEL, "target": "h100:8", "mesh": {"fsdp": 8}}),
    ("/placement/bench", {"suite": "quick", "cases": ["host_to_device"], "sizes_bytes": [4096]}),
    ("/leases/slurm-1", {"devices": [0, 1], "purpose": "job 7", "ttl_s": 30.0, "preemptible": True}),
    ("/devices/release", {}),
    ("/health/acknowledge", {"component": "device:0", "reason": "seen"}),
)
LONG: Final = "x" * 70_000
"""Beyond what the event loop parses: such a plan goes to the planner as text."""
ODD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**20, int("9" * 400), -(10**400), 0.5, 1e308, -1e-308, "", " ", "0", "-1",
    "\ud800", "a\udfffb", "\x00", "😀", "dp:2", "h100:8", "64*h100:8", "v5e:2x2", "dp:" + "9" * 400, "x" * 5000, LONG,
    [], [[]], {}, {"a": {}}, {"\ud800": 1}, [None], ["dp", 2], {"dp": int("9" * 400)}, [["dp", 10**300]], "compile",
)  # fmt: skip


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=None, MESHWRIGHT_SIMULATE="h100:8") as running:
        yield running


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (container, key) of everything in a body, outermost first."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from list_places(inner)


def mutate(body: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Returns a body in which one to three values or names are others."""
    mutated: dict[str, Any] = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice([(mutated, chance.choice([*mutated, "model"])), *list_places(mutated)])
        kind = chance.randrange(8)
        if kind == 0 and isinstance(container, dict) and key in container:
            container[chance.choice(["\ud800", "😀", "k" * 300, "mesh", "model", "target"])] = container.pop(key)
        elif kind == 1 and isinstance(container, dict):
            container.pop(key, None)
        else:
            container[key] = copy.deepcopy(chance.choice(ODD))
        if kind == 2:
            mutated["target"] = chance.choice(["\udc00", "h100:8", "cpu:4", "9" * 400 + "*h100:8"])
    return mutated


@pytest.mark.timeout(7200)
def test_no_body_that_is_json_makes_a_server_error(agent: RunningAgent) -> None:
    chance = random.Random(7)
    statuses: set[int] = set()
    with httpx.Client(base_url=agent.url, timeout=90) as http:
        for number in range(scale(BODIES)):
            path, seed = SEEDS[number % len(SEEDS)]
            body = json.dumps(mutate(seed, chance))
            method = "PUT" if path.startswith("/leases") else "POST"
            response = http.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert response.status_code < 500, f"{path} {body[:2000]} → {response.status_code} {response.text[:500]}"
            statuses.add(response.status_code)
            if response.status_code == 202:
                http.delete(response.headers["location"])
            if path.startswith("/leases") and response.status_code == 201:
                http.delete(f"/leases/{response.json()['id']}")
    assert {200, 422} <= statuses
    assert agent.process.poll() is None
    assert "Traceback" not in agent.log_text()
