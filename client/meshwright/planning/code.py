"""A plan as Python that a job can paste, and the environment that it should start with. For a job of one
process.

Rule: the code makes exactly the planned mesh, or stops with a sentence. It needs jax and NumPy only.
Everything that comes from outside (names of axes, uuids) stands in it as a literal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment
from meshwright.spec import AxisType, MeshSpec
from meshwright.topology.model import Topology
from meshwright.wire.devices import Device, Platform


def build_job_environment(topology: Topology, used: Sequence[int], memory_strategy: str) -> dict[str, str]:
    """Returns the variables with which one process on each host sees the planned devices, in the plan's
    numbering. Where several processes share a host's CPU devices, each is started with its part of
    JAX_NUM_CPU_DEVICES. What differs from host to host is not in it (`find_differing`).

    Args:
        topology: where the devices are.
        used: the planned devices, as indices of the topology, in any order.
        memory_strategy: "conservative", "balanced" or "aggressive".
    """
    backend = _find_backend(topology)
    variables = {"JAX_PLATFORMS": _JAX_PLATFORMS[backend]}
    values = set(list_visible(topology, used).values())
    if backend == "cuda":
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if len(values) == 1 and (value := values.pop()):
        variables[_VARIABLES[backend]] = value
    config = DeviceConfiguration(memory_strategy=MemoryStrategy(memory_strategy))
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

    The value is empty where a process sees them without: all GPUs of a host. Of TPUs nothing is returned.
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
    """Returns the variable that each host must set otherwise, and its value by host; None where all are alike."""
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
        topology: where the devices are.
        order: the planned devices in mesh order, row-major, as indices of the topology.
        environment: what the job starts with; told in a comment.
        fingerprint: of the plan.
    """
    starts = [f"#   {name}={value!r}" for name, value in environment.items()]
    head = [f"# Mesh {spec}, plan {fingerprint}. Start one process on each host with:", *starts]
    if len(order) > LISTED_COUNT_MAX or _spans_processes(topology, order):
        return "\n".join([*head, *_BUILD, ""])
    lookup = _look_up_chips if _has_chips(topology, order) else _look_up_numbers
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
"""Above, the code asks for the plan instead of listing its devices."""

_BUILD: Final = (
    "# `plan` is this plan: Client().stored_plan(…), or the reply of POST /mesh/plan in a file.",
    "from meshwright.mesh import build_mesh",
    "",
    "mesh = build_mesh(plan)",
)


def _spans_processes(topology: Topology, order: Sequence[int]) -> bool:
    """True where several processes must agree on who is where, and no coordinates tell."""
    granules = {topology.places[index][0] for index in order}
    return len(granules) > 1


def _has_chips(topology: Topology, order: Sequence[int]) -> bool:
    return topology.platform == "tpu" and all(topology.devices[index].coords for index in order)


def _look_up_chips(topology: Topology, order: Sequence[int]) -> list[str]:
    """TPU: coordinates name a device whatever its id, also where the job sees more than the plan uses."""
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
