"""What a device worker on TPUs imports, as files: `jax` with the devices of a recorded machine, `libtpu` with its SDK.

What the SDK tells is in `scores.json`, read at each question: the lines of each metric; "hang" and "die" are what they
say. Lines are as in the description() of the real SDK, which tests/unit/worker/test_libtpu.py reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.machines import RECORDED

_JAX = """
import json
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.10.2"
_view = json.loads((Path(__file__).parent / "view.json").read_text())
_client = SimpleNamespace(process_index=lambda: 0)


def _build(told):
    fields = {name: value for name, value in told.items() if name not in ("kind", "memory_stats")}
    return SimpleNamespace(
        **fields, device_kind=told["kind"], memory_stats=lambda: told["memory_stats"], client=_client
    )


_devices = [_build(told) for told in _view["devices"]]
devices = local_devices = lambda backend=None: list(_devices)
default_backend = lambda: "tpu"
process_index = lambda: 0
process_count = lambda: 1
Device = SimpleNamespace
"""

_SDK = """
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace


def _get_metric(name):
    told = json.loads((Path(__file__).parent / "scores.json").read_text())
    if told == "hang":
        time.sleep(3600)
    if told == "die":
        os.abort()
    return SimpleNamespace(data=lambda: told[name])


tpumonitoring = SimpleNamespace(get_metric=_get_metric)
"""


class TpuWorker:
    """Modules below a folder, and what they tell.

    Attributes:
        path: PYTHONPATH under which they are found first.
    """

    def __init__(self, folder: Path, machine: str) -> None:
        texts = {
            "jax/__init__.py": _JAX,
            "jax/extend/__init__.py": "",
            "jax/extend/backend.py": "",
            "jax/view.json": (RECORDED / machine / "jax.json").read_text(),
            "libtpu/__init__.py": "def get_library_path():\n    return __file__\n",
            "libtpu/sdk.py": _SDK,
        }
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self._scores = folder / "libtpu" / "scores.json"
        self.path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))

    def tell(self, scores: Mapping[str, Any] | str) -> None:
        """Lets libtpu tell this from now on."""
        fresh = self._scores.with_suffix(".new")
        fresh.write_text(json.dumps(scores))
        fresh.replace(self._scores)
