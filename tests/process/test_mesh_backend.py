"""Meshes in a process whose JAX backend is started anew."""

from __future__ import annotations

import subprocess
import sys

RESET = """
import gc, weakref
import jax
from jax.extend.backend import clear_backends
from meshwright.mesh import create_mesh

jax.config.update("jax_platforms", "cpu")
for count in (8, 4, 8):
    jax.config.update("jax_num_cpu_devices", count)
    mesh = create_mesh((-1,), ("x",))
    assert list(mesh.devices.flat) == jax.devices(), "the mesh is of the devices of now"
    assert mesh.devices.size == count
    assert create_mesh((-1,), ("x",)) is mesh
    array = jax.device_put(jax.numpy.arange(8), jax.NamedSharding(mesh, jax.P("x")))
    assert int(array.sum()) == 28
    given = create_mesh((-1,), ("given",), devices=jax.devices())
    before = weakref.ref(given.devices.flat[0].client)
    del mesh, array, given
    clear_backends()
    jax.clear_caches()
create_mesh((-1,), ("given",), devices=jax.devices())
gc.collect()
assert before() is None, "no mesh of ours keeps the old backend"
print("right")
"""


def test_a_backend_that_was_started_anew_gets_meshes_of_its_own_devices() -> None:
    command = [sys.executable, "-c", RESET]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-4000:]
