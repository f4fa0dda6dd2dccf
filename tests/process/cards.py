"""Recorded hosts with a driver, a fake `pynvml` in the agent's processes; CPU devices of JAX stand for its cards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tests
from tests.fakes.tree import RECORDED, plant_host
from tests.fakes.well import WELL

DOCUMENT: dict[str, Any] = json.loads((RECORDED / "dgx-h100/nvml.json").read_text())
"""Eight cards, of which the fourth has a job."""


def plant_cards(folder: Path, cards: Iterable[dict[str, Any]], *, seen: int = 0) -> dict[str, str]:
    """Returns the settings of a host whose driver lists these cards, all well; JAX sees `seen`, or only CPUs."""
    root, gpus = Path(tests.__file__).parents[1], [{**card, **WELL} for card in cards]
    (folder / "nvml.json").write_text(json.dumps({**DOCUMENT, "gpus": gpus}))
    stand_in = "from tests.fakes.altered import stand_in_for_a_card; stand_in_for_a_card()" if seen else ""
    (folder / "sitecustomize.py").write_text(stand_in)
    paths = (str(folder), str(root / "tests/fakes/as_pynvml"), str(root), os.environ.get("PYTHONPATH"))
    return {
        **plant_host("dgx-h100" if gpus else "cpu-vm", folder / "host"),
        "FAKE_NVML": str(folder),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(seen or 1),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
