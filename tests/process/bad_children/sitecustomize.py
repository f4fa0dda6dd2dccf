"""Takes the place of a preflight's process: it has the fault that the file $FAULT names, and none without the file.

hanging: its driver never opens the devices. lying: what its first device sends to other hosts has one wrong number.
misadding: it sends right numbers, and adds one too much to each sum over hosts.
"""

import os
import sys
import time
from pathlib import Path

if "meshwright_agent.children.preflight" in sys.orig_argv and (mark := Path(os.environ["FAULT"])).exists():
    import jax

    add, make = jax.lax.psum, jax.make_array_from_callback

    def add_wrong(block, axes):
        return add(block.at[0, 7].add(1) if axes in {("host", "device"), ("member",)} else block, axes)

    def make_wrong(shape, sharding, fill):
        def fill_wrong(index):
            row = fill(index).copy()
            if index[0].start % 2 == 0:  # the first of this host's two devices
                row[0, 7] ^= 1
            return row

        return make(shape, sharding, fill_wrong)

    match mark.read_text():
        case "hanging":
            jax.local_devices = lambda: time.sleep(3600)
        case "lying":
            jax.make_array_from_callback = make_wrong
        case "misadding":
            jax.lax.psum = add_wrong
