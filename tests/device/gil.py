"""A device worker that can be made to hang with the GIL held, deaf to SIGTERM, while it has its devices.

Rule: the worker is the real one; a `sitecustomize` on its path adds a thread that waits for a file to appear.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

_TEXT: Final = """
import os, sys
if "meshwright_agent.children.device" in sys.orig_argv:
    import ctypes, threading, time
    def hang(wish={wish!r}):
        while not os.path.exists(wish):
            time.sleep(0.02)
        c = ctypes.PyDLL(None)
        c.signal(15, ctypes.c_void_p(1))
        sys.setswitchinterval(1000)
        c.creat((wish + ".granted").encode(), 0o600)
        c.usleep(600_000_000)
    threading.Thread(target=hang, daemon=True).start()
"""
"""1 is SIG_IGN. A call by PyDLL keeps the GIL, and between two nobody else gets it: the last one ends everything."""


def plant_hang(folder: Path) -> str:
    """Returns the PYTHONPATH of an agent whose worker hangs once `wish_hang` was called."""
    (folder / "sitecustomize.py").write_text(_TEXT.format(wish=str(folder / "wish")))
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def wish_hang(folder: Path) -> None:
    """Makes the worker hang; `is_granted` tells when it does."""
    (folder / "wish").touch()


def is_granted(folder: Path) -> bool:
    """Returns whether the worker hangs."""
    return (folder / "wish.granted").exists()


def is_deaf(pid: int) -> bool:
    """Returns whether a process ignores SIGTERM: proc(5), SigIgn."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return bool(mask >> (signal.SIGTERM - 1) & 1)


def forget(folder: Path) -> None:
    """Lets the next worker be."""
    for name in ("wish", "wish.granted"):
        (folder / name).unlink(missing_ok=True)
