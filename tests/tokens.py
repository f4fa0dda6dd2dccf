"""The agent's token file as its page describes it: a line is `name scope sha256:<of the secret>`."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path


def add_token(path: Path, name: str, scope: str, *, secret: str | None = None) -> str:
    """Adds a token to a file, which is made if it is not there; returns its secret."""
    secret = secret or f"mw_{secrets.token_urlsafe(32)}"
    before = path.read_text() if path.exists() else ""
    replace_file(path, f"{before}{name} {scope} sha256:{hashlib.sha256(secret.encode()).hexdigest()}\n".encode())
    return secret


def remove_token(path: Path, name: str) -> None:
    """Takes a token out, if it is there."""
    lines = path.read_text().splitlines(keepends=True)
    replace_file(path, "".join(line for line in lines if line.split()[:1] != [name]).encode())


def replace_file(path: Path, content: bytes) -> str:
    """Writes beside and renames: an agent that reads the file sees it before or after. Returns its path."""
    draft = path.with_name(f".{path.name}.draft")
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.rename(path)
    return str(path)
