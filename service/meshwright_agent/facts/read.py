"""One look at a host: every source once, joined into `HostFacts`. Runs in the probe.

Rule: a source that fails costs its own facts and no others. Roots and NVML are arguments, so that a recorded
machine is read by the same code as this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from meshwright_agent.facts import cpu, nvidia, tpu
from meshwright_agent.facts.model import GpuFacts, HolderFacts, HostFacts, ProcessFacts, TpuFacts
from meshwright_agent.facts.owners import OpenFiles, ProcessTable, merge_holders, read_open_files
from meshwright_agent.facts.sysfs import Roots, read_numa_nodes

VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "JAX_PLATFORMS",
    "JAX_NUM_CPU_DEVICES",
    *tpu.VARIABLES,
)
"""Of the environment, only these leave the probe."""

_NVIDIA_FILE: Final = re.compile(r"/dev/nvidia\d+")
_NOTHING_OPEN: Final = OpenFiles({}, is_complete=True)


def read_host_facts(roots: Roots, *, nvml: Any = None) -> HostFacts:
    """Returns what can be known of a host without touching a device.

    Args:
        roots: where its files are.
        nvml: the module `pynvml`, or what behaves like it; None: there is none.
    """
    table = ProcessTable(roots.proc)
    gpu = nvidia.read_nvidia(nvml, sysfs=roots.sysfs, dev=roots.dev, describe=table.describe)
    slice_ = tpu.parse_slice(roots.environ)
    chips = tpu.read_chips(roots.sysfs)
    files = {chip.file for chip in chips if chip.file}
    open_files = read_open_files(roots.proc, files.__contains__) if files else _NOTHING_OPEN
    tpus = tpu.read_tpus(chips, slice_, open_files, table)
    return HostFacts(
        machine=cpu.read_machine(roots),
        cpu=cpu.read_cpu(roots),
        numa_nodes=read_numa_nodes(roots.sysfs),
        gpus=gpu.gpus,
        links=gpu.links,
        tpus=tpus,
        slice=slice_,
        driver=gpu.driver,
        environment={name: roots.environ[name] for name in VARIABLES if name in roots.environ},
        problems=(*gpu.problems, *_tell_driverless(tpus)),
        holders=find_holders(gpu.gpus, tpus),
    )


def _tell_driverless(tpus: Iterable[TpuFacts]) -> tuple[str, ...]:
    return tuple(
        f"TPU {tpu_.pci_bus_id} has no driver bound: neither an accel node nor a VFIO group"
        for tpu_ in tpus
        if tpu_.device_file is None
    )


def find_holders(gpus: Iterable[GpuFacts], tpus: Iterable[TpuFacts]) -> tuple[HolderFacts, ...] | None:
    """Returns who computes on these devices; None where some could not be looked at and nobody was found."""
    looked: list[tuple[str, tuple[ProcessFacts, ...] | None]] = []
    looked += [(gpu.key, gpu.processes) for gpu in gpus]
    looked += [(chip.device_file or chip.key, chip.processes) for chip in tpus]
    found = merge_holders(_hold(process, name) for name, processes in looked for process in processes or ())
    return found if found or all(processes is not None for _, processes in looked) else None


def _hold(process: ProcessFacts, device: str) -> HolderFacts:
    return HolderFacts(process.pid, process.name, process.command, (device,), process.own)


def read_holders(roots: Roots, *, nvml: Any = None) -> tuple[HolderFacts, ...] | None:
    """Returns who holds a device in any way: computes on it, or only has its file open, as monitors do.

    None where not every process could be looked at and nobody was found.
    """
    facts = read_host_facts(roots, nvml=nvml)
    computing = facts.holders
    if not facts.gpus:
        return computing
    open_files = read_open_files(roots.proc, lambda file: _NVIDIA_FILE.fullmatch(file) is not None)
    table = ProcessTable(roots.proc)
    monitors = (table.describe_holder(pid, files) for pid, files in open_files.files.items())
    found = merge_holders((*(computing or ()), *monitors))
    return found if found or (computing is not None and open_files.is_complete) else None
