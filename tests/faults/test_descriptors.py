"""Too few file descriptors: connections are refused; children start, and whoever is connected is answered."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import connect_many, count_descriptors, limit_descriptors

pytestmark = pytest.mark.exhaustive

DESCRIPTORS = 224
OWN = 128
"""Descriptors that connections leave to the agent: service/README.md, the row "floods"."""
CONNECTIONS = DESCRIPTORS - OWN
BEYOND = 120
SMALL = {"cases": ["matmul"], "samples": 3, "matmul_size": 64}
FITTING = {"model": "llama3-8b", "training": {"global_batch": 64, "sequence_length": 8192}}
BEGUN = b"GET /healthz HTTP/1.1\r\n"
BUG = re.compile(r"request \S+ \S+ failed")
PATIENT = {"MESHWRIGHT_HEADER_TIMEOUT_S": "300"}
"""Connections that send nothing stay for longer than any test."""


@contextlib.contextmanager
def confine(**settings: str) -> Iterator[RunningAgent]:
    """Yields an agent that is started with fewer descriptors than it may have, and may have few."""
    settings = {"MW_DESCRIPTORS": f"64:{DESCRIPTORS}", **settings}
    with start_agent(cpu_devices=2, ready=False, module="tests.faults.confined", **settings) as agent:
        yield agent


def use_everything(kept: httpx.Client, agent: RunningAgent) -> None:
    """Starts every child anew, over a connection that is there already: device worker, probe, planner."""
    kept.post("/devices/release")
    run = kept.post("/placement/bench", json=SMALL).json()["id"]
    wait_for(lambda: kept.get(f"/runs/{run}").json()["state"] in {"succeeded", "failed"}, agent)
    assert kept.get(f"/runs/{run}").json()["state"] == "succeeded"
    assert kept.post("/mesh/plan", json={"mesh": "dp:8", "target": "h100:8", **FITTING}).status_code == 200
    assert kept.post("/mesh/plan", json={"mesh": "dp:2"}).status_code == 200


def read_all(connection: socket.socket) -> bytes:
    chunks = []
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)


def test_connections_leave_room_for_children_and_the_rest_is_refused_in_time() -> None:
    with confine(**PATIENT) as agent, httpx.Client(base_url=agent.url, timeout=60) as kept:
        wait_for(lambda: kept.get("/readyz").status_code == 200, agent)
        assert resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)[0] == DESCRIPTORS
        assert f"at most {CONNECTIONS} connections, and not the 2048" in agent.log_text()
        with connect_many(agent, CONNECTIONS - 1, BEGUN):
            wait_for(lambda: f"connections {float(CONNECTIONS)}" in kept.get("/metrics").text, agent, limit_s=30)
            began_s = time.monotonic()
            with connect_many(agent, BEYOND) as beyond:
                answers = [read_all(connection) for connection in beyond]
            assert time.monotonic() - began_s < 10
            told = [answer for answer in answers if answer]
            assert len(told) >= BEYOND / 2
            assert {answer.split(b" ")[1] for answer in told} == {b"503"}
            assert all(b"too_many_connections" in answer and b"retry-after" in answer for answer in told)
            use_everything(kept, agent)
        assert "out of system resource" not in agent.log_text()
        assert "Traceback" not in agent.log_text()
        wait_for(lambda: httpx.get(f"{agent.url}/healthz").status_code == 200, agent, limit_s=30)


def test_handshakes_that_never_end_leave_room_too(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    trusting = ssl.create_default_context()
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    authority.configure_trust(trusting)
    settings = {
        "MESHWRIGHT_TLS_CERT_FILE": str(tmp_path / "cert.pem"),
        "MESHWRIGHT_TLS_KEY_FILE": str(tmp_path / "key.pem"),
        "MESHWRIGHT_HEADER_TIMEOUT_S": "20",
    }
    with confine(**settings) as agent, httpx.Client(base_url=agent.url, timeout=60, verify=trusting) as kept:
        wait_for(lambda: kept.get("/readyz").status_code == 200, agent)
        with connect_many(agent, DESCRIPTORS + BEYOND):
            most = 0
            began_s = time.monotonic()
            while time.monotonic() - began_s < 3:
                most = max(most, count_descriptors(agent))
                assert kept.get("/healthz").status_code == 200
            assert CONNECTIONS < most <= DESCRIPTORS - OWN / 4
            use_everything(kept, agent)
        assert "out of system resource" not in agent.log_text()
        wait_for(lambda: httpx.get(f"{agent.url}/healthz", verify=trusting).status_code == 200, agent, limit_s=60)


# ---- none at all ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def without_descriptors(agent: RunningAgent) -> Iterator[None]:
    """Leaves the agent no descriptor for the length of the block: connections take the last ones."""
    with limit_descriptors(agent, spare=0), connect_many(agent, 40, BEGUN):
        limit = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)[0]
        wait_for(lambda: count_descriptors(agent) == limit, agent, limit_s=30)
        yield
        assert count_descriptors(agent) == limit


FIRST: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/mesh/plan", {"mesh": "dp:2"}),
    ("GET", "/mesh/plan?mesh=dp:-1", None),
    ("GET", "/targets", None),
    ("GET", "/batch-size", None),
    ("GET", "/batch-size?hardware=v5p", None),
    ("POST", "/batch-size", {"target": "v5p:2x2x2"}),
    ("GET", "/environment", None),
    ("GET", "/devices?format=text", None),
    ("GET", "/", None),
    ("GET", "/docs", None),
    ("GET", "/openapi.json", None),
    ("GET", "/metrics", None),
    ("GET", "/health", None),
    ("GET", "/events", None),
    ("GET", "/runs", None),
    ("GET", "/leases", None),
    ("GET", "/placement/bench", None),
    ("PUT", "/leases/a", {"purpose": "test", "devices": [0]}),
)


def test_the_first_answers_of_an_agent_need_no_file() -> None:
    with start_agent(cpu_devices=2, **PATIENT) as agent, httpx.Client(base_url=agent.url, timeout=60) as kept:
        assert kept.get("/readyz").status_code == 200
        with without_descriptors(agent):
            answers = {
                f"{method} {path}": kept.request(method, path, json=body).status_code for method, path, body in FIRST
            }
            assert set(answers.values()) <= {200, 201}, answers
            run = kept.post("/placement/bench", json=SMALL).json()
            assert run.get("code") != "internal", run
        assert not BUG.search(agent.log_text())


def test_what_needs_a_file_is_503_with_the_time_to_come_back_and_no_bug() -> None:
    with start_agent(cpu_devices=2, **PATIENT) as agent, httpx.Client(base_url=agent.url, timeout=60) as kept:
        assert kept.get("/readyz").status_code == 200
        asked = {
            "a child": {"mesh": "dp:8", "target": "h100:8", **FITTING},
            "a compiler": {"mesh": "dp:2", "verify": "compile", **FITTING},
        }
        with without_descriptors(agent):
            for what, body in asked.items():
                refused = kept.post("/mesh/plan", json=body)
                assert refused.status_code == 503, (what, refused.text)
                assert refused.json()["code"] in {"too_many_connections", "worker_failed", "worker_crashed"}, what
        for body in asked.values():
            assert wait_for(lambda body=body: kept.post("/mesh/plan", json=body).status_code in {200, 202}, agent)
        assert not BUG.search(agent.log_text())
