"""Output of a plan for a person, a script or a file: as a drawing, JSON, Python or a saved file; and its exit code.

Rule: figures are the plan's own; the exit code is 0 only for a plan without a reason against it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from meshwright._client.requests import take_best
from meshwright._client.settings import DEFAULT_URL, parse_address
from meshwright.cli.compiling import find_exit_code, print_refusal, print_verification
from meshwright.cli.output import (
    Column,
    build_table,
    clean,
    format_bytes,
    format_rate,
    format_time,
    print_error,
    print_notices,
)
from meshwright.cli.request_options import Export
from meshwright.cli.session import FAILED, OK, Session
from meshwright.environment import format_exports
from meshwright.errors import PlanInfeasibleError, SettingsError
from meshwright.planning.parallelism import write_mesh
from meshwright.topology.chips import find_chip
from meshwright.wire.base import DeviceRef
from meshwright.wire.mesh import EXPORT_LEFT_OUT, Plan, PlanAxis, Plans

BAR_WIDTH: Final = 40
"""Characters of a bar that is the whole."""
MAX_DRAWN: Final = 256
LINES_DRAWN: Final = 12
"""Devices and lines beyond which a mesh is not drawn."""


@dataclass(frozen=True)
class PlanOutput:
    """How plans are printed.

    Attributes:
        asked: the request, in words.
        export: print only this export; None: all of a plan.
        output: the file to save the plan to; None: no file.
        url: the agent that answered; None: the plan was made in this process, and no agent stores it.
    """

    asked: str
    export: Export | None
    output: Path | None
    wants_compile: bool
    url: str | None = None


def print_best(session: Session, plans: Plans, say: PlanOutput) -> int:
    """Prints the best plan as the options want it, keeps it where they name a file, and returns the exit code."""
    text = plans.model_dump_json(exclude_unset=say.url is not None)  # exactly the fields that an agent sent
    if plans.plans and say.output is not None:  # first, since what is printed names the file
        _save(text, say.output)
    if session.as_json:
        session.print_lines(text)
        return _find_code(plans, say)
    best = take_best(plans, asked=say.asked, host=say.url or "")
    if say.export is None:
        _print_plan(session, best, say)
        if plans.fallback is not None:
            session.print_lines("", f"when a device fails: {clean(plans.fallback.message)}")
    elif not _lacks_export(best, say):
        written = best.code if say.export == "python" else best.exports[say.export]
        session.print_lines(written.rstrip("\n"))
        if best.verification is not None:
            print_refusal(session, best.verification)
    for notice in best.warnings:
        if notice.code == EXPORT_LEFT_OUT and _lacks_export(best, say):
            print_error(session, PlanInfeasibleError.of("exports", notice.message, notice.hint))
        else:
            print_notices(session, [notice])
    return _find_code(plans, say)


def _save(text: str, path: Path) -> None:
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        message = f"--save {path}: cannot be written: {error.strerror}; name a file that can be written"
        raise SettingsError(message) from None


def _find_code(plans: Plans, say: PlanOutput) -> int:
    """Returns the exit code: whether the best plan fits, and was compiled where that is wanted."""
    if not plans.plans:
        return FAILED
    best = plans.plans[0]
    if say.wants_compile and find_exit_code(best.verification) != OK:
        return FAILED
    return OK if _fits(best) and not _lacks_export(best, say) else FAILED


def _lacks_export(best: Plan, say: PlanOutput) -> bool:
    """Returns whether a search left out the export to print: it cannot be written."""
    return say.export not in (None, "python", *best.exports)


def _fits(plan: Plan) -> bool:
    """Returns False only where the plan reports it: without a model its memory is unknown."""
    if plan.verification is not None and plan.verification.status == "does_not_fit":
        return False
    return plan.memory is None or plan.memory.fits is not False


def _print_plan(session: Session, plan: Plan, say: PlanOutput) -> None:
    session.out.print(_write_answer(plan))
    session.print_lines(", ".join([*_describe_schedule(plan), f"plan {clean(plan.fingerprint)}"]), "")
    if plan.verification is not None:
        print_verification(session, plan.verification)
    if plan.audit is not None:
        session.print_lines(f"the best of these devices: {clean(plan.audit.message)}", "")
    for line in write_costs(plan):
        session.print_lines(line)
    session.out.print(build_table(_build_columns(plan), plan.axes))
    session.print_lines("", *_draw(plan, plan.devices, session.out.width))
    if not _fits(plan):
        return
    is_one = len({device.host for device in plan.devices}) == 1
    is_stored = "plan_not_stored" not in {notice.code for notice in plan.warnings}
    is_reached = say.url and (is_one or not parse_address(say.url).is_local)  # else it asks its own agent
    url = say.url if is_stored and is_reached else None
    exports = _build_exports(plan, say.output, url)
    session.print_lines("start one process on each host with", *(f"  {line}" for line in exports))
    if say.output is None and url is None:
        session.print_lines("  export MESHWRIGHT_PLAN=FILE  # their agents do not have it: keep it with --save FILE")
    session.print_lines("and in it: mesh = meshwright.mesh.build_mesh(meshwright.load_plan())")


def _write_answer(plan: Plan) -> Text:
    """Returns the first line: the mesh, whether it fits, and how long a step takes."""
    answer = Text.assemble(
        (clean(write_mesh(plan.mesh_shape)), "bold"), f" on {math.prod(plan.mesh_shape.values())} {_name_devices(plan)}"
    )
    if plan.memory is not None:
        verdict = Text("fits", "green") if plan.memory.fits is not False else Text("does not fit", "bold red")
        there = format_bytes(plan.memory.capacity_bytes) or "?"
        answer += Text(": ") + verdict
        answer += Text(f", {format_bytes(plan.memory.per_device_bytes)} of {there} a device")
    if plan.step_time is not None:
        answer += Text(f"; {write_step(plan)} a step")
    return answer


def _name_devices(plan: Plan) -> str:
    """Returns the devices' kind as JAX has it, and of TPUs the chip's name: JAX calls a v5p "TPU v5"."""
    kinds = {granule.device_kind for granule in plan.granules if granule.device_kind}
    if len(kinds) != 1:
        return plan.platform
    kind = kinds.pop()
    chip = find_chip(kind) if plan.platform == "tpu" else None
    return clean(chip.name if chip else kind)


def _describe_schedule(plan: Plan) -> Iterator[str]:
    if plan.schedule is not None:
        yield f"{plan.schedule.global_batch_size:,} sequences of {plan.schedule.seq_len:,} tokens"
        count = plan.schedule.gradient_accumulation_steps
        repeats = plan.schedule.pipeline_repeats
        rounds = f", {repeats} times round the pipeline" if repeats > 1 else ""
        runs = plan.schedule.pipeline_runs
        rounds += f", in {runs} runs" if runs > 1 else ""
        once = ", weights gathered once" if plan.schedule.pipeline_gathers_once else ""
        yield f"{count} micro-batch{'es' * (count > 1)} of {plan.schedule.micro_batch_size}{rounds}{once}"
        host_bytes = plan.memory.host_bytes if plan.memory else 0
        yield f"remat {plan.schedule.remat}" + (f", {format_bytes(host_bytes)} a device on hosts" if host_bytes else "")
    if plan.tokens_per_s:
        yield f"{plan.tokens_per_s:,.0f} tokens/s"
    if plan.mfu:
        yield f"MFU {plan.mfu:.1%}"


def write_costs(plan: Plan) -> list[str]:
    """Returns the memory and the step's time as bars, part by part, the largest first."""
    lines: list[str] = []
    if plan.memory is not None and plan.memory.capacity_bytes:
        bars = _draw_bars(plan.memory.parts, plan.memory.capacity_bytes, format_bytes)
        lines += ["estimated memory", *bars, ""]
    if plan.step_time is not None:
        step = plan.step_time
        parts = {"compute": step.compute_s, "remat": step.remat_s, "bubble": step.bubble_s}
        parts |= {f"communication {axis}": seconds for axis, seconds in step.communication_s.items()}
        lines += ["estimated step time", *_draw_bars(parts, step.total_s, format_time), ""]
    return lines


def _draw_bars(parts: Mapping[str, float], whole: float, write: Any) -> list[str]:
    """Returns a line a part: its name, its bar, its figure; parts below 1 % of the whole share one line."""
    ranked = sorted(((size, name) for name, size in parts.items() if size > 0), reverse=True)
    shown = [(size, name) for size, name in ranked if size >= whole / 100]
    small = [(size, name) for size, name in ranked if size < whole / 100]
    width = max((len(name) for _, name in shown), default=0)
    lines = [
        f"  {clean(name):{width}}  {'█' * max(1, round(BAR_WIDTH * min(size / whole, 1))):{BAR_WIDTH}}  {write(size)}"
        for size, name in shown
    ]
    names = ", ".join(clean(name) for _, name in small)
    return [*lines, f"  {names}: {write(sum(size for size, _ in small))}"] if small else lines


def write_step(plan: Plan) -> str:
    """Returns the seconds of a step, with the interval where there is one."""
    step = plan.step_time
    if step is None:
        return ""
    if step.low_s is None or step.high_s is None:
        return format_time(step.total_s)
    return f"{format_time(step.total_s)} ({format_time(step.low_s)} to {format_time(step.high_s)})"


def _build_columns(plan: Plan) -> tuple[Column[PlanAxis], ...]:
    return (
        Column("axis", lambda axis: axis.name),
        Column("size", lambda axis: str(axis.size), "right"),
        Column("type", lambda axis: plan.axis_types.get(axis.name, "")),
        Column("link", lambda axis: f"{axis.link} ×{axis.dcn_size}" if axis.dcn_size > 1 else axis.link or ""),
        Column("group", lambda axis: "×".join(map(str, axis.group_shape or ()))),
        Column("hops", lambda axis: "" if axis.max_hops is None else str(axis.max_hops), "right"),
        Column("bandwidth", lambda axis: format_rate(axis.bandwidth_bytes_per_s, "B/s"), "right"),
        Column("basis", lambda axis: axis.basis or ""),
    )


def _draw(plan: Plan, devices: tuple[DeviceRef, ...], width: int) -> tuple[str, ...]:
    """Returns the drawing of the devices' places, unless they are in plain order, or the plan leaves them out."""
    places = [(device.granule, device.position) for device in devices]
    if places == sorted(places):
        return ()
    shape = {clean(name): size for name, size in plan.mesh_shape.items()}
    lines = draw_mesh(shape, _build_labels(devices), width=width) if len(devices) <= MAX_DRAWN else ()
    if not 0 < len(lines) <= LINES_DRAWN:
        return (f"the order of the {len(devices)} devices is too long to draw; --format json lists it", "")
    return (*lines, "")


def _build_labels(devices: tuple[DeviceRef, ...]) -> list[str]:
    """Returns a short name for each device: its local index; where there are several hosts with its host, or as a chip
    of a slice by its coordinates."""
    if len({device.host for device in devices}) == 1:
        return [clean(device.local_index) for device in devices]
    if any(device.coords is None for device in devices):
        return [clean(f"{device.host}/{device.local_index}") for device in devices]
    slices = len({device.granule for device in devices}) > 1
    cores = len({device.core_on_chip or 0 for device in devices}) > 1
    return [_name_chip(device, slices=slices, cores=cores) for device in devices]


def _name_chip(device: DeviceRef, *, slices: bool, cores: bool) -> str:
    """Returns "3,0,1", of several slices "s1:3,0,1", of several cores "3,0,1.0"."""
    place = ",".join(map(str, device.coords or ()))
    return (f"s{device.granule}:" if slices else "") + place + (f".{device.core_on_chip or 0}" if cores else "")


def _build_exports(plan: Plan, output: Path | None, url: str | None) -> tuple[str, ...]:
    """Returns the start lines of a job: the plan's environment, and the location of the plan.

    Args:
        output: the file with the plan; None: the job requests it from the agent.
        url: the agent's address; left out where it is the job's default; None: no agent stores the plan.
    """
    found = dict(plan.environment)
    if output is not None:
        found["MESHWRIGHT_PLAN"] = str(output.absolute())
    elif url is not None:
        found |= ({} if url == DEFAULT_URL else {"MESHWRIGHT_URL": url}) | {"MESHWRIGHT_PLAN": plan.fingerprint}
    return format_exports(found)


def draw_mesh(shape: Mapping[str, int], labels: Sequence[str], *, width: int) -> tuple[str, ...]:
    """Returns the lines of the drawing.

    Args:
        shape: axis name to size, outermost first.
        labels: one per device, row-major; each is in the drawing exactly once.
        width: the maximum columns of a line; a longer row continues in a grid below.
    """
    axes = list(shape.items())
    across = _name_places(*axes[-1]) if axes else ("",)
    down = _name_places(*axes[-2]) if len(axes) > 1 else ("",)
    lines: list[str] = []
    for number, outer in enumerate(itertools.product(*(_name_places(*axis) for axis in axes[:-2]))):
        start = number * len(across) * len(down)
        rows = [labels[start + row * len(across) :][: len(across)] for row in range(len(down))]
        lines += [", ".join(outer)] if outer else []
        lines += _draw_grid(across, down, rows, width)
    return tuple(lines)


def _name_places(name: str, size: int) -> tuple[str, ...]:
    return tuple(f"{name}={place}" for place in range(size))


def _draw_grid(across: Sequence[str], down: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    cell = 2 + max(len(text) for text in (*across, *itertools.chain(*rows)))
    head = max(len(name) for name in down)
    band = max(1, (width - head) // cell)
    for first in range(0, len(across), band):
        columns = slice(first, first + band)
        yield " " * head + "".join(f"{name:>{cell}}" for name in across[columns])
        for name, row in zip(down, rows, strict=True):
            yield f"{name:<{head}}" + "".join(f"{label:>{cell}}" for label in row[columns])
