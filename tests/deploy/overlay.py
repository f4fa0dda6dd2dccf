"""This machine's files under an overlay: a root that is written to as one likes, and of which nothing stays."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def overlaid() -> Iterator[Path]:
    """Yields a root that is this machine's until it is written to; all that is written is memory, and goes."""
    base = Path("/run") / f"meshwright-boot-{uuid.uuid4().hex[:8]}"
    base.mkdir()
    mounts: list[Path] = []
    try:
        run(["mount", "-t", "tmpfs", "none", str(base)])
        mounts.append(base)
        parts = {name: base / name for name in ("upper", "work", "root")}
        for part in parts.values():
            part.mkdir()
        options = f"lowerdir=/,upperdir={parts['upper']},workdir={parts['work']}"
        run(["mount", "-t", "overlay", "overlay", "-o", options, str(parts["root"])])
        mounts.append(parts["root"])
        yield parts["root"]
    finally:
        for mount in reversed(mounts):
            subprocess.run(["umount", "--lazy", str(mount)], check=False)
        base.rmdir()


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine cannot boot a container: {' '.join(command)}: {done.stderr.strip()}")
