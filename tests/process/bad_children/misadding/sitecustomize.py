"""Takes the place of a preflight's process: it sends right numbers, and adds one too much to each sum over hosts."""

import sys

if "meshwright_agent.children.preflight" in sys.orig_argv:
    import jax

    add = jax.lax.psum

    def add_wrong(block, axes):
        return add(block.at[0, 7].add(1) if axes in {("host", "device"), ("member",)} else block, axes)

    jax.lax.psum = add_wrong
