"""One configuration, the capabilities of this host, and JAX's devices, under one name.

Rule: the constructor of a manager applies its configuration, or warns that it could not. Capabilities come from a
detector and start nothing; `has_gpu`, counts and devices are JAX's own answer, and reading them starts its backend.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from meshwright._devices.capabilities import (
    DeviceCapabilities,
    DeviceDetector,
    DeviceType,
    choose_compute_dtype,
    complete,
    describe_jax_devices,
)
from meshwright._devices.choice import choose_detector
from meshwright._devices.jax_devices import JAXDeviceManager
from meshwright._devices.no_gpu import explain_no_gpu
from meshwright._devices.starting import (
    apply_configuration,
    describe_differences,
    has_backend_started,
    read_configuration,
    read_memory_fraction,
)
from meshwright._jax_devices import Device, describe_device
from meshwright._warning import warn
from meshwright.environment import (
    MEM_FRACTION,
    NEW_MEM_FRACTION,
    DeviceConfiguration,
    MemoryStrategy,
    build_environment,
)
from meshwright.wire.devices import parse_platform

_MODEL_SIZES: Final = ((1_000_000, MemoryStrategy.CONSERVATIVE), (100_000_000, MemoryStrategy.BALANCED))
"""Below this number of parameters → the strategy; from the last number on AGGRESSIVE."""

PRIORITY: Final = "platform_priority"
"""The effect of a configuration besides its variables, by the name of its field."""


class DeviceManager:
    """The devices of this process, configured.

    The constructor applies the configuration: its variables to `os.environ`, and JAX's own options (x64, jit) to
    `jax.config` too. This takes effect only before JAX's backend starts. If the backend has started and a value would
    differ, nothing is changed, and a RuntimeWarning names the differences.

    Args:
        config: None means the configuration in force: the variables of this process and `jax.config`, with a memory
            fraction of 0.75 (balanced) by default. JAX then behaves as without a manager, and no warning is emitted.
            The variables are written for child processes.
        detector: reports the capabilities of the devices; None chooses by the platform that JAX has, or would have.

    Raises:
        ValueError: the configuration has invalid values.
        TypeError: `config` or `detector` has the wrong type.
    """

    def __init__(self, config: DeviceConfiguration | None = None, detector: DeviceDetector | None = None) -> None:
        check_types(config, detector)
        self._config = read_configuration(os.environ) if config is None else config
        self._detector = detector
        self._lock = threading.Lock()
        self._told: tuple[DeviceDetector, DeviceCapabilities] | None = None
        self._seen_backend: Callable[[], object] = lambda: None
        self._is_mixed = False
        self._jax_manager = JAXDeviceManager()
        self._effect = describe_effect(self._config)
        self._differences = apply_configuration(self._config, os.environ)
        if self._differences:
            warn(describe_differences(self._differences))

    @property
    def config(self) -> DeviceConfiguration:
        """The configuration, the caller's own object; what is set on it later is checked at its next use."""
        return self._config

    @property
    def effect(self) -> Mapping[str, str]:
        """The effect of the configuration when it was applied; equal for configurations of equal effect."""
        return self._effect

    @property
    def not_in_force(self) -> tuple[str, ...]:
        """Names of the variables that could not take effect, or were changed in `config` after it was applied."""
        late = [difference.name for difference in self._differences]
        return tuple(dict.fromkeys([*late, *list_changes(describe_effect(self._config), self._effect)]))

    @property
    def capabilities(self) -> DeviceCapabilities:
        """The capabilities of the devices, from the detector. Starts no backend.

        Without a detector of the caller, they are read again after the backend starts or restarts. JAX's own devices
        then fill in missing values.
        """
        return self._detect()[1]

    @property
    def detector(self) -> DeviceDetector:
        """The detector that `capabilities` come from: the caller's, else the one that was chosen. Starts no backend."""
        return self._detect()[0] if self._detector is None else self._detector

    def _detect(self) -> tuple[DeviceDetector, DeviceCapabilities]:
        with self._lock:
            backend = jax.local_devices()[0].client if has_backend_started() else None
            is_stale = self._detector is None and backend is not None and backend is not self._seen_backend()
            if self._told is None or is_stale:
                self._told = _detect(self._detector, backend is not None)
                self._seen_backend = weakref.ref(backend) if backend is not None else lambda: None
            return self._told

    @property
    def jax_manager(self) -> JAXDeviceManager:
        """JAX's devices by platform, and data dealt out over them."""
        self._jax_manager.platform_priority = self._config.platform_priority
        return self._jax_manager

    @property
    def has_gpu(self) -> bool:
        """Whether JAX has a GPU in this process; starts its backend."""
        return self.gpu_count > 0

    @property
    def device_count(self) -> int:
        """How many devices JAX's default platform has, those of other processes too; starts its backend."""
        return len(self.jax_manager.devices)

    @property
    def gpu_count(self) -> int:
        """How many GPUs JAX has, those of other processes too; starts its backend."""
        return len(self.jax_manager.gpu_devices)

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """The type to compute in: float32, or after `use_mixed_precision` the 16-bit type that the hardware has.

        That is bfloat16 on TPUs and GPUs of compute capability 8.0 or more, float16 on older GPUs from 5.3 on, float32
        elsewhere. If only JAX knows a GPU's compute capability, this property starts its backend.
        """
        if not self._is_mixed:
            return np.dtype(np.float32)
        said = self.capabilities
        is_open = said.device_type is DeviceType.GPU and not (said.compute_capability or said.supports_bfloat16)
        if is_open and self._detector is None and self.jax_manager.devices:
            said = self.capabilities
        chosen: np.dtype[Any] = jnp.dtype(choose_compute_dtype(said))
        return chosen

    def use_mixed_precision(self, enabled: bool = True) -> None:
        """Sets whether `compute_dtype` is the hardware's 16-bit type, where it has one."""
        self._is_mixed = enabled

    def get_default_device(self) -> Device:
        """Returns this process's first device of the configuration's preferred platform, otherwise a GPU, TPU or CPU.

        Raises:
            RuntimeError: this process has no device.
        """
        return self.jax_manager.get_default_device()

    def get_device_info(self) -> dict[str, Any]:
        """Returns backend, devices and configuration as JSON values; starts JAX's backend.

        `backend`, `default_device`, `device_count`, `gpu_count`, `capabilities` (by field), `devices` (by platform, a
        dict each), `jax_devices` (of JAX's default platform), `gpu_devices`, `cpu_devices` and `tpu_devices` as texts,
        `memory_strategy`, `memory_fraction`, `compute_dtype`, `not_in_force`, and `no_gpu`: reasons why JAX has no GPU,
        each a sentence; empty where it has GPUs or TPUs.

        Raises:
            RuntimeError: JAX cannot start.
            ValueError: the configuration was set to invalid values.
        """
        self._config.check()
        platforms = self.jax_manager.list_platforms()
        backend = parse_platform(self.jax_manager.devices[0].platform)
        capabilities = self.capabilities
        return {
            "backend": backend,
            "default_device": str(self.get_default_device()),
            "device_count": self.device_count,
            "gpu_count": self.gpu_count,
            "capabilities": asdict(capabilities) | {"device_type": capabilities.device_type.value},
            "devices": {name: [describe_device(device) for device in found] for name, found in platforms.items()},
            "jax_devices": [str(device) for device in self.jax_manager.devices],
            "gpu_devices": [str(device) for device in platforms.get("gpu", ())],
            "cpu_devices": [str(device) for device in platforms.get("cpu", ())],
            "tpu_devices": [str(device) for device in platforms.get("tpu", ())],
            "memory_strategy": MemoryStrategy(self._config.memory_strategy).value,
            "memory_fraction": read_memory_fraction(self._config, os.environ),
            "compute_dtype": self.compute_dtype.name,
            "not_in_force": list(self.not_in_force),
            "no_gpu": [] if {"gpu", "tpu"} & set(platforms) else [str(reason) for reason in explain_no_gpu()],
        }

    def optimize_for_model_size(self, parameter_count: int) -> DeviceConfiguration:
        """Returns a new configuration, like this manager's, with a memory strategy for the size of a model.

        CONSERVATIVE below 1,000,000 parameters, BALANCED below 100,000,000, otherwise AGGRESSIVE. The strategy replaces
        a given memory fraction. The manager does not change: pass the new configuration to `get_device_manager(config,
        force_reinit=True)` before the first use of jax.

        Raises:
            ValueError: `parameter_count` is negative.
            TypeError: `parameter_count` is not an integer.
        """
        return set_strategy(self._config, choose_strategy(parameter_count))


def choose_strategy(parameter_count: int) -> MemoryStrategy:
    """Returns the memory strategy for a model with this number of parameters.

    Raises:
        ValueError: `parameter_count` is negative.
        TypeError: the count is not an integer.
    """
    try:
        count = operator.index(parameter_count)
    except TypeError:
        raise TypeError(
            f"parameter_count is {parameter_count!r}, a {type(parameter_count).__name__}; it is a whole number of "
            f"parameters, such as 7_000_000_000"
        ) from None
    if count < 0:
        raise ValueError(f"parameter_count is {count}; a model has 0 parameters or more, such as 7_000_000_000")
    return next((strategy for limit, strategy in _MODEL_SIZES if count < limit), MemoryStrategy.AGGRESSIVE)


def set_strategy(config: DeviceConfiguration, strategy: MemoryStrategy) -> DeviceConfiguration:
    """Returns a configuration like `config` in which this strategy decides; CUSTOM keeps the given fraction.

    Raises:
        ValueError: CUSTOM, and `config` has no fraction.
    """
    if strategy in (MemoryStrategy.CUSTOM, MemoryStrategy.CUSTOM.value):
        return replace(config, memory_strategy=strategy, environment_variables=dict(config.environment_variables))
    own = {k: v for k, v in config.environment_variables.items() if k not in (MEM_FRACTION, NEW_MEM_FRACTION)}
    return replace(config, memory_strategy=strategy, memory_fraction=None, environment_variables=own)


def describe_effect(config: DeviceConfiguration) -> dict[str, str]:
    """Returns the effect of a configuration, independent of its form: its variables and its preference, by name.

    Raises:
        ValueError: the configuration is wrong.
    """
    return build_environment(config, {}) | {PRIORITY: ",".join(config.platform_priority or ())}


def list_changes(asked: Mapping[str, str], present: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the variables in which two effects differ. A device preference is not one: it applies at the next
    call."""
    names = [name for name in {**present, **asked} if asked.get(name) != present.get(name)]
    return tuple(name for name in names if name != PRIORITY)


def build_info_lines(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns `get_device_info()` as lines "Name: value" for people; unknown values have no line."""
    capabilities = info["capabilities"]
    lines: list[tuple[str, object]] = [
        ("Backend", info["backend"]),
        ("Device Type", capabilities["device_type"]),
        ("Device Count", info["device_count"]),
        ("GPU Count", info["gpu_count"]),
        ("Memory Strategy", info["memory_strategy"]),
        ("Memory Fraction", info["memory_fraction"]),
        ("Default Device", info["default_device"]),
        ("CUDA Version", capabilities["cuda_version"]),
        ("Driver Version", capabilities["driver_version"]),
        ("Compute Capability", capabilities["compute_capability"]),
        ("Not In Force", ", ".join(info["not_in_force"]) or None),
        *(("No GPU", reason) for reason in info["no_gpu"]),
    ]
    return tuple(f"{name}: {value}" for name, value in lines if value is not None)


def _detect(detector: DeviceDetector | None, started: bool) -> tuple[DeviceDetector, DeviceCapabilities]:
    if detector is not None:
        return detector, detector.detect_capabilities()
    chosen = choose_detector()
    told = chosen.detect_capabilities()
    return chosen, complete(told, describe_jax_devices(jax.local_devices())) if started else told


def check_types(config: object, detector: object) -> None:
    """Raises TypeError unless the arguments are a configuration and a detector.

    Raises:
        TypeError: naming which.
    """
    if not isinstance(config, DeviceConfiguration | None):
        hint = "; a detector is given by name: DeviceManager(detector=…)" if isinstance(config, DeviceDetector) else ""
        raise TypeError(
            f"config is {_name_kind(config)}; it is a DeviceConfiguration, such as DeviceConfiguration(), or None for "
            f"what is there{hint}"
        )
    if isinstance(detector, type) or not isinstance(detector, DeviceDetector | None):
        raise TypeError(
            f"detector is {_name_kind(detector)}; it is an object with detect_capabilities(), such as CUDADetector(), "
            f"or None to have one chosen"
        )


def _name_kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
