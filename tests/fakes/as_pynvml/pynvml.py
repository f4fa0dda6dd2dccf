"""The module `pynvml` of a child that has this folder on its PYTHONPATH: a fake driver of a document.

FAKE_NVML names a folder: `nvml.json` is the document of `FakeNvml`, read at each start.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
del sys.modules["pynvml"]

from tests.fakes.nvml import FakeNvml  # noqa: E402 — it imports the real module, which this one has hidden

document = json.loads((Path(os.environ["FAKE_NVML"]) / "nvml.json").read_text())
sys.modules["pynvml"] = FakeNvml(document)  # type: ignore[assignment]
