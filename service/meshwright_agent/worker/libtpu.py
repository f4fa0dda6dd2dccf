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
_OLD: Final = "this libtpu has no SDK (libtpu.sdk); newer ones have: pip install -U 'jax[tpu]'"


def read_scores(load: Callable[[str], Any] = importlib.import_module) -> dict[str, Any]:
    """Returns the lines of both metrics as `links` and `throttles`; None where libtpu does not tell them.

    Under `unavailable` it says why links are not told; None: they are. Not every chip has the other metric.

    Args:
        load: imports a module by its name.
    """
    try:
        asked, own = os.environ.get(PATH_VARIABLE), load("libtpu").get_library_path()
        if asked and os.path.realpath(asked) != os.path.realpath(own):
            return {"unavailable": f"{PATH_VARIABLE} names another libtpu than the package's, which has the SDK"}
        monitoring = load("libtpu.sdk").tpumonitoring
    except (ImportError, AttributeError):
        return {"unavailable": _OLD}
    links, fault = _read_lines(monitoring, LINKS)
    return {"links": links, "throttles": _read_lines(monitoring, THROTTLES)[0], "unavailable": fault}


def _read_lines(monitoring: Any, metric: str) -> tuple[list[str] | None, str | None]:
    """Returns the lines of a metric, or why there are none."""
    try:
        return [str(line) for line in monitoring.get_metric(metric).data()], None
    except Exception as error:  # whatever a library in C++ makes of a metric that this chip has not
        return None, f"libtpu does not tell {metric}: {str(error) or type(error).__name__}"
