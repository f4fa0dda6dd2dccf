"""A real agent with few file descriptors: `python -m tests.faults.confined serve …`; MW_DESCRIPTORS has the two limits.

Rule: they are set before anything of the agent is imported, as systemd's LimitNOFILE and `ulimit -n` do; all else is
the agent's own.
"""

from __future__ import annotations

import os
import resource
import runpy


def main() -> None:
    """Serves as `meshwright-agent serve` does."""
    soft, hard = map(int, os.environ["MW_DESCRIPTORS"].split(":"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    runpy.run_module("meshwright_agent", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
