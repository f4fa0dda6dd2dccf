"""Explains why JAX has no NVIDIA GPU on this host: each possible reason is checked separately and named.

Rule: `read_gpu_sight` reads a snapshot of the host, without a CUDA context. `_CHECKS` is the table of pure rules on the
snapshot, in the order in which JAX needs them. A reason has what was found, the rule, and what to do.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

import jax

from meshwright._devices.cuda import find_nvml, format_cuda_version, read_driver_version, read_gpus
from meshwright.topology.chips import DISPLAY_CLASS, NVIDIA
from meshwright.topology.identity import HostGpu, parse_visible

LIBRARY: Final = "libcuda.so.1"
DEVICE_FILES: Final = ("nvidia0", "nvidiactl", "dxg")
"""JAX starts CUDA only where one of these is in /dev. Source: jax/_src/hardware_utils.py, `has_visible_nvidia_gpu`."""

DRIVERS: Final[Mapping[int, int]] = {12: 525, 13: 580}
"""CUDA's major version → the oldest driver for it. Source: jax, docs/installation.md, "NVIDIA GPU"."""

_PLUGIN: Final = re.compile(r"jax_plugins\.xla_cuda(\d+)")
_STUB: Final = 34
"""CUDA_ERROR_STUB_LIBRARY: the toolkit's stub for linking. Source: cuda.h, `CUresult`."""

Code = Literal[
    "no_device_file",
    "no_driver_library",
    "driver_too_old",
    "no_cuda_plugin",
    "cuda_visible_devices",
    "jax_platforms",
]


@dataclass(frozen=True)
class NoGpuReason:
    """One reason why JAX has no GPU: what was found, the rule that it breaks, and what to do."""

    code: Code
    found: str
    rule: str
    hint: str

    def __str__(self) -> str:
        return f"{self.found}; {self.rule}; {self.hint}"


@dataclass(frozen=True)
class GpuSight:
    """A snapshot of what JAX needs to find a GPU.

    Attributes:
        device_files: those of `DEVICE_FILES` that are in /dev.
        cards: PCI addresses of NVIDIA's cards.
        library_error: why the driver's library cannot be used; None: it is usable.
        cuda_number: the newest CUDA that the driver supports, 12020 for 12.2; None: not reported.
        driver_version: of the loaded kernel module.
        plugins: JAX's CUDA plugins, CUDA's major version → version of the package.
        jax_version: of jax.
        visible: CUDA_VISIBLE_DEVICES; None: not set.
        gpus: the host's GPUs, where the driver lists them.
        container_visible: NVIDIA_VISIBLE_DEVICES, read by container runtimes.
        jax_platforms: the value of JAX_PLATFORMS at the import of jax, or that of `jax.config` since.
    """

    device_files: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    library_error: str | None = None
    cuda_number: int | None = None
    driver_version: str | None = None
    plugins: Mapping[int, str] | None = None
    jax_version: str = ""
    visible: str | None = None
    gpus: tuple[HostGpu, ...] = ()
    container_visible: str | None = None
    jax_platforms: str | None = None


def explain_no_gpu(sight: GpuSight | None = None) -> tuple[NoGpuReason, ...]:
    """Returns every reason why JAX has no NVIDIA GPU in this process; empty where there is no problem.

    Starts no backend and makes no CUDA context.

    Args:
        sight: the snapshot; None reads one of this machine.
    """
    seen = read_gpu_sight() if sight is None else sight
    found = (check(seen) for check in _CHECKS)
    return tuple(reason for reason in found if reason is not None)


def read_gpu_sight(
    environ: Mapping[str, str] | None = None,
    *,
    roots: tuple[Path, Path, Path] = (Path("/dev"), Path("/proc"), Path("/sys")),
    load_library: Callable[[str], Any] = ctypes.CDLL,
    nvml: Callable[[], Any] = find_nvml,
    plugins: Callable[[], Mapping[int, str]] | None = None,
    jax_platforms: str | None = None,
) -> GpuSight:
    """Returns a snapshot of this machine.

    Args:
        environ: None means `os.environ`.
        roots: the folders of /dev, /proc and /sys.
        load_library: loads a shared library by name, or raises OSError.
        nvml: returns the module `pynvml` or None.
        plugins: returns JAX's CUDA plugins; None reads the installed packages.
        jax_platforms: None means `jax.config.jax_platforms`.
    """
    environ = os.environ if environ is None else environ
    dev, proc, sysfs = roots
    library_error, number = read_driver_library(load_library)
    reading = read_gpus(nvml() if library_error is None else None, proc)
    return GpuSight(
        device_files=tuple(name for name in DEVICE_FILES if (dev / name).exists()),
        cards=read_cards(sysfs),
        library_error=library_error,
        cuda_number=number,
        driver_version=reading.driver_version or read_driver_version(proc),
        plugins=(plugins or read_cuda_plugins)(),
        jax_version=jax.__version__,
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
        gpus=tuple(card.gpu for card in reading.cards),
        container_visible=environ.get("NVIDIA_VISIBLE_DEVICES"),
        jax_platforms=jax.config.values["jax_platforms"] if jax_platforms is None else jax_platforms,
    )


def read_driver_library(load_library: Callable[[str], Any]) -> tuple[str | None, int | None]:
    """Returns (why the driver's library cannot be used, or None; the CUDA version that it supports, as 12020).

    `cuDriverGetVersion` needs no initialized driver, and makes no context.
    Source: CUDA Driver API, "Version Management".
    """
    number = ctypes.c_int(0)
    try:
        status = load_library(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return str(error), None
    if status == _STUB:
        return f"{LIBRARY} is the CUDA toolkit's stub for linking, not the driver's", None
    return None, number.value if status == 0 and number.value else None


def read_cards(sysfs: Path) -> tuple[str, ...]:
    """Returns the PCI addresses of NVIDIA's display and 3D controllers."""
    folders = sorted((sysfs / "bus/pci/devices").glob("*"))
    return tuple(
        folder.name
        for folder in folders
        if _read_text(folder / "vendor") == NVIDIA and _read_text(folder / "class").startswith(DISPLAY_CLASS)
    )


def read_cuda_plugins() -> dict[int, str]:
    """Returns JAX's CUDA plugins by CUDA's major version, as JAX finds them: by entry point."""
    found = ((_PLUGIN.fullmatch(point.value), point) for point in metadata.entry_points(group="jax_plugins"))
    return {int(match[1]): point.dist.version if point.dist else "" for match, point in found if match}


def _check_device_file(sight: GpuSight) -> NoGpuReason | None:
    if sight.device_files:
        return None
    names = ", ".join(f"/dev/{name}" for name in DEVICE_FILES)
    found, hint = f"none of {names} is here, and no NVIDIA card is on the PCI bus", "run where there is a GPU"
    if sight.cards:
        found = f"none of {names} is here, though {len(sight.cards)} NVIDIA card(s) are on the PCI bus"
        hint = "load the driver (nvidia-smi on the host does), and give the container its GPUs, as in --gpus all"
    if sight.container_visible in ("void", "none", ""):
        found += f"; NVIDIA_VISIBLE_DEVICES is {sight.container_visible!r}, which keeps GPUs out of the container"
    return NoGpuReason("no_device_file", found, "JAX starts CUDA only where one of these files is", hint)


def _check_library(sight: GpuSight) -> NoGpuReason | None:
    if sight.library_error is None:
        return None
    return NoGpuReason(
        "no_driver_library",
        f"the driver's library cannot be used: {sight.library_error}",
        f"CUDA needs {LIBRARY}, which comes with the driver and not with jax",
        "install the driver's user libraries, or let the NVIDIA container toolkit mount them "
        "(NVIDIA_DRIVER_CAPABILITIES=compute,utility), and check LD_LIBRARY_PATH",
    )


def _check_driver(sight: GpuSight) -> NoGpuReason | None:
    """CUDA's major versions are compared: within one, an older driver runs newer minor versions."""
    if not sight.plugins or sight.cuda_number is None or sight.cuda_number // 1000 >= min(sight.plugins):
        return None
    needed, own = min(sight.plugins), sight.cuda_number // 1000
    least = f", {DRIVERS[needed]} or newer" if needed in DRIVERS else ""
    other = f', or install the plugin for this driver: pip install "jax[cuda{own}]"' if own in DRIVERS else ""
    return NoGpuReason(
        "driver_too_old",
        f"the driver ({sight.driver_version or 'of unknown version'}) supports CUDA up to "
        f"{format_cuda_version(sight.cuda_number)}, and jax's plugin is for CUDA {needed}",
        f"it needs a driver for CUDA {needed}{least}",
        f"update the driver{other}",
    )


def _check_plugin(sight: GpuSight) -> NoGpuReason | None:
    if sight.plugins:
        return None
    major = 13 if sight.cuda_number is None or sight.cuda_number >= 13000 else 12
    return NoGpuReason(
        "no_cuda_plugin",
        f"jax {sight.jax_version} is installed without a CUDA plugin",
        "jax alone computes on the CPU; its entry point jax_plugins.xla_cudaNN comes with an extra",
        f'install one, as in pip install "jax[cuda{major}]"',
    )


def _check_visible(sight: GpuSight) -> NoGpuReason | None:
    if sight.visible is None or _shows_a_gpu(sight.visible, sight.gpus):
        return None
    known = f"; this host has {len(sight.gpus)}, numbered from 0" if sight.gpus else ""
    return NoGpuReason(
        "cuda_visible_devices",
        f"CUDA_VISIBLE_DEVICES is {sight.visible!r}{known}",
        "CUDA shows the GPUs that it lists, up to the first entry that is none; an empty list or -1 hides all",
        "unset it, or list GPUs, as in CUDA_VISIBLE_DEVICES=0, before the process starts",
    )


def _shows_a_gpu(text: str, gpus: tuple[HostGpu, ...]) -> bool:
    """Returns whether the first entry names a GPU, as far as is known here: of unknown GPUs, any number may do."""
    first = text.split(",")[0].strip()
    if not gpus:
        return first.isdigit() or first.startswith(("GPU-", "MIG-"))
    return bool(parse_visible({"CUDA_VISIBLE_DEVICES": first, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, gpus))


def _check_platforms(sight: GpuSight) -> NoGpuReason | None:
    named = [name.strip() for name in (sight.jax_platforms or "").split(",") if name.strip()]
    if not named or {"cuda", "gpu"} & set(named):
        return None
    return NoGpuReason(
        "jax_platforms",
        f"JAX_PLATFORMS (jax.config.jax_platforms) is {sight.jax_platforms!r}",
        "JAX starts no other platforms than those that are listed there",
        "unset it, or use JAX_PLATFORMS=cuda,cpu, before the first use of jax",
    )


_CHECKS: Final[tuple[Callable[[GpuSight], NoGpuReason | None], ...]] = (
    _check_device_file,
    _check_library,
    _check_driver,
    _check_plugin,
    _check_visible,
    _check_platforms,
)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
