"""A plan as a compile job: the step of its model on its mesh, or the reason why it cannot be compiled.

Rule: what the compiled step does not support is reported here, before a compiler is started. Imports no jax and no
numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from meshwright.environment import MEM_FRACTION, NEW_MEM_FRACTION
from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.hardware import GPU_FRACTION, find_capacity
from meshwright.planning.models import fill_sequence_length, read_model
from meshwright.planning.parallelism import MeshAxes, check_divides, write_values
from meshwright.spec import AxisType
from meshwright.targets import write_shape
from meshwright.topology.chips import Chip, find_chip
from meshwright.wire.base import Wire
from meshwright.wire.devices import Platform
from meshwright.wire.mesh import Plan, PlanSchedule
from meshwright.wire.model import BATCH_MAX, ModelSpec, TrainingSpec
from meshwright.wire.verification import Verification

if TYPE_CHECKING:
    from meshwright.wire.batch_size import CompiledBatch


def check_expressible(model: ModelSpec, seq_len: int) -> None:
    """Raises NotCompiledError unless the compiled step supports the model, with exactly its tensors and matmuls.

    Args:
        model: its dimensions fit together.
        seq_len: tokens; a window at least as long as the sequence is ignored.

    Raises:
        NotCompiledError: the step does not support the model. The error names each such field and its value.
    """
    found = [f"{name} ({what})" for name, what in find_inexpressible(model, seq_len)]
    if found:
        raise NotCompiledError(
            f"{model.name or 'the model'} has {', '.join(found)}, which the step that is compiled does not have; its "
            f"parameters are counted and its plan stands, but no compiler says whether it fits"
        )


def check_axes(mesh_shape: Mapping[str, int]) -> None:
    """Raises NotCompiledError unless the compiled step has every axis that is larger than 1."""
    axes = MeshAxes.of(mesh_shape)
    for name in axes.find("pipeline"):
        raise NotCompiledError(
            f"axis {name} of {axes.sizes[name]} is a pipeline, and the step that is compiled has no pipeline stages; "
            f"leave {name} out, and compile one stage: a model with its num_hidden_layers ÷ {axes.sizes[name]}"
        )


def find_inexpressible(model: ModelSpec, seq_len: int) -> Iterator[tuple[str, str]]:
    """Yields each field that the compiled step does not support, and its value in words."""
    window = "sliding_window" if model.sliding_window else "attention_chunk_size"
    is_windowed = bool(model.window and model.window < seq_len and model.window_layer_count)
    mixed = f"{model.dense_layer_count} dense layers beside {model.expert_layer_count} with experts"
    scaled = bool(model.qk_norm) and model.qk_norm_scale != "head"
    own_size = model.shared_size != model.num_shared_experts * model.expert_size
    rules: tuple[tuple[object, str, str], ...] = (
        (model.is_latent, "kv_lora_rank", "latent attention"),
        (scaled, "qk_norm_scale", f"norms of queries and keys with a scale for {model.qk_norm_scale}"),
        (model.attention_sinks, "attention_sinks", "a score that no token has"),
        (model.attn_logit_softcapping is not None, "attn_logit_softcapping", "capped scores"),
        (is_windowed, window, f"{model.window} tokens of sequences of {seq_len}"),
        (model.has_two_head_sizes, "global_head_dim", "heads of two sizes"),
        (model.index_topk is not None, "index_topk", "an indexer that chooses tokens"),
        (not model.pre_norms, "pre_norms", "no norms before blocks"),
        (model.post_attention_norm, "post_attention_norm", "a norm behind attention"),
        (model.post_feedforward_norm, "post_feedforward_norm", "a norm behind the feed-forward block"),
        (model.use_parallel_residual, "use_parallel_residual", "attention and feed-forward block side by side"),
        (model.final_logit_softcapping is not None, "final_logit_softcapping", "capped logits"),
        (model.expert_layer_count and model.dense_layer_count, "num_expert_layers", mixed),
        (model.expert_bias, "expert_bias", "biases of experts"),
        (model.router_bias, "router_bias", "a bias of the router"),
        (own_size, "shared_expert_intermediate_size", "shared experts of a size of their own"),
        (model.shared_expert_gate, "shared_expert_gate", "a gate of shared experts"),
    )
    return ((field, what) for is_so, field, what in rules if is_so)


_WAY: Final = "plan on a target instead, such as v5p:4x4x4"


def build_job(plan: Plan, model: ModelSpec, training: TrainingSpec) -> CompileJob:
    """Returns the job that verifies a plan.

    Args:
        plan: with its devices.
        model, training: the step.

    Raises:
        NotCompiledError: no compiler supports such hardware, or the compiled step does not support the model.
        PlanInfeasibleError: an axis does not divide its dimension.
        InvalidRequestError: the name of an axis does not say what it divides.
    """
    check_divides(model, training, plan.mesh_shape)
    check_expressible(model, training.seq_len)
    return CompileJob(
        target=build_compile_target(plan),
        mesh=build_compile_mesh(plan),
        model=model,
        training=training,
        capacity_bytes=read_capacity(plan),
    )


def build_compile_target(plan: Plan) -> CompileTarget:
    """Returns the hardware of a plan in the form that compilers take.

    Raises:
        NotCompiledError: its devices are of several kinds or of an unknown kind; hosts or slices differ, or slices lack
            a shape or chips; or the plan lacks the hardware.
    """
    chip = None if plan.platform == "cpu" else _find_chip(plan)
    shape = tuple(sorted({granule.device_count for granule in plan.granules}))
    if chip is not None and chip.platform == "tpu":
        shape = _find_shape(plan, chip)
    elif len(shape) > 1:
        raise NotCompiledError(
            f"compilers take hosts of one size, and these have {write_values(shape)} devices; {_WAY}"
        )
    name, first, count = chip.aliases[0] if chip else "cpu", plan.granules[0], len(plan.granules)
    written = f"{count}*" * (count > 1) + f"{name}:{write_shape(shape)}" + "_twisted" * first.twisted
    return CompileTarget(
        platform=plan.platform,
        chip=name,
        shape=shape,
        granules=count,
        wrap=first.wrap,
        twisted=first.twisted,
        name=plan.target or written,
    )


def _find_chip(plan: Plan) -> Chip:
    kinds = {granule.device_kind for granule in plan.granules}
    kind = kinds.pop()
    if kinds or kind is None:
        raise NotCompiledError(f"the plan's devices are not all of one kind that it names; {_WAY}")
    chip = find_chip(kind)
    if chip is None:
        raise NotCompiledError(f"no chip of the table is called {kind!r}, so no compiler is known for it; {_WAY}")
    return chip


def _find_shape(plan: Plan, chip: Chip) -> tuple[int, ...]:
    first = plan.granules[0]
    if first.shape is None or len({(granule.shape, granule.wrap, granule.twisted) for granule in plan.granules}) > 1:
        raise NotCompiledError(f"the slices have no shape, or not the same one, and compilers know them by it; {_WAY}")
    whole = math.prod(first.shape) * chip.jax_devices_per_chip
    if any(granule.device_count != whole for granule in plan.granules):
        words = f"a slice of {write_shape(first.shape)} chips has {whole} devices, and one here lacks some"
        raise NotCompiledError(f"{words}; {_WAY}")
    return first.shape


def build_compile_mesh(plan: Plan) -> CompileMesh:
    """Returns the mesh of a plan, by granule and position.

    Raises:
        NotCompiledError: the plan's devices were left out, or the granules that they are of.
    """
    if not plan.devices or not {device.granule for device in plan.devices} <= {each.ordinal for each in plan.granules}:
        raise NotCompiledError("the plan's devices were left out, so its order is not known; ask with include_devices")
    ordinals = {granule.ordinal: place for place, granule in enumerate(plan.granules)}
    places = tuple((ordinals[device.granule], device.position) for device in plan.devices)
    return CompileMesh(shape=dict(plan.mesh_shape), axis_types=dict(plan.axis_types), places=places)


def read_capacity(plan: Plan) -> int | None:
    """Returns the bytes of a device that the plan's job may use; None: its compiler knows it.

    Of a GPU the least memory of any × the fraction that the job is started with; of a CPU device its part of the host's
    memory, where the plan was made on a host.
    """
    if plan.platform == "tpu":
        return None
    memory_bytes = read_memory(plan)
    if plan.platform == "cpu":
        return memory_bytes
    return find_capacity(_find_chip(plan), memory_bytes, read_memory_fraction(plan))


def read_memory(plan: Plan) -> int | None:
    """Returns the least memory of any device of the plan; None where the plan does not have it."""
    known = (granule.device_memory_bytes for granule in plan.granules)
    return min((size for size in known if size is not None), default=None)


def read_memory_fraction(plan: Plan) -> float:
    """Returns the part of a GPU's memory that the plan's job is started with."""
    text = plan.environment.get(NEW_MEM_FRACTION) or plan.environment.get(MEM_FRACTION)
    return float(text) if text else GPU_FRACTION


_refuse = InvalidRequestError.of

Model = str | dict[str, Any]


def prepare_verify(plan: Plan, model: Model | None, training: TrainingSpec | None) -> CompileJob | Verification:
    """Returns the job that verifies a plan, or the answer that the step cannot be compiled.

    Raises:
        InvalidRequestError: the model or its training is missing or not valid.
        PlanInfeasibleError: an axis does not divide its dimension.
    """
    if model is None or training is None:
        raise _refuse_missing(model)
    try:
        spec = read_model(model)
        job = build_job(plan, spec, apply_schedule(fill_sequence_length(spec, training), plan.schedule))
        check_axes(plan.mesh_shape)
    except NotCompiledError as error:
        return Verification(status="not_compiled", reason=str(error), target=plan.target)
    return job


def apply_schedule(training: TrainingSpec, schedule: PlanSchedule | None) -> TrainingSpec:
    """Returns the training of a plan, with the gradient accumulation, remat and moments that a search chose."""
    if schedule is None:
        return training
    chosen = schedule.model_dump(include={"gradient_accumulation_steps", "remat"})
    for name in ("first_moment_dtype", "second_moment_dtype"):
        dtype = getattr(schedule, name)
        if dtype not in (None, getattr(training, name) or training.weight_dtype):
            chosen[name] = dtype
    return training.model_copy(update=chosen)


def _refuse_missing(model: Model | None) -> InvalidRequestError:
    missing = "model" if model is None else "training"
    detail = f"compile is true and {missing} is not given; what is compiled is a training step"
    hint = 'give both: "model": "llama3-8b", "training": {"global_batch_size": 64}'
    return _refuse(missing, detail, hint)


def prepare_fit(plan: Plan, model: Model | None, training: TrainingSpec | None) -> CompileJob | CompiledBatch:
    """Returns the job that finds the largest batch on a plan's mesh, or the answer that the step cannot be compiled.

    Raises:
        InvalidRequestError, PlanInfeasibleError: as `prepare_verify`.
    """
    bound = bound_batch(apply_schedule(training or TrainingSpec(), plan.schedule), plan.mesh_shape)
    found = prepare_verify(plan, model, bound)
    if isinstance(found, CompileJob):
        return found.model_copy(update={"search": "largest_batch"})
    return build_unfitted(found)


def bound_batch(training: TrainingSpec, mesh_shape: Mapping[str, int]) -> TrainingSpec:
    """Returns the training with the greatest batch to try: the largest that divides, up to the given one.

    Raises:
        InvalidRequestError: the limit is too small to give each part a sequence in each accumulation step.
    """
    fields = training.model_dump(exclude_none=True, exclude_unset=True)
    parts, passes = count_parts(mesh_shape), training.gradient_accumulation_steps
    unit, greatest = parts * passes, fields.get("global_batch_size", BATCH_MAX)
    if unit > BATCH_MAX:
        detail = f"gradient_accumulation_steps {passes} × {parts} data-parallel parts need a batch of {unit} sequences"
        hint = f"use gradient_accumulation_steps {BATCH_MAX // parts} or less"
        raise _refuse("training.gradient_accumulation_steps", f"{detail}; the greatest is {BATCH_MAX}", hint)
    if greatest < unit:
        detail = f"global_batch_size {greatest} is less than one sequence for each of {parts} data-parallel parts"
        passed = f" in each of {passes} micro-batches" if passes > 1 else ""
        raise _refuse("training.global_batch_size", detail + passed, f"use {unit} or more, or name none")
    return TrainingSpec.model_validate({**fields, "global_batch_size": greatest // unit * unit})


def build_unfitted(verification: Verification) -> CompiledBatch:
    """Returns the answer to a search without a result: no compile ran, or a compile did not finish."""
    from meshwright.wire.batch_size import CompiledBatch  # here, since plans do not need it

    return CompiledBatch(per_replica_batch_size=None, global_batch_size=None, limit=None, verification=verification)


def count_parts(mesh_shape: Mapping[str, int]) -> int:
    """Returns over how many parts the step lays a batch."""
    axes = MeshAxes.of(mesh_shape)
    return axes.measure(axes.batch)


class CompileTarget(Wire):
    """Hardware that need not be here."""

    platform: Platform
    chip: str = Field(description='an alias of the chip table: "v5p", "h100"; "cpu"')
    shape: tuple[int, ...] = Field(description="TPU: chips of a slice in x, y, z; else (devices of a granule,)")
    granules: int = Field(default=1, description="slices, or hosts")
    wrap: tuple[bool, ...] | None = None
    twisted: bool = Field(default=False, description="a twisted torus")
    name: str = Field(description="as people write it: 2*v5e:16x16")


class CompileMesh(Wire):
    """A mesh on the target's devices."""

    shape: dict[str, int]
    axis_types: dict[str, AxisType]
    places: tuple[tuple[int, int], ...] = Field(
        description="(granule, position in the granule) of each device, row-major; positions count x fastest, then y, "
        "z, and the cores of a chip faster than all"
    )


class CompileSite(Wire):
    """Hardware, and the mesh on it, that a step is compiled for."""

    target: CompileTarget
    mesh: CompileMesh
    capacity_bytes: int | None = Field(default=None, description="of a device; null: what the compiler says it has")


class CompileJob(CompileSite):
    """The step of a model."""

    model: ModelSpec
    training: TrainingSpec
    search: Literal["none", "largest_batch"] = "none"
