"""The variables do in a real JAX process what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from meshwright.environment import DeviceConfiguration, build_worker_environment

PRINT = (
    "import json, jax; print(json.dumps("
    "[jax.default_backend(), jax.device_count(), jax.config.jax_enable_x64, jax.config.jax_disable_jit]))"
)


def test_jax_starts_with_what_the_configuration_asks_for() -> None:
    config = DeviceConfiguration(
        enable_x64=True,
        enable_jit=False,
        environment_variables={"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"},
    )
    base = dict(os.environ) | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
        "XLA_CLIENT_MEM_FRACTION": "0.5",
    }
    environment = build_worker_environment(config, base, platform="cpu", cpu_devices=8)
    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["cpu", 8, True, True]
