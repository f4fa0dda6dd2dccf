"""A real agent with few file descriptors: `python -m tests.faults.confined serve …`; MW_DESCRIPTORS has the two limits.

Rule: they are set before anything of the agent is imported, as systemd's LimitNOFILE and `ulimit -n` do; all else is
the agent's own.
"""

from __future__ import annotations

import os
import resource


def main() -> None:
    """Serves as `meshwright-agent serve` does."""
    soft, hard = map(int, os.environ["MW_DESCRIPTORS"].split(":"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    from meshwright_agent.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
