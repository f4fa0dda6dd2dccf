"""Labels of a Kubernetes node, as a feature file that node-feature-discovery reads.

Rule: an unknown label is absent. Every file has an expiry time, so that the labels of a dead agent disappear. A reader
sees the old file or the new file, never a partial one. This module does not use the Kubernetes API.

Source: node-feature-discovery, docs/usage/customization-guide.md, "Feature files" (read 2026-11); values by
kubernetes.io, "Labels and Selectors": at most 63 characters, letters and digits at both ends, -, _ and . between.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from meshwright.wire.bench import BenchRecord
from meshwright.wire.devices import Device, Devices
from meshwright.wire.health import Health, select_hardware
from meshwright_agent.answers.benches import Benches
from meshwright_agent.clock import Clock
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.base import AgentHost
from meshwright_agent.settings import Settings

log = logging.getLogger(__name__)

NAMESPACE: Final = "meshwright.feature.node.kubernetes.io"
"""node-feature-discovery allows labels below feature.node.kubernetes.io without further settings."""
VALUE_CHARACTERS: Final = 63
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_ENDS: Final = "-_."
POLL_S: Final = 1.0
"""Interval of the checks whether the devices are known, until they are."""


def build_labels(devices: Devices, health: Health, records: Sequence[BenchRecord] = ()) -> dict[str, str]:
    """Returns the labels of a host, name → value in the form that Kubernetes allows. Unknown facts do not have a
    label."""
    software = devices.software
    granule = next(iter(devices.granules), None)
    found: dict[str, object] = {
        "platform": devices.platform,
        "device-count": len(devices.devices),
        "device-product": _agree(devices.devices, lambda device: device.kind),
        "device-memory-bytes": _agree(devices.devices, lambda device: device.memory and device.memory.capacity_bytes),
        "driver-version": software.driver,
        "jax-version": software.jax,
        "agent-version": software.agent,
        "health": select_hardware(health).state,
        "nvlink-domain": granule.domain if granule else None,
        "slice-shape": "x".join(map(str, granule.shape)) if granule and granule.shape else None,
        "all-reduce-busbw-bytes-per-s": _read_busbw(len(devices.devices), records),
    }
    legal = {name: fit_value(value) for name, value in found.items() if value is not None}
    return {name: value for name, value in legal.items() if value}


def fit_value(value: object) -> str:
    """Returns a valid label value: other characters become -, and a long value is cut."""
    return _ILLEGAL.sub("-", str(value)).strip(_ENDS)[:VALUE_CHARACTERS].rstrip(_ENDS)


def format_labels(labels: Mapping[str, str], expires_at: datetime) -> str:
    """Returns the text of the file. All its labels expire at `expires_at`."""
    moment = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = sorted(f"{NAMESPACE}/{name}={value}" for name, value in labels.items())
    return "\n".join([f"# +expiry-time={moment}", *lines, ""])


def write_labels(path: Path, text: str) -> None:
    """Writes the file atomically and world-readable, because the worker that reads it is another user.

    Until it is complete, the new text is in a file whose name begins with a dot. Readers ignore such names.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    hidden = path.with_name(f".{path.name}.new")
    try:
        hidden.write_text(text)
        hidden.chmod(0o644)
        hidden.replace(path)
    except OSError:
        hidden.unlink(missing_ok=True)
        raise


async def keep_labels(
    path: Path, settings: Settings, clock: Clock, host: AgentHost, health: HealthRegistry, benches: Benches
) -> None:
    """Rewrites the label file each probe interval once the devices are known, until cancelled.

    A failed write is logged once and retried.
    """
    reported = ""
    while True:
        if is_known := host.snapshot.knows_topology:
            now, problem = clock.now(), ""
            labels = build_labels(host.devices(), health.view(now), benches.newest_records())
            text = format_labels(labels, now + timedelta(seconds=settings.stale_after_s))
            try:
                await asyncio.to_thread(write_labels, path, text)
            except OSError as error:
                problem = f"the labels of this node cannot be written to {path}: {error.strerror or error}"
            if problem and problem != reported:
                log.warning("%s; the folder must be there and writable, see deploy/RUNBOOK.md", problem)
            reported = problem
        await asyncio.sleep(settings.probe_interval_s if is_known else min(POLL_S, settings.probe_interval_s))


def _agree(devices: Sequence[Device], read: Callable[[Device], object]) -> object:
    """Returns the common value of all devices; None if they differ or a value is unknown."""
    values = {read(device) for device in devices}
    return values.pop() if len(values) == 1 else None


def _read_busbw(count: int, records: Sequence[BenchRecord]) -> int | None:
    """Returns the best all-reduce over all devices, rounded down to two digits to keep the label stable."""
    rates = [
        record.busbw_bytes_per_s
        for record in records
        if record.case == "all_reduce" and record.correct and record.axis_size == count and record.busbw_bytes_per_s
    ]
    if not rates:
        return None
    best = int(max(rates))
    step = int(10 ** max(0, len(str(best)) - 2))
    return best // step * step
