"""Compiles one step on one mesh, and reads the compiler's report: its memory, its warnings and its program.

Whatever the compiler answers is a report; only bugs are errors. Opens no device. Runs in a child process, since a
compiler may take that with it.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax.sharding import AxisType, Mesh

from meshwright.compiling.compilers import read_versions
from meshwright.compiling.devices import OpenTarget, build_mesh, open_target
from meshwright.compiling.hlo import ProgramFacts, StepEstimate, build_incomplete, read_program
from meshwright.compiling.step import BuiltStep, build_step
from meshwright.compiling.worker import Tell
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileJob, CompileSite, CompileTarget
from meshwright.planning.hardware import find_capacity
from meshwright.topology.chips import find_chip
from meshwright.wire.base import Notice
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.verification import MemoryParts, Verification

STAGES: Final = 4
LOG_LINES: Final = 40
CARD_RATIO: Final = 1.04
"""Without the card at hand XLA chooses other kernels. An H100's own compile needed up to 3.1 % more, and a batch that
fitted by 1 % ran out of memory (docs/how-to/check-a-card.md)."""
_LINE_CHARS: Final = 2000


@dataclass(frozen=True)
class Site:
    """The target of a compile.

    Attributes:
        granules: of each device of the mesh, row-major.
        capacity_bytes: of a device; None: not known, and not checked.
    """

    opened: OpenTarget
    mesh: Mesh
    granules: tuple[int, ...]
    capacity_bytes: int | None

    @property
    def peak_ratio(self) -> float:
        """What a job may need, as a multiple of the compiler's peak."""
        return CARD_RATIO if self.opened.target.platform == "gpu" else 1.0

    @property
    def peak_limit_bytes(self) -> int | None:
        """The largest peak that fits."""
        return None if self.capacity_bytes is None else int(self.capacity_bytes / self.peak_ratio)

    @property
    def automatic(self) -> Mesh:
        """The mesh with all axes Auto, as our own step requires."""
        names = self.mesh.axis_names
        return Mesh(self.mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))


def open_site(job: CompileSite) -> Site:
    """Returns the target's devices as a mesh, and how much memory each has.

    Raises:
        NotCompiledError: its compiler is not installed, or the compiler does not know such hardware.
    """
    opened = open_target(job.target)
    capacity_bytes = read_capacity(opened) if job.capacity_bytes is None else job.capacity_bytes
    granules = tuple(granule for granule, _ in job.mesh.places)
    return Site(opened, build_mesh(opened, job.mesh), granules, capacity_bytes)


def verify_job(message: dict[str, Any], tell: Tell) -> Verification:
    """Returns the report of a CompileJob, also where it cannot be compiled."""
    job = CompileJob.model_validate(message)
    return report_site(job, tell, lambda site: verify_step(site, job, job.training, tell))


def report_site(job: CompileSite, tell: Tell, work: Callable[[Site], Verification]) -> Verification:
    """Returns the report of what `work` compiles on a job's hardware, or why it does not compile."""
    try:
        tell(f"describing {job.target.name}", 0, STAGES)
        found = work(open_site(job))
    except NotCompiledError as error:
        found = Verification(status="not_compiled", reason=str(error), log=error.log)
    return found.model_copy(update=describe_target(job.target))


def describe_target(target: CompileTarget) -> dict[str, Any]:
    """Returns the fields of a report that describe what was compiled for, and by which compiler."""
    return {"target": target.name, "versions": read_versions(target.platform)}


def verify_step(site: Site, job: CompileJob, training: TrainingSpec, tell: Tell) -> Verification:
    """Returns the report of the job's model trained in this way."""
    tell("tracing the step", 1, STAGES)
    built = build_step(job.model, training, site.automatic)
    lowered = lower_step(built)
    found = report_lowered(lowered, site, tell, attention_s=_price_attention(job, training))
    return found.model_copy(update={"parameter_count": built.parameter_count})


def _price_attention(job: CompileJob, training: TrainingSpec) -> float | None:
    """Returns the time of the fused kernel that a trainer would run for attention in blocks."""
    chip = find_chip(job.target.chip) if training.attention == "flash" else None
    if chip is None:
        return None
    flops = count_attention_flops(job.model, training) / len(job.mesh.places)
    return flops / (chip.device_flops_per_s * EFFICIENCY_RATIO)


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


def report_lowered(lowered: Any, site: Site, tell: Tell, *, attention_s: float | None = None) -> Verification:
    """Returns the report of a lowered step.

    Args:
        lowered: `jax.stages.Lowered`, of a step whose arguments are on the site's mesh.
        attention_s: seconds that stand for those of the compiled attention; None: these stay.
    """
    tell(f"compiling for {site.mesh.size} devices", 2, STAGES)
    began_s = time.monotonic()
    compiled, refusal = None, ""
    start_byte = os.fstat(2).st_size
    try:
        compiled = lowered.compile(compiler_options=site.opened.compiler_options or None)
    except jax.errors.JaxRuntimeError as error:
        refusal = str(error)
    lines = _read_stderr(start_byte)
    compile_s = time.monotonic() - began_s
    tell("reading the program", 3, STAGES)
    found = (
        _report_refusal(refusal, lines, site)
        if compiled is None
        else _report_program(compiled, lines, site, attention_s)
    )
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
        reason=_describe_unfit(told.needed_bytes, capacity),
        needed_bytes=told.needed_bytes,
        capacity_bytes=capacity,
        log=log,
        warnings=tuple(each for each in read_diagnostics(lines) if each.code != "memory_not_reduced"),
    )


def _report_program(compiled: Any, lines: Sequence[str], site: Site, attention_s: float | None) -> Verification:
    memory = compiled.memory_analysis()
    peak_bytes = read_peak_bytes(memory, site.opened.target.platform)
    program = _read_program(compiled, site)
    capacity, limit = site.capacity_bytes, site.peak_limit_bytes
    fits = limit is None or peak_bytes <= limit
    needed_bytes = None if fits else math.ceil(peak_bytes * site.peak_ratio)
    return Verification(
        status="verified" if fits else "does_not_fit",
        reason=None if fits else _describe_unfit(needed_bytes, capacity, site.peak_ratio),
        peak_memory_bytes=peak_bytes,
        needed_bytes=needed_bytes,
        capacity_bytes=capacity,
        memory=MemoryParts(
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            alias_bytes=memory.alias_size_in_bytes,
        ),
        collectives=program.collectives,
        estimated_step_s=estimate_step(program.estimate, attention_s),
        warnings=(*read_diagnostics(lines), *program.notices),
    )


def estimate_step(estimate: StepEstimate | None, attention_s: float | None) -> float | None:
    """Returns the time of a step, with `attention_s` in the place of the compiled attention's, where it is given."""
    if estimate is None:
        return None
    return estimate.total_s if attention_s is None else estimate.total_s - estimate.attention_s + attention_s


def _read_program(compiled: Any, site: Site) -> ProgramFacts:
    """Returns the facts of the program; where it cannot be read, a warning that the report lacks them."""
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
    """Returns the most bytes that a device holds at one time.

    XLA's CPU compiler reports a peak without temporaries. On CPU the result is the sum of all live buffers, which is an
    upper bound. The peak of TPU compilers has the buffers of the host in it; GPU compilers name none.
    """
    if platform != "cpu":
        host = memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes + memory.host_temp_size_in_bytes
        return int(memory.peak_memory_in_bytes - host + memory.host_alias_size_in_bytes)
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(kept + memory.temp_size_in_bytes)


def _describe_unfit(needed_bytes: int | None, capacity_bytes: int | None, ratio: float = 1.0) -> str:
    needs = "more than there is" if needed_bytes is None else f"{needed_bytes:,} bytes"
    needs += f" (with {ratio - 1:.0%} for what the card's own compile may add)" if ratio > 1 else ""
    has = "" if capacity_bytes is None else f"; a job may use {capacity_bytes:,}"
    return f"the step needs {needs} of a device's memory{has}; a smaller batch, remat full, more fsdp or tp need less"


# ---- memory ---------------------------------------------------------------------------------------------------------

_UNITS: Final = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE: Final = r"(\d+(?:\.\d+)?)([BKMGTP]?)"

_WORDS: Final = (
    re.compile(rf"total memory required for [^(]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
"""What is needed, what there is. Source: libtpu 0.0.42.1 and 0.0.50.1 write the first, before they compile; other
releases the second, when memory is laid out (jax-ml/jax issues)."""


@dataclass(frozen=True)
class OutOfMemory:
    """A program that its compiler rejected for memory.

    Attributes:
        needed_bytes: of a device, in the precision of the compiler's text; None: not reported.
        available_bytes: likewise.
    """

    needed_bytes: int | None
    available_bytes: int | None


def parse_out_of_memory(message: str) -> OutOfMemory | None:
    """Returns the bytes in a compiler's out-of-memory message; None for another message, or another memory than HBM.

    "18.09G" are 18.09 × 2³⁰ bytes; the error of what it rounds to is at most half of the last digit.
    """
    if "RESOURCE_EXHAUSTED" not in message and "CompileTimeHbmOom" not in message:
        return None
    for words in _WORDS:
        if found := words.search(message):
            needed, unit, available, other = found.groups()
            return OutOfMemory(_parse_size(needed, unit), _parse_size(available, other))
    return OutOfMemory(None, None) if re.search("hbm", message, re.IGNORECASE) else None


def _parse_size(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def read_capacity(opened: OpenTarget) -> int | None:
    """Returns the bytes of a device that a program may use; None on GPU, where the plan has the limit.

    CPU devices share the memory of this machine evenly, since a CPU target does not describe another machine.
    """
    target = opened.target
    if target.platform == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // len(opened.devices[0])
    chip = find_chip(target.chip) if target.platform == "tpu" else None
    return find_capacity(chip) if chip else None


# ---- warnings on stderr ---------------------------------------------------------------------------------------------

_STDERR_BYTES: Final = 2**20
_NAME: Final = r"%?([\w.\-]+)"
_TRIAL: Final = "fake_parameter"
"""The partitioner's names of operands in modules that it builds only to estimate a gather or scatter."""
_REMAT: Final = re.compile(r"Involuntary full rematerialization")
_SHARDINGS: Final = re.compile(r"from (?:sharding )?(\{.*\}) to (?:sharding )?(\{.*?\}) (?:efficiently|without)")
_OPERATION: Final = re.compile(rf"{_NAME} = (?:\([^=]*?\)|\S+) [\w\-]+\(")
_OP_NAME: Final = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE: Final = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_MEMORY: Final = re.compile(r"Can't reduce memory use below (\S+) \((\d+) bytes\) by rematerialization(.*)")
_ONLY: Final = re.compile(r"only reduced to (\S+) \((\d+) bytes\)")


def _read_stderr(start_byte: int) -> list[str]:
    """Returns the lines of stderr from a place on: in a child it is a file. C++ writes there too."""
    sys.stderr.flush()
    with suppress(OSError):  # a terminal or a pipe
        return os.pread(2, _STDERR_BYTES, start_byte).decode(errors="replace").splitlines()
    return []


def read_diagnostics(lines: Sequence[str]) -> tuple[Notice, ...]:
    """Returns the warnings in a compiler's lines, each once, with its count; other lines are ignored.

    `involuntary_rematerialization`: a tensor is gathered whole on every device to be resharded. `memory_not_reduced`:
    the GPU compiler could not reduce the program's memory as it intended, and compiled it anyway.
    """
    told = Counter(notice for line in lines for notice in (_read_remat(line), _read_memory(line)) if notice)
    return tuple(
        notice if count == 1 else notice.model_copy(update={"message": f"{notice.message} ({count} times)"})
        for notice, count in told.items()
    )


def _read_remat(line: str) -> Notice | None:
    if not _REMAT.search(line):
        return None
    operation, shardings = _OPERATION.search(line), _SHARDINGS.search(line)
    if operation and operation.group(1).lstrip("%").startswith(_TRIAL):
        return None
    moved = f" from {shardings.group(1)} to {shardings.group(2)}" if shardings else ""
    return Notice(
        code="involuntary_rematerialization",
        message=f"{operation.group(1) if operation else 'a tensor'}{_find_place(line)} is gathered whole on every "
        f"device to be sharded anew{moved}",
        hint="constrain it on the way (jax.lax.with_sharding_constraint) to a sharding that keeps one of its axes, "
        "or keep the sharded dimension whole in a reshape",
    )


def _find_place(line: str) -> str:
    name, source = _OP_NAME.search(line), _SOURCE.search(line)
    parts = [name.group(1)] if name and name.group(1) else []
    if source and source.group(1):
        parts.append(f"{source.group(1)}:{source.group(2)}" if source.group(2) else source.group(1))
    return f" ({', '.join(parts)})" if parts else ""


def _read_memory(line: str) -> Notice | None:
    found = _MEMORY.search(line)
    if found is None:
        return None
    reached = _ONLY.search(found.group(3))
    needs = f"; the least it came to is {int(reached.group(2)):,} bytes" if reached else ""
    return Notice(
        code="memory_not_reduced",
        message=f"the compiler wanted the program within {int(found.group(2)):,} bytes and could not make it so small"
        f"{needs}",
        hint="compare peak_memory_bytes with capacity_bytes: the GPU compiler compiles what does not fit all the same",
    )


# ---- attention as a fused kernel ------------------------------------------------------------------------------------

EFFICIENCY_RATIO: Final = 0.5
"""Of peak FLOP/s that fused attention reaches. Source: the check in compiler_probe of this project's material: six
published MaxText steps, "analytic flash attention at 50 % of peak"; FlashAttention-2 (arXiv:2307.08691) reports 50 to
73 % on A100."""

_PASSES: Final = {"none": 3.5, "minimal": 4.5, "full": 4.5, "offload": 4.5}
"""Forward passes' worth of FLOPs: forward 1, backward 2.5 (five matmuls for two), and forward again under remat.
Source: Dao, FlashAttention-2, section 4.1."""


def count_attention_flops(model: ModelSpec, training: TrainingSpec) -> float:
    """Returns the FLOPs of causal attention in one step of all devices, including the backward pass and remat.

    Worked example: one layer of one head of 128, one sequence of 2048, remat none: 3.5 · 2 · 2048² · 128 FLOPs. Scores
    and values are 2 matmuls of 2·S²·h, of which causality leaves half.
    """
    pairs = training.global_batch_size * training.seq_len**2
    width = model.num_attention_heads * model.head_size
    return _PASSES[training.remat] * 2.0 * pairs * width * model.num_hidden_layers
