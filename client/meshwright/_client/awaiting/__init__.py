"""AsyncClient: the same as `blocking.Client`, method by method, for asyncio."""

from __future__ import annotations

from meshwright._client.awaiting.host import AsyncHostCalls
from meshwright._client.awaiting.leases import AsyncLeaseCalls
from meshwright._client.awaiting.plans import AsyncPlanCalls
from meshwright._client.awaiting.runs import AsyncRunCalls

__all__ = ["AsyncClient"]


class AsyncClient(AsyncHostCalls, AsyncPlanCalls, AsyncRunCalls, AsyncLeaseCalls):
    """An agent, for asyncio. Tasks of one event loop may share one.

    Args:
        base_url: "http://host:8790", "https://…" or "unix:///path"; None: MESHWRIGHT_URL, else the default
            port of this host.
        token: sent as a bearer token; None: MESHWRIGHT_TOKEN, else the content of MESHWRIGHT_TOKEN_FILE.
        timeout: seconds that one answer may take; None waits for ever. A `http_client` keeps its own.
        max_retries: how often a request is sent again when the agent does not answer, is busy or fails.
        transport: passed to httpx as it is, such as `httpx.MockTransport`; None: TCP, or the unix socket.
        http_client: a pool to send with, such as an `httpx.AsyncClient`; it is
            not closed.
        pause: waits between retries, given seconds; None: `asyncio.sleep`.

    Raises:
        SettingsError: the address, the token or a file that the environment names cannot be used.

    Every method raises AgentConnectionError when nobody answers, AgentTimeoutError when the answer takes too
    long, and the class of `meshwright.errors` that the agent's problem names.
    """
