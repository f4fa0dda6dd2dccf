"""What the doctor looks at, gathered once: settings, packages, what the probe and JAX say, what may be written.

JAX is started only in the device worker, as the agent would, and only where the agent would: not on devices that
somebody holds or has reserved.
"""

from __future__ import annotations

import ctypes.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from meshwright.compiling.compilers import explain_libtpu
from meshwright.errors import ProblemError
from meshwright_agent.clock import read_boot_clock
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.host.look import ask_probe, ask_worker, explain_held
from meshwright_agent.leases import read_held
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.specs import has_accelerators

_PACKAGES: Final = (
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda12-plugin",
    "jax-cuda12-pjrt",
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
)


@dataclass(frozen=True)
class Surroundings:
    """Everything that the checks look at."""

    settings: Settings
    environ: Mapping[str, str]
    versions: Mapping[str, str]
    facts: HostFacts | None = None
    facts_error: str = ""
    jax: Mapping[str, Any] | None = None
    jax_error: str = ""
    jax_log: tuple[str, ...] = field(default=())
    untouched: str = ""
    state_error: str = ""
    nvml_library: bool = False
    libtpu_mismatch: str = ""

    @property
    def gpu_count(self) -> int:
        """GPUs that the driver lists."""
        return len(self.facts.gpus) if self.facts else 0

    @property
    def tpu_count(self) -> int:
        """TPU chips on the PCI bus."""
        return len(self.facts.tpus) if self.facts else 0


async def gather(settings: Settings, environ: Mapping[str, str], owner: str) -> Surroundings:
    """Returns what is here.

    Args:
        settings, environ: what an agent would have.
        owner: the agent that runs on this host, in words; empty where there is none. JAX is not started beside it.
    """
    known: dict[str, Any] = {} if settings.simulate else await _look(settings, environ, owner)
    return Surroundings(
        settings=settings,
        environ=environ,
        versions=_read_versions(),
        state_error=_try_state_dir(settings),
        nvml_library=ctypes.util.find_library("nvidia-ml") is not None,
        libtpu_mismatch=explain_libtpu() or "",
        **known,
    )


async def _look(settings: Settings, environ: Mapping[str, str], owner: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    try:
        seen["facts"] = await ask_probe(settings, environ)
    except ProblemError as error:
        seen["facts_error"] = error.detail
    if settings.cpu_devices is None and has_accelerators(settings):
        untouched = owner or explain_held(seen.get("facts")) or _explain_lease(settings)
        if untouched:
            return seen | {"untouched": untouched}
    try:
        seen["jax"], _ = await ask_worker(settings, environ)
    except ProblemError as error:
        seen["jax_error"], seen["jax_log"] = error.detail, error.log
    return seen


def _explain_lease(settings: Settings) -> str:
    left = read_held(settings.database_path, read_boot_clock(settings.proc_root))
    if not left:
        return ""
    lease = left[0].lease
    devices = ", ".join(str(device.local_index) for device in lease.devices)
    return f"device {devices} is leased by {lease.id} ({lease.purpose})"


def _read_versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _try_state_dir(settings: Settings) -> str:
    """Returns why the state directory cannot be written, or made where it is not there yet; nothing is made."""
    try:
        place = next(path for path in (settings.state_dir, *settings.state_dir.absolute().parents) if path.exists())
        if not place.is_dir():
            return f"{place} is not a directory"
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        return str(error)
    return ""
