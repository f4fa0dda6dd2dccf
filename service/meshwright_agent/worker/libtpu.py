"""What libtpu tells the process that has the TPUs, and no other. Runs in the device worker, after JAX has them.

Rule: only the library that JAX loaded is asked: a second libtpu in one process would want the TPUs for itself. Its
words go on as they are; `facts.tpu_scores` reads them.

Source: libtpu 0.0.42, `libtpu.sdk.tpumonitoring`: help(), and description() of each metric; without TPUs in the process
data() is empty. cloud.google.com/tpu/docs/tpu-monitoring-library.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

LINKS: Final = "ici_link_health"
THROTTLES: Final = "tpu_throttle_score"
PATH_VARIABLE: Final = "TPU_LIBRARY_PATH"


def read_scores(load: Callable[[str], Any] = importlib.import_module) -> dict[str, Any]:
    """Returns `links` and `throttles`: {"lines": [...]}, or {"unavailable": "why"}. Not every chip has both.

    Args:
        load: imports a module by its name.
    """
    try:
        asked, own = os.environ.get(PATH_VARIABLE), load("libtpu").get_library_path()
        if asked and os.path.realpath(asked) != os.path.realpath(own):
            return _refuse(f"{PATH_VARIABLE} names another libtpu than the package's, which has the SDK")
        monitoring = load("libtpu.sdk").tpumonitoring
    except (ImportError, AttributeError):
        return _refuse("this libtpu has no SDK (libtpu.sdk); newer ones have: pip install -U 'jax[tpu]'")
    return {"links": _read_lines(monitoring, LINKS), "throttles": _read_lines(monitoring, THROTTLES)}


def _refuse(why: str) -> dict[str, Any]:
    return {"links": {"unavailable": why}, "throttles": {"unavailable": why}}


def _read_lines(monitoring: Any, metric: str) -> dict[str, Any]:
    try:
        return {"lines": [str(line) for line in monitoring.get_metric(metric).data()]}
    except Exception as error:  # whatever a library in C++ makes of a metric that this chip has not
        return {"unavailable": f"libtpu does not tell {metric}: {str(error) or type(error).__name__}"}
