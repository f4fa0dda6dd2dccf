"""What the compiler says of one step on one mesh: compiles it, and reads its memory and its program.

Rule: whatever the compiler answers is a report; only bugs are errors. Opens no device. Runs in a child process, since a
compiler may take that with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax.sharding import AxisType, Mesh

from meshwright.compiling import NotCompiledError
from meshwright.compiling.capacity import parse_out_of_memory, read_capacity
from meshwright.compiling.compilers import build_key, read_versions
from meshwright.compiling.diagnostics import capture_stderr, read_diagnostics
from meshwright.compiling.flash import EFFICIENCY_RATIO, price_attention
from meshwright.compiling.hlo import ProgramFacts, build_incomplete, read_program
from meshwright.compiling.step import BuiltStep, build_step
from meshwright.compiling.targets import OpenTarget, build_mesh, open_target
from meshwright.topology.chips import find_chip
from meshwright.wire.compiling import CompileJob, CompileMesh, CompileTarget
from meshwright.wire.model import TrainingSpec
from meshwright.wire.verification import MemoryParts, StepEstimate, Verification

Tell = Callable[[str, int, int], None]
"""Takes what is done now, how many stages are done, and of how many."""

STAGES: Final = 4
LOG_LINES: Final = 40
_LINE_CHARS: Final = 2000


@dataclass(frozen=True)
class Site:
    """Where steps are compiled for.

    Attributes:
        opened: the target.
        mesh: the devices.
        granules: of each device of the mesh, row-major.
        capacity_bytes: of a device; None: not known, and nothing is refused for it.
    """

    opened: OpenTarget
    mesh: Mesh
    granules: tuple[int, ...]
    capacity_bytes: int | None

    @property
    def automatic(self) -> Mesh:
        """The mesh with all axes Auto, as our own step takes it."""
        names = self.mesh.axis_names
        return Mesh(self.mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))


def open_site(target: CompileTarget, mesh: CompileMesh, capacity_bytes: int | None) -> Site:
    """Returns the target's devices as a mesh, and how much memory each has.

    Raises:
        NotCompiledError: there is no compiler for it here, or the compiler knows no such hardware.
    """
    opened = open_target(target)
    found = build_mesh(opened, mesh)
    if capacity_bytes is None:
        capacity_bytes = read_capacity(opened)
    return Site(opened, found, tuple(granule for granule, _ in mesh.places), capacity_bytes)


def verify_job(job: CompileJob, tell: Tell) -> Verification:
    """Returns the report of a job; what keeps it from being compiled is one too."""
    try:
        tell(f"describing {job.target.name}", 0, STAGES)
        site = open_site(job.target, job.mesh, job.capacity_bytes)
        found = verify_step(site, job, job.training, tell)
    except NotCompiledError as error:
        found = Verification(status="not_compiled", reason=str(error))
    told = {"target": job.target.name, "versions": read_versions(job.target.platform), "key": build_key(job)}
    return found.model_copy(update=told)


def verify_step(site: Site, job: CompileJob, training: TrainingSpec, tell: Tell) -> Verification:
    """Returns the report of the job's model trained in this way.

    Raises:
        NotCompiledError: the mesh has an axis that the step does not know.
    """
    tell("tracing the step", 1, STAGES)
    built = build_step(job.model, training, site.automatic)
    lowered = lower_step(built)
    found = report_lowered(lowered, site, tell)
    told: dict[str, Any] = {"parameter_count": built.parameter_count}
    if found.estimate is not None and training.attention == "flash":
        estimate = _fuse_attention(found.estimate, job, training)
        told |= {"estimate": estimate, "estimated_step_s": estimate.total_s}
    return found.model_copy(update=told)


def _fuse_attention(estimate: StepEstimate, job: CompileJob, training: TrainingSpec) -> StepEstimate:
    """Returns the estimate with attention priced as the fused kernel that a trainer would run."""
    chip = find_chip(job.target.chip)
    if chip is None:
        return estimate
    flops_per_s = chip.device_flops_per_s
    price_s = price_attention(job.model, training, device_count=len(job.mesh.places), flops_per_s=flops_per_s)
    total_s = estimate.total_s - estimate.attention_s + price_s
    limits = f"attention in blocks is priced as a fused kernel at {EFFICIENCY_RATIO:.0%} of peak; {estimate.limits}"
    return estimate.model_copy(update={"total_s": total_s, "flash_s": price_s, "limits": limits})


def lower_step(built: BuiltStep) -> Any:
    """Returns the step as a `jax.stages.Lowered`.

    Raises:
        NotCompiledError: a number of the model or its training is more than JAX can count.
    """
    try:
        return jax.jit(built.function, donate_argnums=built.donate_argnums).lower(*built.arguments)
    except (OverflowError, RuntimeError) as error:
        words = str(error).partition("\n")[0][:_LINE_CHARS]
        raise NotCompiledError(f"the step cannot be traced with these sizes: {words}; use smaller ones") from error


def report_lowered(lowered: Any, site: Site, tell: Tell) -> Verification:
    """Returns the report of a lowered step.

    Args:
        lowered: `jax.stages.Lowered`, of a step whose arguments lie on the site's mesh.
        site: what it is compiled for.
        tell: is told how far it is.
    """
    tell(f"compiling for {site.mesh.size} devices", 2, STAGES)
    began_s = time.monotonic()
    compiled, refusal = None, ""
    with capture_stderr() as lines:
        try:
            compiled = lowered.compile(compiler_options=site.opened.compiler_options or None)
        except jax.errors.JaxRuntimeError as error:
            refusal = str(error)
    compile_s = time.monotonic() - began_s
    tell("reading the program", 3, STAGES)
    found = _report_refusal(refusal, lines, site) if compiled is None else _report_program(compiled, lines, site)
    return found.model_copy(update={"compile_s": compile_s})


def _report_refusal(refusal: str, lines: Sequence[str], site: Site) -> Verification:
    """Returns the report of a step that the compiler did not take: too large, or refused for another reason."""
    told = parse_out_of_memory(refusal)
    log = tuple(line[:_LINE_CHARS] for line in (*lines, *refusal.splitlines()))[-LOG_LINES:]
    if told is None:
        reason = f"the compiler refused the step: {refusal.partition(chr(10))[0][:_LINE_CHARS]}"
        return Verification(status="not_compiled", reason=reason, capacity_bytes=site.capacity_bytes, log=log)
    capacity = told.available_bytes or site.capacity_bytes
    return Verification(
        status="does_not_fit",
        reason=_tell_unfit(told.needed_bytes, capacity),
        needed_bytes=told.needed_bytes,
        capacity_bytes=capacity,
        log=log,
        warnings=tuple(each for each in read_diagnostics(lines) if each.code != "memory_not_reduced"),
    )


def _report_program(compiled: Any, lines: Sequence[str], site: Site) -> Verification:
    memory = compiled.memory_analysis()
    peak_bytes = read_peak_bytes(memory, site.opened.target.platform)
    program = _read_program(compiled, site)
    capacity = site.capacity_bytes
    fits = capacity is None or peak_bytes <= capacity
    return Verification(
        status="verified" if fits else "does_not_fit",
        reason=None if fits else _tell_unfit(peak_bytes, capacity),
        peak_memory_bytes=peak_bytes,
        needed_bytes=None if fits else peak_bytes,
        capacity_bytes=capacity,
        memory=MemoryParts(
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            alias_bytes=memory.alias_size_in_bytes,
            generated_code_bytes=memory.generated_code_size_in_bytes,
            host_temporary_bytes=memory.host_temp_size_in_bytes,
        ),
        collectives=program.collectives,
        estimate=program.estimate,
        estimated_step_s=program.estimate.total_s if program.estimate else None,
        warnings=(*read_diagnostics(lines), *program.notices),
    )


def _read_program(compiled: Any, site: Site) -> ProgramFacts:
    """Returns what the program does; where it cannot be read, a warning that the report is without it."""
    try:
        return read_program(
            compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto(),
            mesh_shape=dict(site.mesh.shape),
            platform=site.opened.target.platform,
            clock_hz=site.opened.clock_hz,
            granules=site.granules,
            device_ids=[device.id for device in site.mesh.devices.flat],
        )
    except (ValueError, LookupError) as error:
        reason = f"it has no collectives and no time, since the program cannot be read: {error}"
        return ProgramFacts((), None, (build_incomplete(reason),))


def read_peak_bytes(memory: Any, platform: str) -> int:
    """Returns the most that a device holds at one time.

    XLA's CPU compiler tells a peak without temporaries; there it is the sum of what is alive, which is no less.
    """
    if platform != "cpu":
        return int(memory.peak_memory_in_bytes)
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(kept + memory.temp_size_in_bytes)


def _tell_unfit(needed_bytes: int | None, capacity_bytes: int | None) -> str:
    needs = "more than there is" if needed_bytes is None else f"{needed_bytes:,} bytes"
    has = "" if capacity_bytes is None else f"; a job may use {capacity_bytes:,}"
    return (
        f"the step needs {needs} of a device's memory{has}; a smaller batch, remat full, or more devices on "
        f"fsdp or tp need less"
    )
