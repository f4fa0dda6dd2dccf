"""Takes the place of a preflight's process: its driver never opens the devices."""

import sys
import time

if "meshwright_agent.children.preflight" in sys.orig_argv:
    import jax

    jax.local_devices = lambda: time.sleep(3600)
