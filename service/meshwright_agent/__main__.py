"""`meshwright-agent`, also as `python -m meshwright_agent`."""

from __future__ import annotations

import gc

gc.disable()  # imports leave no garbage, and the search for it is a fifth of their time; `serve` enables it
from meshwright_agent.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
