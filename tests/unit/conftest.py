"""The JAX of this process's tests: 8 virtual CPU devices, said before its backend starts."""

from __future__ import annotations

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
