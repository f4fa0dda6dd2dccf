"""`meshwright-agent`, also as `python -m meshwright_agent`."""

from __future__ import annotations

from meshwright_agent.cli import main

if __name__ == "__main__":
    main()
