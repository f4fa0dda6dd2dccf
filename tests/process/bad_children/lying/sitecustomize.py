"""Takes the place of a preflight's process: what its first device sends to other hosts has one wrong number.

LIARS names a folder with a file for each host that does so; without it every host does.
"""

import os
import socket
import sys
from pathlib import Path

liars = os.environ.get("LIARS")
if "meshwright_agent.children.preflight" in sys.orig_argv and (not liars or Path(liars, socket.gethostname()).exists()):
    import jax

    make = jax.make_array_from_callback

    def make_wrong(shape, sharding, fill):
        def fill_wrong(index):
            row = fill(index).copy()
            if index[0].start % 2 == 0:  # the first of this host's two devices
                row[0, 7] ^= 1
            return row

        return make(shape, sharding, fill_wrong)

    jax.make_array_from_callback = make_wrong
