"""The module `pynvml` of a child that has this folder on its PYTHONPATH: a fake driver, told by files what happens.

FAKE_NVML names a folder: `nvml.json` is the document of `FakeNvml`, read at each start; each line that `events` gains
is an event, as JSON. Events from before the driver was loaded are not told, as NVML tells none. A pipe in the place of
`events` hangs whoever waits, in a system call.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
del sys.modules["pynvml"]

from tests.fakes.nvml import FakeNvml  # noqa: E402 — it imports the real module, which this one has hidden


class _EventFile:
    """Reads a file as it grows, from its end on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = path.stat().st_size if path.is_file() else 0

    def __call__(self) -> Sequence[int] | None:
        with self._path.open() as file:
            file.seek(self._place)
            line = file.readline()
        if not line.endswith("\n"):
            return None
        self._place += len(line)
        event: list[int] = json.loads(line)
        return event


def _build() -> FakeNvml:
    folder = Path(os.environ["FAKE_NVML"])
    return FakeNvml(json.loads((folder / "nvml.json").read_text()), next_event=_EventFile(folder / "events"))


sys.modules["pynvml"] = _build()  # type: ignore[assignment]
