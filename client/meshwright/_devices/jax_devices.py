"""JAX's devices by platform, the default device, and the distribution of data over devices.

Rule: nothing is cached. Each call asks JAX, so a restarted backend gives its own devices. A preference does not hide
devices or set JAX's default. Each call starts JAX's backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
from jax.extend import backend as jax_backend

from meshwright._devices.no_gpu import explain_no_gpu
from meshwright._devices.shards import split_rows
from meshwright._jax_devices import Device, is_own, list_devices
from meshwright.wire.devices import parse_platform

_ORDER: Final = ("gpu", "tpu", "cpu")


class JAXDeviceManager:
    """JAX's devices as this process sees them. In a job of several processes, the devices of all processes are listed.

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
        return _start() if self._devices is None else list(self._devices)

    @property
    def gpu_devices(self) -> list[Device]:
        """All GPUs, in JAX's order; empty where there are none."""
        return self._list("gpu")

    @property
    def cpu_devices(self) -> list[Device]:
        """All CPU devices, also beside GPUs or TPUs, unless JAX_PLATFORMS leaves them out."""
        return self._list("cpu")

    @property
    def tpu_devices(self) -> list[Device]:
        """All TPUs, in JAX's order; empty where there are none."""
        return self._list("tpu")

    def list_platforms(self) -> dict[str, list[Device]]:
        """Returns the devices of every platform that JAX has started, by platform, the default one first."""
        if self._devices is None:
            clients = [_start()[0].client, *jax_backend.backends().values()]
            found = [device for client in dict.fromkeys(clients) for device in client.devices()]
        else:
            found = self._devices
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
        for name in (*wanted, *_ORDER, *platforms):
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
            TypeError: a leaf is not an array of numbers, or a target is not a device.
        """
        targets = self._choose_targets() if target_devices is None else _check_targets(target_devices)
        shards = split_rows(data, len(targets))
        return [jax.device_put(shard, device) for shard, device in zip(shards, targets, strict=True)]

    def _choose_targets(self) -> list[Device]:
        own = [device for device in self.gpu_devices or self.devices if is_own(device)]
        return own or [self.get_default_device()]

    def _list(self, platform: str) -> list[Device]:
        return self.list_platforms().get(platform, [])


def _start() -> list[Device]:
    try:
        return list_devices()
    except RuntimeError as error:
        reasons = "".join(f"\n  no GPU: {reason}" for reason in explain_no_gpu())
        raise RuntimeError(
            f"No JAX devices are visible: JAX could not start: {error}; it must start every platform that "
            f"JAX_PLATFORMS names: unset it to take what is here, or use JAX_PLATFORMS=cpu{reasons}"
        ) from error


def _check_targets(devices: Sequence[Any]) -> list[Device]:
    targets = list(devices)
    if not targets:
        raise ValueError("target_devices is empty; data needs 1 device at least: leave it out to use all of them")
    for device in targets:
        if not isinstance(device, jax.Device):
            raise TypeError(f"target_devices holds a {type(device).__name__}; it holds devices, as in jax.devices()")
        if targets.count(device) > 1:
            raise ValueError(f"target_devices holds {device} more than once; each device gets one shard: give it once")
        if not is_own(device):
            raise ValueError(
                f"target_devices holds {device} of process {device.process_index}, and this is process "
                f"{device.client.process_index()}; a process places data on its own devices: use jax.local_devices()"
            )
    return targets
