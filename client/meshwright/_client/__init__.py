"""Client and AsyncClient: the same methods over one core."""

from __future__ import annotations

from meshwright._client.awaiting import AsyncClient
from meshwright._client.blocking import Client

__all__ = ["AsyncClient", "Client"]
