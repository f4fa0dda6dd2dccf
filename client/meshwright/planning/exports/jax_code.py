"""A plan as a Python module for JAX: the mesh, PartitionSpecs of weights and batch, remat and passes.

Rule: the specs are those of the step that meshwright compiles, so that what its compiler says holds for them. The
module needs jax and NumPy only, where the plan's own code does. What comes from outside stands in it as a literal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from meshwright.errors import NotCompiledError
from meshwright.planning.exports.setting import Setting, refuse
from meshwright.planning.expressible import check_expressible
from meshwright.planning.parallelism import Axes, MeshAxes
from meshwright.planning.tensors import Tensor, list_tensors
from meshwright.wire.model import Remat

_POLICIES: Final[Mapping[Remat, str]] = {
    "none": "jax.checkpoint_policies.everything_saveable",
    "minimal": "jax.checkpoint_policies.dots_with_no_batch_dims_saveable",
    "full": "jax.checkpoint_policies.nothing_saveable",
}
"""What the backward pass of a layer finds in memory: all, what matmuls gave, or nothing but its input."""

EXPERT_MATMUL: Final = "expert_matmul"
"""The name under which the compiled step keeps what experts' matmuls give with remat minimal."""


def write_jax(setting: Setting) -> str:
    """Returns the module.

    Raises:
        InvalidRequestError: the mesh has a pipeline, or the model has what the compiled step has not.
    """
    _check(setting)
    lines = [setting.plan.code.rstrip(), ""]
    if "import jax" not in setting.plan.code.splitlines():
        lines.append("import jax")
    lines += [
        "from jax.sharding import NamedSharding",
        "from jax.sharding import PartitionSpec as P",
        "",
        *_write_schedule(setting),
        "",
        *_write_weights(setting),
        "",
        *_write_batch(setting),
        "",
        "",
        "def shard(specs):",
        '    """Returns the NamedSharding of each PartitionSpec of a tree, for jax.device_put or jax.jit."""',
        "",
        "    def name(spec):",
        "        return NamedSharding(mesh, spec)",
        "",
        "    return jax.tree.map(name, specs, is_leaf=lambda leaf: isinstance(leaf, P))",
        "",
    ]
    return "\n".join(lines)


def _check(setting: Setting) -> None:
    stages = setting.axes.find("pipeline")
    if stages:
        said = setting.axes.write(stages)
        message = f"{said} is a pipeline; a PartitionSpec says where an array lies, not which stage runs when"
        raise refuse("jax", message, f"leave out {' and '.join(stages)}, or export maxtext, which has stages")
    try:
        check_expressible(setting.model, setting.training.sequence_length)
    except NotCompiledError as error:
        hint = "export maxtext, or a model without it; `code` has the mesh alone"
        raise refuse("jax", str(error), hint) from error


def _write_schedule(setting: Setting) -> list[str]:
    training = setting.training
    return [
        f"# How {setting.model.name or 'the model'!r} is trained on it.",
        f"GLOBAL_BATCH = {training.global_batch}  # sequences in one step of the optimizer",
        f"PASSES = {setting.passes}  # forward and backward passes in it, one after the other",
        f"MICRO_BATCH = {setting.micro_batch}  # sequences of one data-parallel part in a pass",
        f"SEQUENCE_LENGTH = {training.sequence_length}",
        f"WEIGHT_DTYPE, COMPUTE_DTYPE = {training.weight_dtype!r}, {training.compute_dtype!r}",
        f"REMAT = {training.remat!r}",
        "# Of jax.checkpoint around each layer.",
        *_write_policy(setting),
    ]


def _write_policy(setting: Setting) -> list[str]:
    policy = _POLICIES[setting.training.remat]
    if not setting.model.num_experts or setting.training.remat != "minimal":
        return [f"REMAT_POLICY = {policy}"]
    return [
        f"# Experts' matmuls are kept by name: jax.ad_checkpoint.checkpoint_name(product, {EXPERT_MATMUL!r}).",
        "REMAT_POLICY = jax.checkpoint_policies.save_from_both_policies(",
        f"    {policy},",
        f"    jax.checkpoint_policies.save_only_these_names({EXPERT_MATMUL!r}),",
        ")",
    ]


def _write_weights(setting: Setting) -> list[str]:
    tensors, scanned = list_tensors(setting.model), setting.training.scan_layers
    (layer,) = tensors.layers
    count = layer.count
    stacked = f"The first dimension of a layer's weights is the {count} layers." if scanned else ""
    layers = "LAYER" if scanned else f"(LAYER,) * {count}"
    return [
        "# Where weights lie, with their shapes; gradients and the optimizer's moments lie as their weights do.",
        *([f"# {stacked}"] if stacked else []),
        "LAYER = {",
        *_write_entries(layer.tensors, setting.axes, stack=(count,) if scanned else ()),
        "}",
        "PARAMETERS = {",
        *_write_entries(tensors.outer, setting.axes),
        f'    "layers": {layers},',
        "}",
    ]


def _write_entries(tensors: Iterable[Tensor], axes: MeshAxes, stack: tuple[int, ...] = ()) -> Iterator[str]:
    for tensor in tensors:
        stored, _ = tensor.place(axes)
        spec = write_spec((*(() for _ in stack), *stored))
        yield f'    "{tensor.name}": {spec},  # {[*stack, *tensor.shape]}'


def _write_batch(setting: Setting) -> list[str]:
    spec = write_spec(((), setting.axes.batch, setting.axes.context))
    return [
        "# Tokens and targets [PASSES, GLOBAL_BATCH // PASSES, SEQUENCE_LENGTH].",
        f"BATCH = {spec}",
    ]


def write_spec(dimensions: tuple[Axes, ...]) -> str:
    """Returns a PartitionSpec as Python: None, a name, or a tuple of names for each dimension."""
    return f"P({', '.join(repr(axes[0] if len(axes) == 1 else axes or None) for axes in dimensions)})"
