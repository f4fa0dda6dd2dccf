"""TPUs from the PCI bus and the environment. Does not open device files, because only one process may open each.

Rule: facts that neither the bus nor a variable reports are None. This module does not know JAX's device order or
coordinates. The host view adds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshwright.topology.chips import GOOGLE, TPU_KINDS
from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts.model import SliceFacts, TpuFacts
from meshwright_agent.facts.procfs import OpenFiles, ProcessTable
from meshwright_agent.facts.sysfs import (
    PciDevice,
    list_folder,
    parse_int,
    read_link,
    read_numa_node,
    read_pci_devices,
    read_pci_health,
    read_pcie_root,
)

_TYPE_KINDS: Final = (("v2-", "TPU v2"), ("v3-", "TPU v3"))
VARIABLES: Final = (
    "TPU_NAME",
    "TPU_ACCELERATOR_TYPE",
    "TPU_TOPOLOGY",
    "TPU_TOPOLOGY_WRAP",
    "TPU_TOPOLOGY_ALT",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_HOST_BOUNDS",
    "TPU_PROCESS_BOUNDS",
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
)
"""Set by GKE and by users; libtpu reads them. Source: GKE, "About TPUs in GKE"; jax/_src/clusters; for …_WRAP and …_ALT
(a twisted torus), ci/run_bazel_test_tpu.sh of jax, and test_tpu.py of penghao-wu/cambrian for their values."""


@dataclass(frozen=True)
class TpuFunction:
    """A TPU on the bus, and its device file."""

    device: PciDevice
    file: str | None


def read_chips(sysfs: Path) -> tuple[TpuFunction, ...]:
    """Returns the TPUs on the PCI bus with their device files, by address."""
    devices = [device for device in read_pci_devices(sysfs, GOOGLE) if device.device in TPU_KINDS]
    return tuple(TpuFunction(device, read_device_file(device.path)) for device in devices)


def read_device_file(path: Path) -> str | None:
    """Returns the device file of a PCI function: that of the accel driver, else of its VFIO group, else None."""
    accel = [node.name for node in list_folder(path / "accel") if node.name.startswith("accel")]
    if accel:
        return f"/dev/{accel[0]}"
    driver, group = (read_link(path / name) for name in ("driver", "iommu_group"))
    return f"/dev/vfio/{group.name}" if driver and driver.name.startswith("vfio") and group else None


def read_tpus(
    chips: tuple[TpuFunction, ...], slice_: SliceFacts, open_files: OpenFiles, table: ProcessTable, dev: Path
) -> tuple[TpuFacts, ...]:
    """Returns the TPUs with sysfs' report and the holders."""
    return tuple(
        TpuFacts(
            pci_bus_id=chip.device.address,
            kind=TPU_KINDS[chip.device.device] or parse_kind(slice_.accelerator_type),
            pcie_root=read_pcie_root(chip.device.path),
            numa_node=read_numa_node(chip.device.path),
            device_file=chip.file,
            processes=_describe(chip.file, open_files, table),
            has_file=None if chip.file is None else (dev / chip.file.removeprefix("/dev/")).exists(),
            pci=read_pci_health(chip.device.path),
        )
        for chip in chips
    )


def _describe(file: str | None, open_files: OpenFiles, table: ProcessTable) -> tuple[DeviceProcess, ...] | None:
    pids = None if file is None else open_files.holders_of(file)
    return None if pids is None else tuple(table.describe(pid) for pid in pids)


def parse_kind(accelerator_type: str | None) -> str | None:
    """Returns the kind of an accelerator type, for an ambiguous PCI id: "v3-8" → "TPU v3"."""
    return next((kind for start, kind in _TYPE_KINDS if (accelerator_type or "").startswith(start)), None)


def parse_slice(environ: Mapping[str, str]) -> SliceFacts:
    """Returns the slice from the environment. Missing or wrong values are None."""
    hosts = parse_shape(environ.get("TPU_HOST_BOUNDS") or environ.get("TPU_PROCESS_BOUNDS"))
    names = [name for name in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip()]
    return SliceFacts(
        name=environ.get("TPU_NAME") or None,
        accelerator_type=environ.get("TPU_ACCELERATOR_TYPE") or None,
        topology=parse_shape(environ.get("TPU_TOPOLOGY")),
        chips_per_host=parse_shape(
            environ.get("TPU_CHIPS_PER_HOST_BOUNDS") or environ.get("TPU_CHIPS_PER_PROCESS_BOUNDS")
        ),
        hosts=hosts,
        wrap=parse_flags(environ.get("TPU_TOPOLOGY_WRAP")),
        twisted=parse_flag(environ.get("TPU_TOPOLOGY_ALT")),
        host_count=len(names) or (math.prod(hosts) if hosts else None),
    )


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Returns "2x4" or "2,4,1" as three sizes, (2, 4, 1); None unless it is a shape of one to three dimensions."""
    parts = [parse_int(part) for part in (text or "").replace("x", ",").split(",")]
    sizes = [size for size in parts if size is not None and size > 0]
    if len(sizes) != len(parts) or len(sizes) > 3:
        return None
    return (*sizes, *[1] * (3 - len(sizes)))


def parse_flags(text: str | None) -> tuple[bool, ...] | None:
    """Returns "true,true,false" as three booleans; None for anything else."""
    flags = [parse_flag(word) for word in (text or "").split(",")]
    known = tuple(flag for flag in flags if flag is not None)
    return known if len(known) == len(flags) == 3 else None


def parse_flag(text: str | None) -> bool | None:
    """Returns "true" or "false", in any letter case, as a boolean; None for anything else."""
    return {"true": True, "false": False}.get((text or "").strip().lower())
