"""Results of benches that open no device: of the passive tier, and of hosts whose devices are closed. Pure.

Rule: every case that was asked for is named in `skipped` with the reason; nothing is called measured. Knows no jax.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from meshwright.wire.bench import BenchRequest, BenchResult, Passive, Skipped
from meshwright.wire.devices import Devices
from meshwright_agent.bench.limits import resolve_tier
from meshwright_agent.bench.scope import Scope, build_host_scope

PASSIVE: Final = "the passive tier opens no device; what is known without that stands in `passive`"


def build_passive(request: BenchRequest, devices: Devices, now: datetime) -> BenchResult:
    """Returns what is known of the request's devices: memory in use, holders, links with their kinds and rates."""
    scope = build_host_scope(request, devices)
    chosen = {device.local_index: device for device in devices.devices if device.local_index in scope.devices}
    places = {place: device.local_index for place, device in enumerate(devices.devices)}
    links = tuple(
        link.model_copy(update={"a": places[link.a], "b": places[link.b]})
        for link in devices.links
        if places[link.a] in chosen and places[link.b] in chosen
    )
    passive = Passive(devices=tuple(chosen.values()), links=links)
    return _build(request, scope, devices, PASSIVE, now).model_copy(update={"passive": passive})


def build_skipped(request: BenchRequest, devices: Devices, reason: str, now: datetime) -> BenchResult:
    """Returns a result in which every case was skipped for the same reason."""
    return _build(request, build_host_scope(request, devices), devices, reason, now)


def _build(request: BenchRequest, scope: Scope, devices: Devices, reason: str, now: datetime) -> BenchResult:
    first = next(device for device in devices.devices if device.local_index == scope.devices[0])
    return BenchResult(
        suite=scope.suite,
        tier=resolve_tier(request, scope),
        platform=devices.platform,
        device_kind=first.kind,
        device_count=len(scope.devices),
        jax=devices.software.jax,
        jaxlib=devices.software.jaxlib,
        started_at=now,
        took_s=0.0,
        records=(),
        skipped=tuple(Skipped(case=case, reason=reason) for case in scope.cases),
    )
