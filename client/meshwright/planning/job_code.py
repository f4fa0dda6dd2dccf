"""The text that a job starts with: its environment, the Python that makes a mesh, and PartitionSpecs of a model.

Rule: the code makes exactly the planned mesh, or stops with a sentence. It needs jax and NumPy only. External text
(names of axes, uuids) is written as a literal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.environment import DeviceConfiguration, build_environment
from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.parallelism import Axes, MeshAxes
from meshwright.planning.tensors import Tensor, list_tensors
from meshwright.spec import AxisType, MeshSpec
from meshwright.topology.model import Topology
from meshwright.wire.devices import Device, Platform
from meshwright.wire.mesh import ExportName, Plan
from meshwright.wire.model import ModelSpec, Remat, TrainingSpec


def build_job_environment(topology: Topology, used: Sequence[int], memory_fraction: float) -> dict[str, str]:
    """Returns the variables with which one process on each host sees the planned devices, in the plan's
    numbering. Where several processes share a host's CPU devices, each is started with its part of
    JAX_NUM_CPU_DEVICES. What differs from host to host is not in it (`find_differing`).

    Args:
        used: the planned devices, as indices of the topology, in any order.
        memory_fraction: of a GPU's memory, that the job may take.
    """
    backend = _find_backend(topology)
    variables = {"JAX_PLATFORMS": _JAX_PLATFORMS[backend]}
    values = set(list_visible(topology, used).values())
    if backend == "cuda":
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if len(values) == 1 and (value := values.pop()):
        variables[_VARIABLES[backend]] = value
    config = DeviceConfiguration(memory_fraction=memory_fraction if topology.platform == "gpu" else None)
    return {**variables, **build_environment(config, {}, platform=topology.platform)}


Backend = Literal["cpu", "cuda", "rocm", "tpu"]

_JAX_PLATFORMS: Final[Mapping[Backend, str]] = {"cpu": "cpu", "cuda": "cuda,cpu", "rocm": "rocm,cpu", "tpu": "tpu,cpu"}
"""The first is the default backend and must start; the CPU stays at hand for host-side arrays."""

_VARIABLES: Final[Mapping[Backend, str]] = {
    "cpu": "JAX_NUM_CPU_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
}
"""What shows a process the devices that it is to use. Source of AMD's: ROCm docs, "GPU isolation techniques"."""


def _find_backend(topology: Topology) -> Backend:
    if topology.platform != "gpu":
        return topology.platform
    return "rocm" if topology.devices[0].kind.startswith("AMD ") else "cuda"


def list_visible(topology: Topology, used: Sequence[int]) -> dict[str, str]:
    """Returns, for each host that a plan uses, the value of the variable that shows its process the planned devices.

    The value is empty where no variable is needed: all GPUs of a host. For TPUs the result is empty.
    """
    if topology.platform == "tpu":
        return {}
    planned: dict[str, list[Device]] = defaultdict(list)
    everyone: Counter[str] = Counter(device.host for device in topology.devices)
    members = set(used)
    for index in topology.order:
        if index in members:
            planned[topology.devices[index].host].append(topology.devices[index])
    return {host: _name_visible(chosen, everyone[host], topology.platform) for host, chosen in planned.items()}


def _name_visible(chosen: Sequence[Device], device_count: int, platform: Platform) -> str:
    if platform == "cpu":
        return str(len(chosen))
    if len(chosen) == device_count and not any(device.mig for device in chosen):
        return ""
    is_known = all(device.uuid for device in chosen)
    return ",".join(str(device.uuid if is_known else device.local_index) for device in chosen)


def find_differing(topology: Topology, used: Sequence[int]) -> tuple[str, dict[str, str]] | None:
    """Returns the variable that differs between hosts, and its value by host; None where all hosts are alike."""
    values = list_visible(topology, used)
    return (_VARIABLES[_find_backend(topology)], values) if len(set(values.values())) > 1 else None


def write_code(
    spec: MeshSpec,
    axis_types: Sequence[AxisType],
    topology: Topology,
    order: Sequence[int],
    *,
    environment: Mapping[str, str],
    fingerprint: str,
) -> str:
    """Returns Python that binds the planned mesh to the name `mesh`.

    Args:
        spec: the axes, without -1.
        axis_types: one an axis.
        order: the planned devices in mesh order, row-major, as indices of the topology.
        environment: what the job starts with; written as a comment.
    """
    starts = [f"#   {name}={value!r}" for name, value in environment.items()]
    head = [f"# Mesh {spec}, plan {fingerprint}. Start one process on each host with:", *starts]
    granules = {topology.places[index][0] for index in order}  # of several, processes must agree on the places
    if len(order) > LISTED_COUNT_MAX or len(granules) > 1:
        return "\n".join([*head, *_BUILD, ""])
    is_tpu = topology.platform == "tpu" and all(topology.devices[index].coords for index in order)
    lookup = _look_up_chips if is_tpu else _look_up_numbers
    types = ", ".join(f"AxisType.{kind.capitalize()}" for kind in axis_types) + "," * (len(axis_types) == 1)
    return "\n".join(
        [
            *head,
            "# With meshwright in the job, these lines do the same, for any number of processes:",
            "#   from meshwright.mesh import build_mesh",
            "#   mesh = build_mesh(plan)",
            "import jax",
            "import numpy as np",
            "from jax.sharding import AxisType, Mesh",
            "",
            *lookup(topology, order),
            "mesh = Mesh(",
            f"    np.array(planned, dtype=object).reshape({spec.sizes!r}),",
            f"    {spec.names!r},",
            f"    axis_types=({types}),",
            ")",
            "",
        ]
    )


LISTED_COUNT_MAX: Final = 1024
"""Above this number, the code requests the plan instead of listing its devices."""

_BUILD: Final = (
    "# MESHWRIGHT_PLAN is a file with this plan, or its fingerprint where an agent stores it.",
    "from meshwright import load_plan",
    "from meshwright.mesh import build_mesh",
    "",
    "mesh = build_mesh(load_plan())",
)


def _look_up_chips(topology: Topology, order: Sequence[int]) -> list[str]:
    """TPU: coordinates identify a device independent of its id, also where the job sees more devices than the plan
    uses."""
    chosen = [topology.devices[index] for index in order]
    chips = [(tuple(device.coords or ()), device.core_on_chip or 0) for device in chosen]
    return [
        "chips = {(tuple(d.coords), d.core_on_chip): d for d in jax.devices()}",
        f"order = {chips!r}",
        "absent = [chip for chip in order if chip not in chips]",
        "if absent:",
        '    raise SystemExit(f"this job does not see the chips {absent}")',
        "planned = [chips[chip] for chip in order]",
    ]


def _look_up_numbers(topology: Topology, order: Sequence[int]) -> list[str]:
    """CPU and GPU: the environment shows the job the planned devices, in the order of their positions."""
    used = set(order)
    numbers = {index: number for number, index in enumerate(i for i in topology.order if i in used)}
    return [
        "devices = jax.devices()",
        f"if len(devices) != {len(order)}:",
        f'    raise SystemExit(f"the plan uses {len(order)} devices, not {{len(devices)}}: see above")',
        f"order = {[numbers[index] for index in order]!r}",
        "planned = [devices[number] for number in order]",
    ]


@dataclass(frozen=True)
class Setting:
    """A plan together with its model.

    Attributes:
        plan: the places of the devices.
        training: with the gradient accumulation, remat and moments of the plan.
    """

    plan: Plan
    model: ModelSpec
    training: TrainingSpec
    axes: MeshAxes

    @classmethod
    def of(cls, plan: Plan, model: ModelSpec, training: TrainingSpec) -> Setting:
        """Returns the setting of a plan for this model, whose axes divide their dimensions."""
        from meshwright.planning.compile_job import apply_schedule  # here, since few plans are exported

        return cls(plan, model, apply_schedule(training, plan.schedule), MeshAxes.of(plan.mesh_shape))

    @property
    def micro_batch_size(self) -> int:
        """Sequences that one data-parallel part works on at a time."""
        share = self.training.global_batch_size // self.axes.measure(self.axes.batch)
        return share // self.training.gradient_accumulation_steps


def refuse(export: ExportName, message: str, hint: str) -> InvalidRequestError:
    """Returns the refusal of an export that cannot be written."""
    said = f"export {export}: {message}"
    return InvalidRequestError.of("exports", said, hint, message)


LAYER_INPUT: Final = "layer_input"
"""The name under which the compiled step saves a layer's input with remat offload."""

_POLICIES: Final[Mapping[Remat, str]] = {
    "none": "jax.checkpoint_policies.everything_saveable",
    "minimal": "jax.checkpoint_policies.dots_with_no_batch_dims_saveable",
    "full": "jax.checkpoint_policies.nothing_saveable",
    "offload": "jax.checkpoint_policies.save_and_offload_only_these_names(\n"
    f"    names_which_can_be_saved=[], names_which_can_be_offloaded=[{LAYER_INPUT!r}],\n"
    '    offload_src="device", offload_dst="pinned_host",\n'
    ")",
}
"""The saved activations of a layer: all, the results of matmuls, or only its input, on the device or its host."""

EXPERT_MATMUL: Final = "expert_matmul"
"""The name under which the compiled step saves the results of experts' matmuls with remat minimal."""


def write_jax(setting: Setting) -> str:
    """Returns the module.

    Raises:
        InvalidRequestError: the mesh has a pipeline, or the compiled step does not support the model.
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
        "# Tokens and targets [MICRO_BATCHES, GLOBAL_BATCH // MICRO_BATCHES, SEQUENCE_LENGTH].",
        f"BATCH = {write_spec(((), setting.axes.batch, setting.axes.context))}",
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
    from meshwright.planning.compile_job import check_expressible  # here, since few plans are exported

    stages = setting.axes.find("pipeline")
    if stages:
        said = setting.axes.write(stages)
        message = f"{said} is a pipeline; a PartitionSpec says where an array lies, not which stage runs when"
        raise refuse("jax", message, f"leave out {' and '.join(stages)}, or export maxtext, which has stages")
    try:
        check_expressible(setting.model, setting.training.seq_len)
    except NotCompiledError as error:
        hint = "export maxtext, or a model without it; `code` has the mesh alone"
        raise refuse("jax", str(error), hint) from error


def _write_schedule(setting: Setting) -> list[str]:
    training = setting.training
    return [
        f"# How {setting.model.name or 'the model'!r} is trained on it.",
        f"GLOBAL_BATCH = {training.global_batch_size}  # sequences in one step of the optimizer",
        f"MICRO_BATCHES = {training.gradient_accumulation_steps}  # micro-batches, one after the other",
        f"MICRO_BATCH = {setting.micro_batch_size}  # sequences of one data-parallel part in a pass",
        f"SEQUENCE_LENGTH = {training.seq_len}",
        f"WEIGHT_DTYPE, COMPUTE_DTYPE = {training.weight_dtype!r}, {training.compute_dtype!r}",
        f"REMAT = {training.remat!r}",
        "# Of jax.checkpoint around each layer.",
        *_write_policy(setting),
    ]


def _write_policy(setting: Setting) -> list[str]:
    policy = _POLICIES[setting.training.remat]
    if setting.training.remat == "offload":
        named = f"jax.ad_checkpoint.checkpoint_name(inputs, {LAYER_INPUT!r})"
        return [f"# A layer begins with {named}.", f"REMAT_POLICY = {policy}"]
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


def write_spec(dimensions: tuple[Axes, ...]) -> str:
    """Returns a PartitionSpec as Python: None, a name, or a tuple of names for each dimension."""
    return f"P({', '.join(repr(axes[0] if len(axes) == 1 else axes or None) for axes in dimensions)})"
