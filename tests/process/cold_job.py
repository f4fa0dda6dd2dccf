"""One process of a job whose last process comes late: what `build_mesh` answers before JAX's backend has started.

Run as `python cold_job.py RANK COUNT PORT STEPS`, STEPS being {"plan": text, "timeout_s": seconds, "came": a path}. The
last process comes when the first one has its answer; then all build the mesh once more.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from one_rank import answer_and_leave, join

from meshwright.errors import PlanMismatchError
from meshwright.mesh import build_mesh

MAX_WAIT_S = 60.0


def main() -> None:
    rank, step, out = join()
    came, error = Path(step["came"]), ""
    if rank == int(sys.argv[2]) - 1:  # JAX would start its backend to tell
        until = time.monotonic() + MAX_WAIT_S
        while not came.exists() and time.monotonic() < until:
            time.sleep(0.05)
    else:
        try:
            build_mesh(step["plan"], timeout_s=step["timeout_s"])
        except PlanMismatchError as refused:
            error = str(refused)
        came.touch()
    mesh = build_mesh(step["plan"])
    answer_and_leave({"error": error, "devices": [device.process_index for device in mesh.devices.flat]}, out)


if __name__ == "__main__":
    main()
