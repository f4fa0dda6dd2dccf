"""The children of this agent: the start of each, from the settings.

Rule: a child's environment is complete before it imports jax.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_worker_environment
from meshwright.topology.chips import DISPLAY_CLASS, GOOGLE, NVIDIA
from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.facts.sysfs import read_pci_devices
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.process import ChildSpec

_ACCELERATOR_FILE: Final = re.compile(r"nvidia\d+|accel\d+|kfd")
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Otherwise numpy would start one thread per core for large matrices, which plans do not have."""


_OF_OTHER_JOBS: Final = {"JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_LOCAL_DEVICE_IDS"}
"""Variables by which `jax.distributed.initialize` would join another job, or open some of the devices only."""


def has_accelerators(settings: Settings) -> bool:
    """Returns whether device files or the PCI bus show GPUs or TPUs. Does not open devices."""
    dev = settings.host_root / "dev"
    names = [path.name for path in dev.iterdir()] if dev.is_dir() else []
    if any(_ACCELERATOR_FILE.fullmatch(name) for name in names) or any((dev / "vfio").glob("[0-9]*")):
        return True
    sysfs = settings.host_root / "sys"
    cards = (card for card in read_pci_devices(sysfs, NVIDIA) if card.kind.startswith(DISPLAY_CLASS))
    return any(cards) or any(read_pci_devices(sysfs, GOOGLE))


def explain_not_started(facts: HostFacts | None) -> str:
    """Returns why JAX may not be started on accelerators without a request, as text; "" if it may.

    JAX may be started if no other process holds a device. Unknown holders (None) count as other processes. JAX opens
    every GPU that it sees. A GPU that does not accept processes also prevents the start, unless CUDA_VISIBLE_DEVICES
    may hide it.
    """
    if facts is None or facts.holders is None:
        return "it is not known who holds the devices"
    if not all(holder.own for holder in facts.holders):
        return describe_holders(facts.holders)
    closed = [gpu.index for gpu in facts.gpus if gpu.compute_mode == "prohibited"]
    if not closed or "CUDA_VISIBLE_DEVICES" in facts.environment:
        return ""
    return f"GPU {closed[0]} is in compute mode prohibited; `nvidia-smi -i {closed[0]} -c DEFAULT` opens it"


def describe_holders(holders: Iterable[DeviceProcess]) -> str:
    """Returns the other processes and their devices as text: the first, and the number of the others."""
    others = [holder for holder in holders if not holder.own]
    programs = [(holder.pid, holder.name or holder.command) for holder in others]
    names = [f"process {pid}" + (f" ({program})" if program else "") for pid, program in programs]
    held = list(dict.fromkeys(device for holder in others for device in holder.devices))
    return f"{_abridge(names)} {'hold' if len(others) > 1 else 'holds'} {_abridge(held) or 'a device'}"


def _abridge(words: Sequence[str]) -> str:
    return "".join(words[:1]) + (f" and {len(words) - 1} more" if len(words) > 1 else "")


def build_device_spec(settings: Settings, environ: Mapping[str, str], *, stays: bool) -> ChildSpec:
    """Returns the spec of the device worker. A worker that `stays` is not released when idle."""
    return ChildSpec(
        name="device",
        module="meshwright_agent.children.device",
        environment=_build_environment(settings, _order_by_pci(environ), is_cpu=bool(settings.cpu_devices)),
        start_timeout_s=settings.start_timeout_s,
        idle_release_s=None if stays or settings.hold == "always" else settings.idle_release_s,
        has_devices=True,
    )


def build_preflight_spec(settings: Settings, environ: Mapping[str, str], *, is_cpu: bool) -> ChildSpec:
    """Returns the spec of a preflight's process, which ends after one call: a JAX job cannot be joined twice."""
    base = {name: value for name, value in _order_by_pci(environ).items() if name not in _OF_OTHER_JOBS}
    return ChildSpec(
        name="preflight",
        module="meshwright_agent.children.preflight",
        environment=_build_environment(settings, base, is_cpu=is_cpu),
        start_timeout_s=settings.start_timeout_s,
        idle_release_s=0.0,
        cancel_grace_s=0.2,  # a collective cannot be interrupted
        backoff_max_s=2.0,
        crash_budget=sys.maxsize,  # each preflight is a new attempt
        has_devices=True,
    )


def build_probe_spec(settings: Settings, environ: Mapping[str, str]) -> ChildSpec:
    """Returns the spec of the probe, which ends after one call."""
    return ChildSpec(
        name="probe",
        module="meshwright_agent.children.probe",
        environment=lambda: _order_by_pci(environ),
        start_timeout_s=settings.probe_timeout_s,
        idle_release_s=0.0,
    )


def build_planner_spec(settings: Settings, environ: Mapping[str, str]) -> ChildSpec:
    """Returns the spec of the planner, which serves a long plan and the plans after it."""
    return ChildSpec(
        name="planner",
        module="meshwright_agent.children.planner",
        environment=lambda: {**_ONE_THREAD, **environ},
        start_timeout_s=settings.start_timeout_s,
        idle_release_s=settings.idle_release_s,
        backoff_max_s=2.0,
        crash_budget=sys.maxsize,  # each request is a new attempt: the previous request may have caused the crash
    )


def _build_environment(settings: Settings, base: Mapping[str, str], *, is_cpu: bool) -> Callable[[], Mapping[str, str]]:
    config = DeviceConfiguration(memory_strategy=MemoryStrategy(settings.memory_strategy))
    platform = "cpu" if is_cpu else None
    return lambda: build_worker_environment(config, base, platform=platform, cpu_devices=settings.cpu_devices)


def _order_by_pci(environ: Mapping[str, str]) -> dict[str, str]:
    """Makes CUDA order GPUs by PCI address, as the driver does, instead of by speed."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environ}
