"""The best mesh for the remaining devices when devices fail, or have failed.

Rule: the last host or slice is lost, of one alone a device. Then whole domains (hosts, NVLink domains, slices) are used
while there are several, single devices of one. Of all numbers that some mesh can use, the one with the fastest step is
taken, which may not be the largest. The batch does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.device_selection import Pool
from meshwright.planning.parallelism import choose_near, write_mesh
from meshwright.planning.search.candidates import Question
from meshwright.planning.search.search import list_smooth, price_best, read_bounds, search_plans
from meshwright.topology.model import Topology
from meshwright.wire.base import DeviceSelection, Notice
from meshwright.wire.mesh import Fallback, Plan, Plans, SearchRequest

Ask = Callable[[int], Question]
"""Returns the question for a number of devices."""
LayOut = Callable[[str, DeviceSelection | None], Plan]
"""The plan of a mesh, on a selection of the devices."""

COUNTS_MOST: Final = 64
"""Numbers of domains or devices that are tried: the largest first, and also half, a quarter, … of them."""


def find_fallback(
    request: SearchRequest, best: Plan, topology: Topology, pool: Pool, ask: Ask, lay_out: LayOut
) -> Fallback:
    """Returns the best plan for the remaining devices when one of a plan's devices fails, with its host or slice.

    Args:
        best: the plan on all devices.
        pool: those that the search may use.
        ask: returns the question for a number of devices.
        lay_out: makes the plan of a mesh, on a selection of devices.
    """
    groups = topology.group(pool.indices)
    if topology.platform == "tpu" and len(groups) == 1 and len({device.host for device in topology.devices}) > 1:
        return Fallback(plans=(), message="without one device the slice has none: its hosts run together; ask for less")
    lost = groups[-1] if len(groups) > 1 else groups[0][-1:]
    if topology.platform == "gpu" and len({topology.devices[index].host for index in pool.indices}) > 1:
        last = topology.devices[groups[-1][-1]].host
        lost = tuple(index for index in groups[-1] if topology.devices[index].host == last)
    kept = tuple(index for index in pool.indices if index not in set(lost))
    kind = "slice" if topology.platform == "tpu" else "host"
    name = "one device" if len(lost) == 1 else f"a {kind} of {len(lost)} devices"
    if not kept:
        return Fallback(plans=(), message=f"without {name} no device is left")
    try:
        plans = search_remaining(request, topology, kept, ask, lay_out)
    except PlanInfeasibleError as error:
        return Fallback(plans=(), message=f"without {name}: {error.detail}")
    used = math.prod(plans.plans[0].mesh_shape.values()) if plans.plans else 0
    message = _describe(name, best, plans, len(kept) - used)
    return Fallback(plans=plans.plans[:1], message=message)


def search_remaining(
    request: SearchRequest, topology: Topology, kept: Sequence[int], ask: Ask, lay_out: LayOut
) -> Plans:
    """Returns the best plans on the remaining devices, with the number of devices that gives the fastest step.

    Args:
        kept: the remaining devices, as indices.
        ask: returns the question for a number of devices.
        lay_out: builds the plan of a mesh, on a selection of devices.

    Raises:
        PlanInfeasibleError: no mesh cuts model and batch over any number of them.
    """
    counts, bounds = _list_counts(topology, kept), read_bounds(request)
    found = {count: best for count in counts if (best := price_best(ask(count), bounds))}
    if not found:
        raise _refuse(request, len(kept))
    count = min(found, key=lambda each: found[each].weighed_s)
    gone = set(topology.order) - set(kept)
    others = [topology.devices[index] for index in topology.order if index in gone]
    names = tuple(device.uuid or f"{device.host}/{device.local_index}" for device in others)
    selection = DeviceSelection(count=count, exclude=names)
    plans = search_plans(request, ask(count), lambda mesh: lay_out(mesh, selection))
    idle = len(kept) - count
    if not idle:
        return plans
    message = f"{_write_idle(idle, 'the devices left')}: the fastest mesh that cuts model and batch has {count}"
    hint = _find_batch(request, ask, len(kept), count, found[count].seconds)
    notice = Notice(code="devices_left_idle", message=message, hint=hint)
    return plans.model_copy(update={"warnings": (*plans.warnings, notice)})


def _list_counts(topology: Topology, kept: Sequence[int]) -> list[int]:
    """Returns numbers of devices to try: of whole domains where more than one is whole, else of devices."""
    whole = max((len(group) for group in topology.group(range(len(topology.devices)))), default=1)
    full = sum(len(group) == whole for group in topology.group(kept))
    unit, most = (whole, full) if full > 1 else (1, len(kept))
    halves = [most >> shift for shift in range(most.bit_length()) if most >> shift]
    return [unit * many for many in sorted({*range(max(most - COUNTS_MOST, 0) + 1, most + 1), *halves}, reverse=True)]


def _find_batch(request: SearchRequest, ask: Ask, devices: int, used: int, own_s: float) -> str:
    """Returns the hint with the batch near the requested one that is the fastest on more of the remaining devices, and
    faster than `own_s`, the seconds of the requested one on `used`."""
    batch, bounds, found = request.training.global_batch_size, read_bounds(request), []
    for count in (devices, *(each for each in list_smooth(devices, ask(devices).hardware.domain)[:4] if each > used)):
        near = max(round(batch / count), 1) * count
        if (best := price_best(ask(count).with_batch(near), bounds)) and best.seconds / near * batch < own_s:
            found.append((best.seconds / near * batch, near, count))
    if not found:
        return f"no global_batch_size near {batch} is faster on more of them"
    seconds, near, count = min(found)
    work = f"all {count}" if count == devices else f"{count} of them"
    return f"with a global_batch_size of {near} {work} work, {seconds:.3g} s for as many sequences"


def _describe(lost: str, best: Plan, plans: Plans, idle: int) -> str:
    if not plans.plans:
        return f"without {lost} nothing fits in what is left"
    left = plans.plans[0]
    assert best.step_time is not None
    assert left.step_time is not None
    times = f"{left.step_time.total_s / best.step_time.total_s:.2f} times as long"
    hints = [notice.hint for notice in plans.warnings if notice.code == "devices_left_idle"]
    unused = f"; {_write_idle(idle, 'them')}; {hints[0]}" if idle and hints else ""
    return f"without {lost}: {write_mesh(left.mesh_shape)}, {left.step_time.total_s:.3g} s a step, {times}{unused}"


def _write_idle(idle: int, devices: str) -> str:
    return f"{idle} of {devices} stay{'s' * (idle == 1)} idle"


def _refuse(request: SearchRequest, left: int) -> PlanInfeasibleError:
    batch = request.training.global_batch_size
    detail = f"no mesh of the {left} devices left, or of fewer, cuts this model and a global_batch_size of {batch}"
    steps = read_bounds(request).gradient_accumulation_steps or 1
    near = choose_near([left * steps * times for times in (1, 2, 4, 8)], batch)
    free = "leave more axes free" if steps == 1 else "leave gradient_accumulation_steps out"
    hint = f"use a global_batch_size of {' or '.join(map(str, near))}, or {free}"
    return PlanInfeasibleError.of("training.global_batch_size", detail, hint)
