"""In this process JAX's backend runs already: what a manager says, and that it changes nothing any more."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from meshwright import devices
from meshwright.devices import (
    DeviceCapabilities,
    DeviceConfiguration,
    DeviceManager,
    DeviceType,
    MemoryStrategy,
    build_environment,
    configure_for_generative_models,
    get_device_manager,
)

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
NEW_FRACTION = "XLA_CLIENT_MEM_FRACTION"


def read_state() -> object:
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return environ, dict(jax.config.values)


@pytest.fixture(autouse=True)
def nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    jax.devices()
    for name in (FRACTION, NEW_FRACTION, "JAX_ENABLE_X64", "JAX_DISABLE_JIT", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    before = read_state()
    yield
    assert read_state() == before


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No manager has been made yet."""
    monkeypatch.setattr(devices, "_manager", None)


class Stated:
    """A caller's own detector."""

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        self.capabilities = capabilities
        self.calls = 0

    def detect_capabilities(self) -> DeviceCapabilities:
        self.calls += 1
        return self.capabilities


H100 = DeviceCapabilities(
    DeviceType.GPU, 8, compute_capability="9.0", cuda_version="12.2", supports_bfloat16=True,
    supports_mixed_precision=True,
)  # fmt: skip


# ---- a manager of a process in which JAX runs ----


@pytest.mark.parametrize(("config", "names"), [
    (DeviceConfiguration(MemoryStrategy.AGGRESSIVE), [FRACTION]),
    (DeviceConfiguration(memory_fraction=0.5, enable_x64=True), [FRACTION, "JAX_ENABLE_X64"]),
    (DeviceConfiguration(enable_jit=False), ["JAX_DISABLE_JIT"]),
    (DeviceConfiguration(environment_variables={"XLA_FLAGS": "--xla_a=1"}), ["XLA_FLAGS"]),
    (DeviceConfiguration(environment_variables={"JAX_PLATFORMS": "tpu"}), ["JAX_PLATFORMS"]),
    (DeviceConfiguration(environment_variables={"JAX_NUM_CPU_DEVICES": "3"}), ["JAX_NUM_CPU_DEVICES"]),
    (DeviceConfiguration(environment_variables={"NCCL_DEBUG": "INFO"}), ["NCCL_DEBUG"]),
])  # fmt: skip
def test_what_comes_too_late_is_named_and_changes_nothing(config: DeviceConfiguration, names: list[str]) -> None:
    with pytest.warns(RuntimeWarning, match="could not take effect") as caught:
        manager = DeviceManager(config)
    message = str(caught[0].message)
    assert manager.not_in_force == tuple(names)
    assert all(f"{name}=" in message for name in names)
    assert "before the first use of jax" in message
    assert "export " in message
    assert caught[0].filename == __file__


def test_what_is_set_after_a_start_is_not_in_force(capsys: pytest.CaptureFixture[str], new_process: None) -> None:
    manager = get_device_manager(DeviceConfiguration())
    manager.config.memory_strategy = MemoryStrategy.AGGRESSIVE
    manager.config.platform_priority = ["cpu"]
    assert manager.not_in_force == (FRACTION,)
    devices.print_device_info()
    lines = capsys.readouterr().out.splitlines()
    assert {"Memory Strategy: aggressive", "Memory Fraction: 0.9", f"Not In Force: {FRACTION}"} <= set(lines)


def test_a_configuration_that_was_spoiled_is_refused_at_its_next_use() -> None:
    config = DeviceConfiguration()
    manager = DeviceManager(config)
    config.memory_fraction = 2.0
    with pytest.raises(ValueError, match="memory_fraction is 2"):
        DeviceManager(config)
    with pytest.raises(ValueError, match="memory_fraction is 2"):
        manager.get_device_info()


def test_a_callers_detector_has_the_word_and_is_asked_once() -> None:
    detector = Stated(H100)
    manager = DeviceManager(detector=detector)
    assert manager.capabilities is manager.capabilities is H100
    assert detector.calls == 1
    assert not manager.has_gpu


@pytest.mark.parametrize(("capabilities", "dtype"), [
    (H100, "bfloat16"), (DeviceCapabilities(DeviceType.TPU, 4, supports_bfloat16=True), "bfloat16"),
    (DeviceCapabilities(DeviceType.GPU, 1, compute_capability="7.0"), "float16"),
    (DeviceCapabilities(DeviceType.GPU, 1), "float32"), (DeviceCapabilities(DeviceType.CPU, 1), "float32"),
])  # fmt: skip
def test_mixed_precision_takes_what_the_hardware_has(capabilities: DeviceCapabilities, dtype: str) -> None:
    manager = DeviceManager(detector=Stated(capabilities))
    assert manager.compute_dtype == jax.numpy.float32
    manager.use_mixed_precision()
    assert manager.compute_dtype == getattr(jax.numpy, dtype)
    manager.use_mixed_precision(False)
    assert manager.compute_dtype == jax.numpy.float32


def test_device_info_is_json_and_says_what_there_is() -> None:
    info = json.loads(json.dumps(DeviceManager().get_device_info()))
    assert (info["backend"], info["default_device"]) == ("cpu", str(jax.devices()[0]))
    assert [device["id"] for device in info["devices"]["cpu"]] == list(range(8))
    assert info["jax_devices"] == info["cpu_devices"] == [str(device) for device in jax.devices()]
    assert (info["gpu_devices"], info["tpu_devices"]) == ([], [])
    assert (info["capabilities"]["device_type"], info["capabilities"]["device_count"]) == ("cpu", 8)
    assert (info["memory_strategy"], info["memory_fraction"], info["compute_dtype"]) == ("balanced", 0.75, "float32")
    assert any("JAX_PLATFORMS" in reason for reason in info["no_gpu"])


# ---- model sizes ----


@pytest.mark.parametrize(("count", "strategy"), [
    (0, MemoryStrategy.CONSERVATIVE), (999_999, MemoryStrategy.CONSERVATIVE), (1_000_000, MemoryStrategy.BALANCED),
    (99_999_999, MemoryStrategy.BALANCED), (100_000_000, MemoryStrategy.AGGRESSIVE),
    (7_000_000_000, MemoryStrategy.AGGRESSIVE),
])  # fmt: skip
def test_a_models_size_decides_on_the_strategy(count: int, strategy: MemoryStrategy) -> None:
    manager = DeviceManager()
    built = manager.optimize_for_model_size(count)
    assert built.memory_strategy is strategy
    assert manager.config.memory_strategy is MemoryStrategy.BALANCED
    assert built is not manager.config


@pytest.mark.filterwarnings("ignore:could not take effect")
def test_all_else_stays_and_the_strategy_decides(new_process: None) -> None:
    config = DeviceConfiguration(
        memory_fraction=0.3, platform_priority=["cpu"], environment_variables={"A": "1", FRACTION: "0.2"}
    )
    get_device_manager(config)
    assert configure_for_generative_models(MemoryStrategy.CUSTOM).config.memory_fraction == 0.3
    built = configure_for_generative_models(MemoryStrategy.AGGRESSIVE).config
    assert build_environment(built, {})[FRACTION] == "0.9"
    assert (built.platform_priority, built.environment_variables) == (["cpu"], {"A": "1"})


def test_a_model_has_no_negative_number_of_parameters() -> None:
    with pytest.raises(ValueError, match=r"parameter_count is -1; .*0 parameters or more"):
        DeviceManager().optimize_for_model_size(-1)


# ---- one manager for all of the process ----


@pytest.mark.filterwarnings("ignore:could not take effect")
def test_a_configuration_that_was_changed_since_is_another_one(new_process: None) -> None:
    config = DeviceConfiguration()
    manager = get_device_manager(config)
    config.memory_strategy = MemoryStrategy.CONSERVATIVE
    with pytest.warns(RuntimeWarning, match="force_reinit"):
        assert get_device_manager(config) is manager
    new = get_device_manager(config, force_reinit=True)
    assert new is not manager
    assert get_device_manager() is new


# ---- what is in force ----


@pytest.mark.parametrize(("environ", "config", "fraction"), [
    ({}, DeviceConfiguration(), 0.75), ({FRACTION: ""}, DeviceConfiguration(), 0.75),
    ({FRACTION: "0.60"}, DeviceConfiguration(MemoryStrategy.CONSERVATIVE), 0.6),
    ({FRACTION: ".9"}, DeviceConfiguration(MemoryStrategy.AGGRESSIVE), 0.9),
    ({FRACTION: "0.33"}, DeviceConfiguration(MemoryStrategy.CUSTOM, 0.33), 0.33),
    ({NEW_FRACTION: "0.5", FRACTION: "0.6"}, DeviceConfiguration(MemoryStrategy.CUSTOM, 0.5), 0.5),
    ({FRACTION: "4.0"}, DeviceConfiguration(environment_variables={FRACTION: "4.0"}), 4.0),
    ({NEW_FRACTION: "2"}, DeviceConfiguration(environment_variables={NEW_FRACTION: "2"}), 2.0),
    ({FRACTION: "much"}, DeviceConfiguration(environment_variables={FRACTION: "much"}), "much"),
])  # fmt: skip
def test_the_configuration_in_force_is_the_environments(environ: dict[str, str], config: Any, fraction: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        manager = DeviceManager()
        assert (manager.config, manager.not_in_force) == (config, ())
        assert manager.get_device_info()["memory_fraction"] == fraction


@pytest.mark.parametrize(("wanted", "present", "names"), [
    ({FRACTION: "0.9"}, {}, [FRACTION]), ({FRACTION: "0.75"}, {}, []), ({FRACTION: "0.9"}, {FRACTION: "0.90"}, []),
    ({NEW_FRACTION: "0.9", FRACTION: ""}, {NEW_FRACTION: "0.5", FRACTION: "0.4"}, [NEW_FRACTION]),
    ({NEW_FRACTION: "0.5", FRACTION: ""}, {NEW_FRACTION: "0.5", FRACTION: "0.4"}, []),
    ({"JAX_ENABLE_X64": "0"}, {"JAX_ENABLE_X64": "true"}, []),
    ({"JAX_ENABLE_X64": "on"}, {"JAX_ENABLE_X64": "true"}, ["JAX_ENABLE_X64"]), ({"JAX_PLATFORMS": "cpu"}, {}, []),
    ({"JAX_NO_SUCH_OPTION": "1"}, {}, ["JAX_NO_SUCH_OPTION"]),
    ({"XLA_FLAGS": "--b=2 --a=1"}, {"XLA_FLAGS": " --a=1  --b=2 "}, []), ({"XLA_FLAGS": "--a=1"}, {}, ["XLA_FLAGS"]),
    ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, {}, []),
    ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, {}, ["XLA_PYTHON_CLIENT_PREALLOCATE"]),
    ({"A": "1", "B": "2"}, {"A": "1"}, ["B"]),
])  # fmt: skip
def test_only_another_meaning_differs(wanted: dict[str, str], present: dict[str, str], names: list[str]) -> None:
    assert list(devices._find_differences(wanted, present)) == names


@pytest.mark.parametrize(
    ("name", "value"), [("JAX_ENABLE_X64", "maybe"), ("JAX_NUM_CPU_DEVICES", "many"), ("JAX_DISABLE_JIT", "")]
)
def test_a_value_that_jax_cannot_read_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}'; JAX reads it as a"):
        DeviceManager(DeviceConfiguration(environment_variables={name: value}))
