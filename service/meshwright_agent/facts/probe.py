"""One probe of a host: reads every source once and joins the results into `HostFacts`.

A failed source loses only its own facts. Roots and NVML are arguments, so that the same code reads recorded machines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from meshwright.topology.chips import DISPLAY_CLASS, NVIDIA
from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts import tpu
from meshwright_agent.facts.infiniband import read_nics
from meshwright_agent.facts.kernel_log import read_kernel_log
from meshwright_agent.facts.model import CpuFacts, HostFacts, KernelLog, SourceProblem, TpuFacts
from meshwright_agent.facts.nvidia import read_nvidia
from meshwright_agent.facts.procfs import (
    OpenFiles,
    ProcessTable,
    find_holders,
    join_holders,
    read_cpu,
    read_kfd,
    read_machine,
    read_open_files,
)
from meshwright_agent.facts.sysfs import Roots, read_numa_nodes, read_pci_devices

VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", *tpu.VARIABLES)
"""The only environment variables that the probe returns."""

_NVIDIA_FILE: Final = re.compile(r"/dev/nvidia\d+")
_NOTHING_OPEN: Final = OpenFiles({}, is_complete=True)


@dataclass(frozen=True)
class LogPlace:
    """The path of the kernel log, and the boot and number of the last record read; None: no record."""

    path: Path
    after: int | None = None
    boot_id: str | None = None


def read_host_facts(
    roots: Roots,
    *,
    nvml: Any = None,
    log: LogPlace | None = None,
    wants_health: bool = True,
    on_log: Callable[[HostFacts], None] | None = None,
) -> HostFacts:
    """Returns the facts of a host that can be read without opening a device.

    Args:
        nvml: the module `pynvml` or a replacement; None: not available.
        log: the kernel log; None: do not read it.
        wants_health: False to read only the holders, because the health of cards and network ports takes many calls.
        on_log: receives the machine and the kernel log before NVML is called, which may hang.
    """
    table = ProcessTable(roots.proc)
    machine = read_machine(roots)
    kernel_log = _read_log(roots, log, machine.boot_id, has_cards=False)
    if on_log is not None and kernel_log is not None:
        on_log(HostFacts(machine, CpuFacts(), kernel_log=kernel_log))
    here = replace(roots, is_container=machine.container is not None)
    gpu = read_nvidia(nvml, here, table, wants_health=wants_health)
    slice_ = tpu.parse_slice(roots.environ)
    chips = tpu.read_chips(roots.sysfs)
    files = {chip.file for chip in chips if chip.file}
    open_files = read_open_files(roots.proc, files.__contains__) if files else _NOTHING_OPEN
    tpus = tpu.read_tpus(chips, slice_, open_files, table, roots.dev)
    kfd = read_kfd(roots.sysfs, roots.proc, roots.dev, table)
    computing = _find_openers(roots.proc, table) if gpu.is_blind else find_holders(gpu.gpus, tpus)
    return HostFacts(
        machine=machine,
        cpu=read_cpu(roots),
        numa_nodes=read_numa_nodes(roots.sysfs),
        gpus=gpu.gpus,
        links=gpu.links,
        tpus=tpus,
        slice=slice_,
        driver=gpu.driver,
        environment={name: roots.environ[name] for name in VARIABLES if name in roots.environ},
        problems=(*gpu.problems, *_find_driverless(tpus)),
        refused=gpu.refused,
        holders=join_holders(computing, kfd.holders) if kfd else computing,
        kernel_log=kernel_log or _read_log(roots, log, machine.boot_id, has_cards=bool(gpu.gpus)),
        kfd=kfd,
        nics=read_nics(roots.sysfs, [card.pci_bus_id for card in gpu.gpus]) if wants_health else (),
    )


def _find_openers(proc: Path, table: ProcessTable) -> tuple[DeviceProcess, ...] | None:
    """Returns the processes that have a card's file open, for drivers that do not report processes; None: unknown."""
    opened = read_open_files(proc, lambda file: _NVIDIA_FILE.fullmatch(file) is not None)
    found = table.describe_holders(opened)
    return found if found or opened.is_complete else None


def _read_log(roots: Roots, log: LogPlace | None, boot_id: str | None, *, has_cards: bool) -> KernelLog | None:
    """Returns the XIDs since the last read in this boot; None if the host never had an NVIDIA card.

    Args:
        has_cards: the driver lists cards, which a container's sysfs may not show.
    """
    has_cards = has_cards or any(card.kind.startswith(DISPLAY_CLASS) for card in read_pci_devices(roots.sysfs, NVIDIA))
    if not has_cards and (log is None or log.after is None):
        return None
    if log is None:
        return KernelLog(is_wanted=False)
    return read_kernel_log(log.path, after=log.after if log.boot_id in (None, boot_id) else None)


def _find_driverless(tpus: Iterable[TpuFacts]) -> tuple[SourceProblem, ...]:
    return tuple(
        SourceProblem(
            "no_tpu_driver", f"TPU {tpu_.pci_bus_id} has no driver bound: neither an accel node nor a VFIO group"
        )
        for tpu_ in tpus
        if tpu_.device_file is None
    )


def read_holders(roots: Roots, *, nvml: Any = None) -> tuple[DeviceProcess, ...] | None:
    """Returns the processes that compute on a device or have its file open, as monitors do.

    None: no holder was found, and some processes could not be inspected.
    """
    facts = read_host_facts(roots, nvml=nvml, wants_health=False)
    if not facts.gpus:
        return facts.holders
    return join_holders(facts.holders, _find_openers(roots.proc, ProcessTable(roots.proc)))
