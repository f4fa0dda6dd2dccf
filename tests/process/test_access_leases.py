"""Whose a lease is, on real agents with tokens: over TCP, over the unix socket, and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.agents import RunningAgent, start_agent, wait_for
from tests.tokens import add_token


def _ask(agent: RunningAgent, secret: str, method: str, path: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    options = {"json": body} if body else {}
    return httpx.request(method, f"{agent.url}{path}", headers=headers, timeout=60, **options)  # type: ignore[arg-type]


def _take(agent: RunningAgent, secret: str, device: int) -> str:
    made = _ask(agent, secret, "PUT", f"/leases/slurm-{device}", devices=[device], purpose="slurm job 7", ttl_s=600)
    assert made.status_code == 201, made.text
    lease: dict[str, Any] = made.json()
    return str(lease["id"])


def test_a_lease_is_renewed_and_ended_by_the_token_that_took_it_or_by_an_admin_also_after_a_restart(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    prolog, trainer = add_token(path, "prolog", "operate"), add_token(path, "trainer", "operate")
    admin = add_token(path, "root", "admin")
    settings = {"MESHWRIGHT_TOKENS_FILE": str(path), "MESHWRIGHT_UDS_SCOPE": "operate"}
    with start_agent(cpu_devices=4, state_dir=tmp_path / "state", **settings) as agent:
        leases = [_take(agent, prolog, device) for device in range(4)]
    with start_agent(cpu_devices=4, state_dir=tmp_path / "state", **settings) as agent:
        wait_for(lambda: len(_ask(agent, admin, "GET", "/leases").json()["leases"]) == 4, agent)
        own = f"/leases/{leases[0]}"
        again: dict[str, Any] = {"devices": [0], "purpose": "mine"}
        bench: dict[str, Any] = {"cases": ["matmul"], "devices": [0], "lease": leases[0]}
        for method, path, body in (("DELETE", own, {}), ("PUT", own, again), ("POST", "/placement/bench", bench)):
            refused = _ask(agent, trainer, method, path, **body)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
            assert "belongs to prolog, and trainer asks" in refused.json()["detail"]
        kept = _ask(agent, trainer, "GET", f"/leases/{leases[0]}").json()
        assert (kept["owner"], kept["expires_in_s"] > 100) == ("prolog", True)
        renewed = _ask(agent, prolog, "PUT", f"/leases/{leases[0]}", devices=[0], purpose="slurm job 7", ttl_s=900)
        assert (renewed.status_code, renewed.json()["expires_in_s"] > 800) == (200, True)
        assert _ask(agent, prolog, "DELETE", f"/leases/{leases[0]}").status_code == 200
        assert _ask(agent, admin, "DELETE", f"/leases/{leases[1]}").status_code == 200
        with agent.connect() as local:
            assert local.delete(f"/leases/{leases[2]}").status_code == 200  # by the scope that the socket was given
            named = {"Authorization": f"Bearer {trainer}"}
            assert local.delete(f"/leases/{leases[3]}", headers=named).status_code == 403
        assert "caller=token:trainer scope=operate method=DELETE" in agent.log_text()
