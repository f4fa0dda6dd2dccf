"""`meshwright`, also as `python -m meshwright`."""

from __future__ import annotations

import atexit
import gc

gc.set_threshold(100_000)  # imports leave no garbage; by default the search for it is a fifth of a command's time
atexit.register(gc.freeze)  # nor does Python search at its end what ends with it

from meshwright.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
