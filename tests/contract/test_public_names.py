"""The names that people import: exactly these, and cheap to import."""

from __future__ import annotations

import json
import subprocess
import sys
import typing

import pytest

import meshwright
import meshwright.errors
import meshwright.testing
from tests.contract.openapi import SNAPSHOT

PUBLIC = {
    "AgentConnectionError", "AgentTimeoutError", "AsyncClient", "BenchOptions", "Client", "ConflictError",
    "DeviceBusyError", "DeviceLeasedError", "Fleet", "FleetIncompleteError", "FleetState", "ForbiddenError", "Held",
    "InvalidMeshError", "InvalidRequestError", "MeshSpec", "MeshwrightError", "NotFoundError",
    "PlanInfeasibleError", "PlanMismatchError", "PlanOptions", "ProblemError", "QueueFullError", "Readiness",
    "RequestError", "RunFailedError", "SearchOptions", "SettingsError", "UnauthorizedError", "UnavailableError",
    "UnknownHardwareError", "load_plan",
}  # fmt: skip
METHODS = {
    "acknowledge", "alive", "base_url", "batch_size", "bench", "cancel_run", "close", "devices", "devices_text",
    "end_lease", "environment", "events", "follow_events", "get_lease", "get_plan", "get_verdict", "health",
    "hold", "latest_bench", "lease", "leases", "metrics", "plan", "put_verdict", "ready", "release", "renew_lease",
    "run", "run_events", "runs", "search", "start_preflight", "submit_bench", "targets", "wait",
}  # fmt: skip


def test_the_package_exports_these_names_in_order() -> None:
    assert set(meshwright.__all__) == PUBLIC
    assert list(meshwright.__all__) == sorted(meshwright.__all__)


def test_every_exported_name_is_there_and_listed_by_dir() -> None:
    for name in meshwright.__all__:
        assert getattr(meshwright, name).__name__ == name
    assert set(dir(meshwright)) >= PUBLIC


@pytest.mark.parametrize("cls", [meshwright.Client, meshwright.AsyncClient])
def test_the_clients_have_these_methods(cls: type) -> None:
    assert {name for name in dir(cls) if not name.startswith("_")} == METHODS


@pytest.mark.parametrize("cls", [meshwright.Client, meshwright.AsyncClient])
def test_the_annotations_of_public_names_can_be_read(cls: type) -> None:
    methods = {name: getattr(cls, name) for name in METHODS - {"base_url"}}
    options = (meshwright.BenchOptions, meshwright.PlanOptions, meshwright.SearchOptions)
    assert all(map(typing.get_type_hints, (*methods.values(), *options)))


def test_the_fake_is_exported_for_users_own_tests() -> None:
    assert meshwright.testing.__all__ == ["FakeAgent"]


def test_the_fake_answers_every_route_but_those_for_curl() -> None:
    paths = json.loads(SNAPSHOT.read_text())["paths"]
    there = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    assert there - set(meshwright.testing._ROUTES) == {"GET /mesh/plan", "GET /batch-size"}


def _modules_after(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


HEAVY = {"jax", "jaxlib", "numpy", "fastapi", "uvicorn", "starlette", "typer"}


def test_importing_the_package_loads_nothing_heavy_and_no_http_library() -> None:
    assert not _modules_after("import meshwright") & (HEAVY | {"httpx", "pydantic"})


def test_the_command_line_loads_no_more_than_its_own_library() -> None:
    loaded = _modules_after("import typer, meshwright.cli as cli; {**typer.main.get_command(cli.app).commands}")
    assert not {name for name in loaded if name.partition(".")[0] in HEAVY - {"typer"} | {"meshwright_agent"}}
    assert "httpx" not in loaded


@pytest.mark.parametrize(
    "statement", ["from meshwright import Client, AsyncClient, Fleet, load_plan", "import meshwright.testing"]
)
def test_the_client_and_its_fake_load_neither_jax_nor_numpy_nor_the_service(statement: str) -> None:
    loaded = _modules_after(statement)
    assert "httpx" in loaded
    assert not loaded & HEAVY
    assert not [name for name in loaded if name.startswith("meshwright_agent")]
