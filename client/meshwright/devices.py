"""The devices of this process: their properties, the memory that JAX may take, and the default device.

Importing this module imports jax and starts nothing. A configuration takes effect only before JAX's backend starts, and
where it cannot, a RuntimeWarning reports it. A preferred platform does not hide others or set JAX's default.
Independent of meshes and agents.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import backend as jax_backend
from jax.tree_util import keystr

from meshwright._host_devices import (
    CPUDetector,
    CUDADetector,
    DeviceCapabilities,
    DeviceDetector,
    DeviceType,
    GpuSnapshot,
    NoGpuReason,
    TPUDetector,
    choose_compute_dtype,
    choose_detector,
    complete_capabilities,
    explain_no_gpu,
    read_gpu_snapshot,
)
from meshwright._jax_devices import (
    Device,
    check_devices,
    describe_device,
    has_backend_started,
    is_own,
    list_devices,
    open_array,
    warn,
)
from meshwright.environment import (
    DISABLE_JIT,
    ENABLE_X64,
    MEM_FRACTION,
    NEW_MEM_FRACTION,
    PREALLOCATE,
    XLA_FLAGS,
    DeviceConfiguration,
    MemoryStrategy,
    build_environment,
    format_exports,
)
from meshwright.wire.devices import parse_platform

__all__ = [
    "CPUDetector",
    "CUDADetector",
    "DeviceCapabilities",
    "DeviceConfiguration",
    "DeviceDetector",
    "DeviceManager",
    "DeviceType",
    "GpuSnapshot",
    "JAXDeviceManager",
    "MemoryStrategy",
    "NoGpuReason",
    "TPUDetector",
    "build_environment",
    "configure_for_generative_models",
    "explain_no_gpu",
    "get_default_device",
    "get_device_manager",
    "has_gpu",
    "print_device_info",
    "read_gpu_snapshot",
]

_MODEL_SIZES: Final = ((1_000_000, MemoryStrategy.CONSERVATIVE), (100_000_000, MemoryStrategy.BALANCED))
"""Below this number of parameters → the strategy; from the last number on AGGRESSIVE."""

_PRIORITY: Final = "platform_priority"
"""The effect of a configuration besides its variables, by the name of its field."""


# ---- the manager of the process ----

_lock: Final = threading.RLock()
_manager: DeviceManager | None = None


def get_device_manager(config: DeviceConfiguration | None = None, force_reinit: bool = False) -> DeviceManager:
    """Returns the device manager of this process, the same one for all threads; made at the first call.

    Args:
        config: None means the existing manager, or at first the configuration in force (see `DeviceManager`). A
            different configuration causes a RuntimeWarning, and the manager does not change.
        force_reinit: a new manager replaces the old one.

    Raises:
        ValueError: the configuration has invalid values.
    """
    global _manager
    with _lock:
        if _manager is None or force_reinit:
            _manager = DeviceManager(config)
        elif config is not None and (asked := _describe_effect(config)) != (present := _manager._effect):
            changes = ", ".join(
                f"{name}={asked.get(name) or 'none'} (it has {present.get(name) or 'none'})"
                for name in {**asked, **present}
                if asked.get(name) != present.get(name)
            )
            warn(
                f"another configuration was asked for: {changes}; this process has a device manager already, one for "
                f"all, and keeps it; give the configuration at the first call, or force_reinit=True to replace the "
                f"manager"
            )
        return _manager


def configure_for_generative_models(
    memory_strategy: MemoryStrategy = MemoryStrategy.BALANCED, enable_mixed_precision: bool = True
) -> DeviceManager:
    """Returns the device manager of this process with this memory strategy, and its `compute_dtype` set.

    The strategy overrides the memory fraction of the process's start. All other values stay those of the manager, or at
    first those in force. A manager with another strategy is replaced. After JAX's backend has started, a RuntimeWarning
    is emitted, and the strategy has no effect.

    Args:
        memory_strategy: the part of a GPU's memory that JAX may take.
        enable_mixed_precision: `compute_dtype` is bfloat16 where the hardware has it (TPUs; GPUs of compute
            capability 8.0 or more), float16 on older GPUs (from 5.3 on), float32 elsewhere; False: float32.

    Raises:
        ValueError: the strategy does not exist, or it is CUSTOM and no memory fraction was given before.
    """
    with _lock:
        present = _read_configuration() if _manager is None else _manager.config
        config = _set_strategy(present, memory_strategy)
        is_new = _manager is None or _describe_effect(config) != _manager._effect
        manager = get_device_manager(config, force_reinit=is_new)
    manager.use_mixed_precision(enable_mixed_precision)
    return manager


def has_gpu() -> bool:
    """Returns whether JAX has a GPU in this process; starts its backend. `explain_no_gpu()` says why not.

    Raises:
        RuntimeError: JAX cannot start.
    """
    return get_device_manager().has_gpu


def get_default_device() -> Device:
    """Returns this process's first device of the preferred platform, otherwise a GPU, a TPU or a CPU device.

    Raises:
        RuntimeError: this process has no device.
    """
    return get_device_manager().get_default_device()


def print_device_info() -> None:
    """Prints the devices and the configuration, one "Name: value" a line; where there is no GPU, also each reason.

    Raises:
        RuntimeError: JAX cannot start.
        ValueError: the configuration was set to values that it cannot have.
    """
    info = get_device_manager().get_device_info()
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
    for name, value in lines:
        if value is not None:
            print(f"{name}: {value}")


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
    """

    def __init__(self, config: DeviceConfiguration | None = None, detector: DeviceDetector | None = None) -> None:
        self._config = _read_configuration() if config is None else config
        self._detector = detector
        self._lock = threading.Lock()
        self._detected: tuple[DeviceDetector, DeviceCapabilities] | None = None
        self._detected_backend: Callable[[], object] = lambda: None
        self._is_mixed = False
        self._jax_manager = JAXDeviceManager()
        self._effect = _describe_effect(self._config)
        self._late = _apply_configuration(self._config)

    @property
    def config(self) -> DeviceConfiguration:
        """The configuration, the caller's own object; what is set on it later is checked at its next use."""
        return self._config

    @property
    def not_in_force(self) -> tuple[str, ...]:
        """Names of the variables that could not take effect, or were changed in `config` after it was applied."""
        asked, applied = _describe_effect(self._config), self._effect
        changed = [name for name in {**applied, **asked} if asked.get(name) != applied.get(name)]
        return tuple(dict.fromkeys([*self._late, *(name for name in changed if name != _PRIORITY)]))

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
        return self._detector or self._detect()[0]

    def _detect(self) -> tuple[DeviceDetector, DeviceCapabilities]:
        with self._lock:
            own = jax.local_devices() if has_backend_started() else []
            is_new = bool(own) and own[0].client is not self._detected_backend()
            if self._detected is None or (is_new and self._detector is None):
                detector = self._detector or choose_detector()
                found = detector.detect_capabilities()
                self._detected = detector, found if self._detector else complete_capabilities(found, own)
                self._detected_backend = weakref.ref(own[0].client) if own else lambda: None
            return self._detected

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
        found = self.capabilities
        is_open = found.device_type is DeviceType.GPU and not (found.compute_capability or found.supports_bfloat16)
        if is_open and self._detector is None and self.jax_manager.devices:
            found = self.capabilities
        chosen: np.dtype[Any] = jnp.dtype(choose_compute_dtype(found))
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
        names = {name: [str(device) for device in found] for name, found in platforms.items()}
        capabilities = self.capabilities
        environment = _read_environment()
        _, fraction = _find_fraction({**environment, **build_environment(self._config, environment)})
        return {
            "backend": next(iter(platforms)),
            "default_device": str(self.get_default_device()),
            "device_count": self.device_count,
            "gpu_count": self.gpu_count,
            "capabilities": asdict(capabilities) | {"device_type": capabilities.device_type.value},
            "devices": {name: [describe_device(device) for device in found] for name, found in platforms.items()},
            "jax_devices": next(iter(names.values())),
            **{f"{name}_devices": names.get(name, []) for name in ("gpu", "cpu", "tpu")},
            "memory_strategy": MemoryStrategy(self._config.memory_strategy).value,
            "memory_fraction": fraction,
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
        """
        if parameter_count < 0:
            raise ValueError(
                f"parameter_count is {parameter_count}; a model has 0 parameters or more, such as 7_000_000_000"
            )
        fitting = (strategy for limit, strategy in _MODEL_SIZES if parameter_count < limit)
        return _set_strategy(self._config, next(fitting, MemoryStrategy.AGGRESSIVE))


def _set_strategy(config: DeviceConfiguration, strategy: MemoryStrategy) -> DeviceConfiguration:
    """Returns a configuration like `config` in which this strategy decides; CUSTOM keeps the given fraction."""
    if strategy in (MemoryStrategy.CUSTOM, MemoryStrategy.CUSTOM.value):
        return replace(config, memory_strategy=strategy, environment_variables=dict(config.environment_variables))
    own = {k: v for k, v in config.environment_variables.items() if k not in (MEM_FRACTION, NEW_MEM_FRACTION)}
    return replace(config, memory_strategy=strategy, memory_fraction=None, environment_variables=own)


def _describe_effect(config: DeviceConfiguration) -> dict[str, str]:
    """Returns the effect of a configuration, independent of its form: its variables and its preference, by name."""
    return build_environment(config, {}) | {_PRIORITY: ",".join(config.platform_priority or ())}


# ---- JAX's devices ----


class JAXDeviceManager:
    """JAX's devices as this process sees them. In a job of several processes, the devices of all processes are listed.

    Nothing is cached: each call asks JAX, and starts its backend.

    Args:
        platform_priority: platforms in the order of preference for the default device, such as ["cpu", "gpu"]. A
            missing platform is skipped. Mutable.
        devices: the devices to manage, instead of all that JAX has.
    """

    def __init__(self, platform_priority: Sequence[str] | None = None, devices: Sequence[Device] | None = None) -> None:
        self.platform_priority = platform_priority
        self._devices = None if devices is None else list(devices)

    @property
    def devices(self) -> list[Device]:
        """Those of JAX's default platform, as `jax.devices()` has them: on a GPU host the GPUs and not the CPU.

        Raises:
            RuntimeError: JAX cannot start; the message has its reason, and ours.
        """
        if self._devices is not None:
            return list(self._devices)
        try:
            return list_devices()
        except RuntimeError as error:
            reasons = "".join(f"\n  no GPU: {reason}" for reason in explain_no_gpu())
            raise RuntimeError(
                f"No JAX devices are visible: JAX could not start: {error}; it must start every platform that "
                f"JAX_PLATFORMS names: unset it to take what is here, or use JAX_PLATFORMS=cpu{reasons}"
            ) from error

    @property
    def gpu_devices(self) -> list[Device]:
        """All GPUs, in JAX's order; empty where there are none."""
        return self.list_platforms().get("gpu", [])

    @property
    def cpu_devices(self) -> list[Device]:
        """All CPU devices, also beside GPUs or TPUs, unless JAX_PLATFORMS leaves them out."""
        return self.list_platforms().get("cpu", [])

    @property
    def tpu_devices(self) -> list[Device]:
        """All TPUs, in JAX's order; empty where there are none."""
        return self.list_platforms().get("tpu", [])

    def list_platforms(self) -> dict[str, list[Device]]:
        """Returns the devices of every platform that JAX has started, by platform, the default one first."""
        found = self.devices
        if self._devices is None:
            clients = dict.fromkeys([found[0].client, *jax_backend.backends().values()])
            found = [device for client in clients for device in client.devices()]
        platforms: dict[str, list[Device]] = {}
        for device in found:
            platforms.setdefault(parse_platform(device.platform), []).append(device)
        return platforms

    def get_default_device(self) -> Device:
        """Returns this process's first device of the preferred platform, otherwise a GPU, a TPU or a CPU device.

        JAX's own default does not change.

        Raises:
            RuntimeError: this process has no device.
        """
        platforms = {name: [d for d in devices if is_own(d)] for name, devices in self.list_platforms().items()}
        wanted = [parse_platform(name.strip().lower()) for name in self.platform_priority or ()]
        for name in (*wanted, "gpu", "tpu", "cpu", *platforms):
            if platforms.get(name):
                return platforms[name][0]
        raise RuntimeError(
            "No JAX devices are visible: a default device was asked for, and the list of devices of this process is "
            "empty; there must be one: leave `devices` out to have all that JAX has"
        )

    def distribute_data(self, data: Any, target_devices: Sequence[Device] | None = None) -> list[Any]:
        """Returns one pytree like `data` a device: its rows of every leaf, on that device. [rows, …] → [its rows, …].

        The shards in order form the data again. Sizes differ by at most one, and the first shards are the larger ones.
        With fewer rows than devices the last shards are empty. A process distributes its own rows over its own devices.
        Types are those of `jax.device_put` (without x64, float64 becomes float32).

        Args:
            data: a pytree of arrays that have the same first dimension.
            target_devices: None means this process's GPUs. Without GPUs, it means its devices of JAX's default
                platform.

        Raises:
            ValueError: a leaf is a scalar or has another number of rows (the message names its path), or
                `target_devices` is empty, names one twice or one of another process.
        """
        if target_devices is None:
            own = [device for device in self.gpu_devices or self.devices if is_own(device)]
            target_devices = own or [self.get_default_device()]
        targets = check_devices(target_devices, "target_devices")
        for device in targets:
            if not is_own(device):
                raise ValueError(
                    f"target_devices holds {device} of process {device.process_index}, and this is process "
                    f"{device.client.process_index()}; a process places data on its own devices: use "
                    f"jax.local_devices()"
                )
        size, more = divmod(_count_rows(data), len(targets))
        starts = [index * size + min(index, more) for index in range(len(targets) + 1)]
        shards: list[Any] = []
        for device, start, stop in zip(targets, starts, starts[1:], strict=False):
            rows = [_take_rows(leaf, slice(start, stop)) for leaf in jax.tree.leaves(data)]
            shards.append(jax.device_put(jax.tree.unflatten(jax.tree.structure(data), rows), device))
        return shards


def _take_rows(leaf: Any, rows: slice) -> Any:
    if not isinstance(leaf, jax.Array):
        return np.array(np.asarray(leaf)[rows])  # a copy: on CPU, JAX would share the caller's memory for good
    with open_array(leaf) as array:
        return array[rows]


def _count_rows(data: Any) -> int:
    counts: dict[str, object] = {}
    for path, leaf in jax.tree.leaves_with_path(data):
        name = f"leaf {keystr(path) or '(data)'}"
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise ValueError(
                f"{name} of shape {leaf.shape} lies on devices of other processes too; each process deals out its own "
                f"rows: give it those, such as the ones of its addressable_shards"
            )
        counts[name] = next(iter(np.shape(leaf)), "none")
    first = next(iter(counts.values()), "none")
    if isinstance(first, int) and set(counts.values()) == {first}:
        return first
    named = ", ".join(f"{name} has {count}" for name, count in counts.items()) or "data has no leaf"
    raise ValueError(
        f"leaves are split along their first dimension, and all must have the same number of rows; {named}: give "
        f"arrays such as numpy.zeros((8, 2)), and place scalars with DevicePlacement().replicate_across_devices"
    )


# ---- the environment that JAX starts with ----
#
# All or nothing. Before JAX's backend starts, every variable is set, in `os.environ` and, since JAX reads its own
# options when it is imported, in `jax.config`. After that nothing is changed, and the differences are named. The
# environment that the backend read is not known, since JAX does not store it: the last environment applied here is
# assumed, otherwise the current `os.environ`.

_DEFAULTS: Final[Mapping[str, str]] = {PREALLOCATE: "true", "XLA_PYTHON_CLIENT_ALLOCATOR": "default"}
"""What XLA does where the variable is not set. Source: jaxlib/xla_client.py, xla/pjrt/gpu/gpu_helpers.h."""

_DEFAULT_FRACTION: Final = "0.75"
"""The memory fraction where no variable is set. Source: xla/pjrt/gpu/gpu_helpers.h, GpuAllocatorConfig."""

_WORDS: Final = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), True),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), False),
}
"""As jax/_src/config.py reads them from the environment."""

_applied: Final[dict[str, str]] = {}
"""The variables that were applied here before the backend's start, as they were then."""

_switched: Final[set[str]] = set()
"""Which of JAX_ENABLE_X64 and JAX_DISABLE_JIT a configuration turned on here; the next one that does not request it
turns it off again. What the user turned on stays."""


def _is_environment_read() -> bool:
    """Returns whether it is too late for variables: a backend runs, or plugins have been registered for one.

    CUDA's plugin takes the memory fraction when it is registered, which compiling for a topology does too, and
    keeps it when backends are cleared. XLA reads its flags once.
    """
    from jax._src import xla_bridge  # jax has no public name for this question

    return has_backend_started() or bool(getattr(xla_bridge, "_plugins_registered", False))


def _read_environment() -> dict[str, str]:
    return {**os.environ, **(_applied if _is_environment_read() else {})}


def _read_configuration() -> DeviceConfiguration:
    """Returns the configuration that is in force, or will be if JAX starts now: applying it changes nothing.

    A memory fraction that no configuration can hold (4.0, for unified memory) remains the caller's variable.
    """
    environment = _read_environment()
    name, fraction = _find_fraction(environment)
    options = jax.config.values
    config = DeviceConfiguration(enable_x64=options["jax_enable_x64"], enable_jit=not options["jax_disable_jit"])
    known = {strategy.fraction: strategy for strategy in MemoryStrategy if strategy.fraction}
    if fraction in known:
        return replace(config, memory_strategy=known[fraction])
    if isinstance(fraction, float) and 0 < fraction <= 1:
        return replace(config, memory_strategy=MemoryStrategy.CUSTOM, memory_fraction=fraction)
    return replace(config, environment_variables={name: environment[name]})


def _apply_configuration(config: DeviceConfiguration) -> tuple[str, ...]:
    """Applies a configuration; returns the variables that have no effect because the backend has started, and warns.

    Raises:
        ValueError: the configuration is wrong, or has a variable with a value that JAX's option cannot have; then
            nothing was changed.
    """
    present = _read_environment()
    wanted = {**dict.fromkeys(sorted(_switched), "false"), **build_environment(config, present)}
    options = {name: _parse_option(name, text) for name, text in wanted.items() if _is_option(name)}
    if _is_environment_read():
        late = _find_differences(wanted, present)
        if late:
            names = ", ".join(f"{name}={wanted[name]} (in force: {value})" for name, value in late.items())
            exports = "; ".join(format_exports({name: wanted[name] for name in late}))
            warn(
                f"could not take effect: {names}; JAX's backend has already started in this process and read them "
                f"then, so nothing was changed; set them before the first use of jax: call get_device_manager(config) "
                f"first, or start the process with them, as in {exports}"
            )
        return tuple(late)
    changed = {name: value for name, value in options.items() if _to_word(value) != _read_option(name)}
    _update_options(changed)
    for name in changed.keys() & {ENABLE_X64, DISABLE_JIT}:
        (_switched.add if changed[name] else _switched.discard)(name)
    os.environ.update(wanted)
    _applied.clear()
    _applied.update(wanted)
    return ()


def _find_differences(wanted: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that would mean something else than what is in force, with the text that is in force."""
    late = {}
    for name, text in wanted.items():
        in_force = present.get(name, "not set")
        if name in (MEM_FRACTION, NEW_MEM_FRACTION):
            (carrier, new), (_, old) = _find_fraction({**present, **wanted}), _find_fraction(present)
            is_same = name != carrier or new == old
        elif _is_option(name):
            in_force = _read_option(name)
            is_same = _to_word(_parse_option(name, text)) == in_force
        elif name == XLA_FLAGS:
            is_same = sorted(text.split()) == sorted(present.get(name, "").split())
        else:
            is_same = text == present.get(name, _DEFAULTS.get(name))
        if not is_same:
            late[name] = in_force
    return late


def _find_fraction(environment: Mapping[str, str]) -> tuple[str, float | str]:
    """Returns the variable from which JAX reads the memory fraction, and its value; text where it is not a number."""
    name = NEW_MEM_FRACTION if environment.get(NEW_MEM_FRACTION) else MEM_FRACTION
    text = environment.get(name) or _DEFAULT_FRACTION
    try:
        return name, float(text)
    except ValueError:
        return name, text


def _is_option(variable: str) -> bool:
    """Returns whether JAX reads an option of `jax.config` from this variable when it is imported."""
    return variable.startswith("JAX_") and variable.lower() in jax.config.values


def _parse_option(variable: str, text: str) -> object:
    kind = jax.config.meta[variable.lower()][0]
    try:
        if kind is bool:
            return _WORDS[text.strip().lower()]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        example = {bool: "true", int: "8", float: "0.5"}[kind]
        rule = f"JAX reads it as a {kind.__name__}"
        raise ValueError(f"environment_variables has {variable}={text!r}; {rule}, such as {example}") from None


def _read_option(variable: str) -> str:
    return _to_word(jax.config.values[variable.lower()])


def _to_word(value: Any) -> str:
    """Returns an option's value as text: for an enumeration its word, for None the empty text, as in JAX."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(getattr(value, "value", value))


def _update_options(values: Mapping[str, object]) -> None:
    before = {name: jax.config.values[name.lower()] for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name.lower(), value)
    except (ValueError, RuntimeError, TypeError) as error:
        for changed, present in before.items():
            jax.config.update(changed.lower(), present)
        raise ValueError(f"environment_variables has {name}={value!r}, and JAX refuses it: {error}") from error
