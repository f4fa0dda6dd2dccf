"""Configurations in fresh processes, where JAX has not started yet: what they say is what JAX then does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.process.jobs import run_program

LIMIT_S = 120
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
SET_HERE = (
    FRACTION, "XLA_CLIENT_MEM_FRACTION", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_ENABLE_X64", "JAX_DISABLE_JIT"
)  # fmt: skip

HEAD = """
import json, os, sys, warnings
import jax, jax.extend.backend
from jax._src import xla_bridge
from meshwright.devices import *
has_backend_started = xla_bridge.backends_are_initialized
is_environment_read = lambda: has_backend_started() or xla_bridge._plugins_registered
says = {}
"""


def run(script: str, **environ: str) -> Any:
    """Runs a script in a fresh process, in which a warning is an error; returns its `says`."""
    base = {name: value for name, value in os.environ.items() if name not in SET_HERE}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c",
         HEAD + textwrap.dedent(script) + "\nprint(json.dumps(says))"],
        env=base | {"JAX_PLATFORMS": "cpu"} | environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    return json.loads(last) | ({"printed": printed} if printed else {})


def test_importing_the_module_and_asking_what_is_here_starts_no_backend_and_sets_no_variable() -> None:
    says = run(
        """
        before = dict(os.environ)
        import meshwright.devices, meshwright.mesh, meshwright.parallelism, meshwright.placement
        explain_no_gpu()
        for detector in (CPUDetector(), CUDADetector(), TPUDetector()):
            detector.detect_capabilities()
        says["same"] = before == dict(os.environ)
        manager = get_device_manager()
        says["type"] = manager.capabilities.device_type.value
        configure_for_generative_models()
        says["dtype"] = manager.compute_dtype.name
        says["started"] = is_environment_read()
        """
    )
    assert says == {"same": True, "type": "cpu", "dtype": "float32", "started": False}


def test_a_configuration_takes_effect_before_the_backend_starts() -> None:
    says = run(
        """
        config = DeviceConfiguration(
            MemoryStrategy.AGGRESSIVE,
            enable_x64=True,
            enable_jit=False,
            platform_priority=["gpu", "cpu"],
            environment_variables={"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "MY_OWN": "1"},
        )
        manager = DeviceManager(config)
        says["started"] = has_backend_started()
        says["fraction"] = os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]
        says["own"] = os.environ["MY_OWN"]
        says["flags"] = os.environ["XLA_FLAGS"]
        says["platforms"] = [os.environ["JAX_PLATFORMS"], jax.config.jax_platforms]
        says["capable"] = manager.capabilities.device_count
        says["dtype"] = str(jax.numpy.zeros(2).dtype)
        traces = []
        jax.jit(lambda x: traces.append(type(x).__name__) or x)(jax.numpy.ones(1))
        says["traced"] = any("Tracer" in name for name in traces)
        says["count"] = manager.device_count
        says["again"] = DeviceManager(config).not_in_force
        """,
        XLA_FLAGS="--xla_cpu_enable_fast_math=false",
    )
    flags = "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=3"
    assert says == {
        "started": False, "fraction": "0.9", "own": "1", "flags": flags, "platforms": ["cpu", "cpu"], "capable": 3,
        "dtype": "float64", "traced": False, "count": 3, "again": [],
    }  # fmt: skip


def test_without_a_configuration_what_the_process_was_given_stays_in_force() -> None:
    says = run(
        """
        manager = get_device_manager()
        says["strategy"] = manager.config.memory_strategy.value
        says["x64"] = manager.config.enable_x64
        says["dtype"] = str(jax.numpy.zeros(2).dtype)
        says["fraction"] = os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]
        manager = configure_for_generative_models(MemoryStrategy.CONSERVATIVE) if not has_backend_started() else manager
        says["same"] = get_device_manager() is manager
        """,
        XLA_PYTHON_CLIENT_MEM_FRACTION="0.9",
        JAX_ENABLE_X64="1",
    )
    assert says == {"strategy": "aggressive", "x64": True, "dtype": "float64", "fraction": "0.9", "same": True}


def test_a_default_leaves_what_the_user_turned_on_and_warns_of_nothing() -> None:
    says = run(
        """
        jax.devices()
        manager = DeviceManager(DeviceConfiguration())
        says["dtype"] = str(jax.numpy.zeros(2).dtype)
        says["variables"] = [os.environ["JAX_ENABLE_X64"], os.environ["JAX_DISABLE_JIT"], jax.config.jax_disable_jit]
        says["late"] = manager.not_in_force
        """,
        JAX_ENABLE_X64="1",
        JAX_DISABLE_JIT="1",
    )
    assert says == {"dtype": "float64", "variables": ["1", "1", True], "late": []}


def test_what_one_configuration_turned_on_the_next_turns_off_or_warns_of_too_late() -> None:
    says = run(
        """
        DeviceManager(DeviceConfiguration(enable_x64=True, enable_jit=False))
        says["first"] = [jax.config.jax_enable_x64, jax.config.jax_disable_jit]
        DeviceManager(DeviceConfiguration(enable_x64=True))
        says["second"] = [jax.config.jax_enable_x64, jax.config.jax_disable_jit]
        jax.devices()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            says["late"] = DeviceManager(DeviceConfiguration()).not_in_force
        says["warned"] = [str(warning.message).partition(";")[0] for warning in caught]
        """
    )
    assert says == {
        "first": [True, True],
        "second": [True, False],
        "late": ["JAX_ENABLE_X64"],
        "warned": ["could not take effect: JAX_ENABLE_X64=false (in force: true)"],
    }


def test_jaxs_own_options_among_the_callers_variables_take_effect_too() -> None:
    says = run(
        """
        variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "5", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
        manager = DeviceManager(DeviceConfiguration(environment_variables=variables))
        says["count"] = [manager.capabilities.device_count, manager.device_count]
        says["platforms"] = jax.config.jax_platforms
        says["precision"] = jax.config.jax_default_matmul_precision
        """,
        JAX_PLATFORMS="",
    )
    assert says == {"count": [5, 5], "platforms": "cpu", "precision": "highest"}


def test_a_value_that_jax_refuses_leaves_everything_as_it_was() -> None:
    says = run(
        """
        before = dict(os.environ), dict(jax.config.values)
        variables = {"JAX_TRANSFER_GUARD": "nonsense"}
        try:
            DeviceManager(DeviceConfiguration(enable_x64=True, environment_variables=variables))
        except ValueError as error:
            says["error"] = str(error)
        says["same"] = before == (dict(os.environ), dict(jax.config.values))
        """
    )
    assert says["same"]
    assert "JAX_TRANSFER_GUARD='nonsense'" in says["error"]


def test_plugins_that_are_ready_have_read_the_environment_though_no_backend_runs() -> None:
    says = run(
        """
        xla_bridge._discover_and_register_pjrt_plugins()
        says["started"] = [has_backend_started(), is_environment_read()]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            manager = DeviceManager(DeviceConfiguration(MemoryStrategy.AGGRESSIVE))
        says["warned"] = [type(warning.message).__name__ for warning in caught]
        says["count"] = manager.capabilities.device_count
        says["still"] = has_backend_started()
        """
    )
    assert says == {"started": [False, True], "warned": ["RuntimeWarning"], "count": 1, "still": False}


def test_capabilities_are_read_again_once_the_backend_has_started_and_when_it_starts_anew() -> None:
    says = run(
        """
        manager = DeviceManager()
        says["before"] = manager.capabilities.device_count
        jax.config.update("jax_num_cpu_devices", 4)
        says["kept"] = manager.capabilities.device_count
        says["devices"] = manager.device_count
        says["after"] = manager.capabilities.device_count
        jax.extend.backend.clear_backends()
        jax.config.update("jax_num_cpu_devices", 2)
        says["anew"] = [manager.device_count, manager.capabilities.device_count]
        """
    )
    assert says == {"before": 1, "kept": 1, "devices": 4, "after": 4, "anew": [2, 2]}


def test_a_second_configuration_is_a_warning_and_threads_share_one_manager() -> None:
    says = run(
        """
        import threading
        barrier, found = threading.Barrier(8), []
        ask = lambda: (barrier.wait(), found.append(get_device_manager()))
        threads = [threading.Thread(target=ask) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        says["managers"] = len(set(map(id, found)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same = get_device_manager(DeviceConfiguration(MemoryStrategy.CONSERVATIVE)) is found[0]
        says["kept"] = same
        says["warned"] = [type(warning.message).__name__ for warning in caught]
        new = get_device_manager(DeviceConfiguration(MemoryStrategy.CONSERVATIVE), force_reinit=True)
        says["replaced"] = new is not found[0]
        says["fraction"] = os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]
        """
    )
    assert says == {"managers": 1, "kept": True, "warned": ["RuntimeWarning"], "replaced": True, "fraction": "0.6"}


def test_a_platform_that_cannot_start_is_told_with_every_reason() -> None:
    says = run(
        """
        try:
            has_gpu()
        except RuntimeError as error:
            says["error"] = str(error)
        """,
        JAX_PLATFORMS="cuda",
        CUDA_VISIBLE_DEVICES="",
    )
    assert says["error"].startswith("No JAX devices are visible: JAX could not start")
    for words in ("CUDA_VISIBLE_DEVICES is ''", "without a CUDA plugin", "JAX_PLATFORMS=cpu"):
        assert words in says["error"]


JOB = """
rank, port = int(sys.argv[1]), sys.argv[3]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
manager = get_device_manager()
devices = manager.jax_manager
says["count"] = manager.device_count
says["default"] = manager.get_default_device().process_index
says["capable"] = manager.capabilities.device_count
shards = devices.distribute_data(np.arange(5))
says["shards"] = [[next(iter(shard.devices())).process_index, shard.tolist()] for shard in shards]
mesh = jax.sharding.Mesh(jax.devices(), "x")
spread = jax.make_array_from_callback((4,), NamedSharding(mesh, PartitionSpec("x")), lambda index: np.arange(4)[index])
other = [device for device in jax.devices() if device.process_index != rank]
for name, ask in {
    "target": lambda: devices.distribute_data(np.arange(5), other),
    "spread": lambda: devices.distribute_data({"x": spread}),
}.items():
    try:
        ask()
    except ValueError as error:
        says[name] = str(error)
print(json.dumps(says), flush=True)
jax.distributed.shutdown()
os._exit(0)  # gloo may hang where JAX is taken down: one_rank.py
"""


def test_each_process_of_a_job_deals_out_its_own_rows_over_its_own_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SET_HERE:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.py").write_text(HEAD + JOB)
    for rank, says in enumerate(run_program(tmp_path / "job.py", tmp_path, [], processes=2, devices_each=2)):
        assert (says["count"], says["default"], says["capable"]) == (4, rank, 2)
        assert says["shards"] == [[rank, [0, 1, 2]], [rank, [3, 4]]]
        assert f"of process {1 - rank}, and this is process {rank}" in says["target"]
        assert "leaf ['x'] of shape (4,) lies on devices of other processes" in says["spread"]
