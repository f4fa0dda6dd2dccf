"""The devices of this process: their properties, the memory that JAX may take, and the default device.

Rule: importing this module imports jax and starts nothing. A configuration takes effect only before JAX's backend
starts, and where it cannot, a RuntimeWarning reports it. A preferred platform does not hide others or set JAX's
default. Independent of meshes and agents.
"""

from __future__ import annotations

from typing import Final

from meshwright._devices.capabilities import DeviceCapabilities, DeviceDetector, DeviceType
from meshwright._devices.cpu import CPUDetector
from meshwright._devices.cuda import CUDADetector
from meshwright._devices.jax_devices import JAXDeviceManager
from meshwright._devices.manager import DeviceManager, build_info_lines
from meshwright._devices.no_gpu import GpuSight, NoGpuReason, explain_no_gpu, read_gpu_sight
from meshwright._devices.single import SharedManager
from meshwright._devices.tpu import TPUDetector
from meshwright._jax_devices import Device
from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment

__all__ = [
    "CPUDetector",
    "CUDADetector",
    "DeviceCapabilities",
    "DeviceConfiguration",
    "DeviceDetector",
    "DeviceManager",
    "DeviceType",
    "GpuSight",
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
    "read_gpu_sight",
]

_shared: Final = SharedManager()


def get_device_manager(config: DeviceConfiguration | None = None, force_reinit: bool = False) -> DeviceManager:
    """Returns the device manager of this process, the same one for all threads; made at the first call.

    Args:
        config: None means the existing manager, or at first the configuration in force (see `DeviceManager`). A
            different configuration causes a RuntimeWarning, and the manager does not change.
        force_reinit: a new manager replaces the old one.

    Raises:
        ValueError: the configuration has invalid values.
        TypeError: `config` has the wrong type.
    """
    return _shared.get(config, force_reinit)


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
    for line in build_info_lines(get_device_manager().get_device_info()):
        print(line)


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
    manager = _shared.set_strategy(memory_strategy)
    manager.use_mixed_precision(enable_mixed_precision)
    return manager
