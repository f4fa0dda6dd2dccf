"""Compilers: the distributions that compile for a platform, the key of a compile, and cards as XLA's CUDA compiler
describes them. Imports no jax: versions are read from the installed packages.

The key of a compile has exactly the facts that can change the compiler's answer; names of target and model are not in
it. A card is described by its own published figures or not at all; memory and its speed are those of the chip table.
jax registers its CUDA plugin when a topology is requested, independent of JAX_PLATFORMS; no driver is needed. The
description is a GpuTargetConfigProto (xla/stream_executor/device_description.proto) without the rates of scalar and
matrix units, which the compiler accepts.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from importlib.resources import files
from string import Template
from typing import Annotated, Final

from pydantic import BeforeValidator

from meshwright.compiling.process import COMPILE_ENVIRONMENT, build_compile_environment
from meshwright.compiling.worker import read_version
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileJob, CompileTarget
from meshwright.topology.chips import Chip, find_chip, parse_names, read_table
from meshwright.topology.systems import find_default_count, find_domain_count
from meshwright.wire.devices import Platform


@dataclass(frozen=True)
class Compiler:
    """The compiler of a platform, beside jaxlib.

    Attributes:
        extra: the extra of our distribution that installs it and JAX.
        distributions: packages of which one is needed; empty where jaxlib contains the compiler.
        others: packages whose versions also change the program.
    """

    extra: str
    distributions: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


COMPILERS: Final[Mapping[Platform, Compiler]] = {
    "cpu": Compiler("cpu"),
    "tpu": Compiler("compile-tpu", ("libtpu",)),
    "gpu": Compiler(
        "compile-cuda",
        ("jax-cuda12-plugin", "jax-cuda13-plugin"),
        ("jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12", "jax-cuda13-pjrt", "nvidia-cuda-nvcc"),
    ),
}

_CUDA_13_SINCE: Final = (7, 5)
"""Source: CUDA Toolkit 13.0's release notes: Maxwell, Pascal and Volta are no longer compiled for."""

_PTXAS_PLACES: Final = ("/usr/local/cuda/bin", "/opt/cuda/bin")
"""Folders that XLA searches besides its wheels and PATH."""


def explain_missing(
    platform: Platform, versions: Mapping[str, str] | None = None, *, chip: str | None = None
) -> str | None:
    """Returns why no compiler for a platform is installed, ending in "; pip install …"; None where it is installed.

    Args:
        versions: as `read_versions` returns them; None: the installed versions.
        chip: of the chip table; None: any.
    """
    if platform == "gpu" and chip and (reason := _explain_card(chip)):
        return reason
    found = read_versions(platform) if versions is None else versions
    needed = COMPILERS[platform]
    install = f"pip install 'meshwright[{needed.extra}]'"
    for name in ("jax", "jaxlib"):
        if name not in found:
            return f"{name} is not installed, without which nothing compiles; {install}"
    here = {name: found[name] for name in needed.distributions if name in found}
    if needed.distributions and not here:
        missing = " or ".join(needed.distributions)
        return f"no compiler for {platform.upper()} targets is installed ({missing} is missing); {install}"
    if platform == "tpu":
        return _explain_libtpu(found)
    if platform == "gpu":
        return _explain_cuda(found, here, chip, install)
    return None


def _explain_libtpu(versions: Mapping[str, str]) -> str | None:
    """Returns why libtpu is not the one that jaxlib was built with.

    Source: the requirement of the extra `tpu` in the metadata of jax: `libtpu==0.0.42.*; extra == "tpu"`. With another
    libtpu some programs do not compile: libtpu 0.0.51 and jaxlib 0.10.2 refuse collectives of TPU7x.
    """
    lines = (line.partition(";")[0].partition("==") for line in requires("jax") or ())
    wanted = next((rest.strip() for name, equals, rest in lines if equals and name.strip() == "libtpu"), "*")
    if f"{versions['libtpu']}.".startswith(wanted.removesuffix("*")):
        return None
    found = f"libtpu {versions['libtpu']} is here with jaxlib {versions['jaxlib']}, whose compiler is libtpu {wanted}"
    return f"{found}; with another one some programs do not compile; pip install 'libtpu=={wanted}'"


def _explain_cuda(versions: Mapping[str, str], plugins: Mapping[str, str], chip: str | None, hint: str) -> str | None:
    if versions["jaxlib"] not in plugins.values():
        listed = ", ".join(f"{name} {version}" for name, version in plugins.items())
        return f"{listed} is here with jaxlib {versions['jaxlib']}; both need the same version; {hint}"
    card = find_chip(chip) if chip else None
    if "jax-cuda12-plugin" not in plugins and card and CARDS[card.name].capability < _CUDA_13_SINCE:
        found = f"CUDA 13 does not compile for {card.name}, only for capability 7.5 and later"
        return f"{found}; pip install 'meshwright[compile-cuda12]', without jax-cuda13-plugin"
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), *_PTXAS_PLACES))
    if not any("nvcc" in name for name in versions) and not shutil.which("ptxas", path=places):
        return f"XLA's CUDA compiler needs NVIDIA's assembler, ptxas, which is not installed; {hint}"
    return None


KEY_PREFIX: Final = "mwv1-"

_FLAGS: Final = ("JAX_", "XLA_", "LIBTPU_", "TPU_LIBRARY_PATH")
"""What else JAX and XLA's compilers read from the environment, by how it begins."""

_SILENT: Final = ("XLA_PYTHON_CLIENT_", "JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_LOG", "JAX_TRACEBACK")
"""Of these, variables that do not change a program: the memory of a running job, caches, logs."""


def read_versions(platform: Platform) -> dict[str, str]:
    """Returns the versions of a platform's compilers, by distribution, without those that are not installed."""
    compiler = COMPILERS[platform]
    names = ("jax", "jaxlib", "meshwright", *compiler.distributions, *compiler.others)
    return {name: known for name in names if (known := read_version(name)) is not None}


def build_key(job: CompileJob) -> str:
    """Returns the cache key of the answer to a job: equal for equal jobs, and versions of compilers and meshwright.

    Args:
        job: its target and its model are keyed by content, not by name.
    """
    flags = build_compile_environment(os.environ)
    content = {
        "job": job.model_dump(mode="json", exclude={"target": {"name"}, "model": {"name"}}),
        "axes": list(job.mesh.shape.items()),  # their order counts
        "versions": read_versions(job.target.platform),
        "flags": {name: value for name, value in flags.items() if value and _matters(name)},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return KEY_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def _matters(name: str) -> bool:
    """Returns whether JAX or a compiler reads its answer from a variable."""
    return name.startswith(_FLAGS) and not name.startswith(_SILENT) and name not in COMPILE_ENVIRONMENT


Capability = Annotated[tuple[int, int], BeforeValidator(parse_names)]


@dataclass(frozen=True)
class Multiprocessor:
    """Facts of each multiprocessor (SM) by compute capability: a row of `multiprocessors.csv`.

    Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability" and "Arithmetic
    Instructions"; openxla/xla, xla/backends/gpu/target_config/specs (7.0, 8.0, 8.6, 9.0, 10.0, 10.3).

    Attributes:
        threads_count: that it holds at a time.
        shared_memory_bytes: of all blocks on it.
        block_shared_memory_bytes: of one block that requests more than 48 KiB.
        fpu_count: FP32 lanes.
        feature: "ACCELERATED_FEATURES": the compiler may use features of this capability only ("sm_90a").
    """

    capability: Capability
    threads_count: int
    shared_memory_bytes: int
    block_shared_memory_bytes: int
    fpu_count: int
    feature: str


@dataclass(frozen=True)
class GpuSpec:
    """Facts of a card that are neither in the chip table nor in its compute capability: a row of `cards.csv`.

    Source: what drivers report, as openxla/xla records it in xla/backends/gpu/target_config/specs at 4336d12 and
    300ec95 (V100, A100, H100, H200, B200, GB200, GB300); NVIDIA's data sheets and architecture papers (T4, A10, L4,
    L40S); AWS's page of G5 and NVIDIA's driver (A10G). B300 has B200's figures: xla's file of it (158 multiprocessors,
    no driver's text) is no record, and NVIDIA gives both the same FLOP/s; unverified. H800 has H100's figures; those of
    H20 and GH200 are of their six stacks of memory and of public listings, unverified.

    Attributes:
        name: in the chip table.
        multiprocessor_count: of the product, not of the die.
        l2_bytes: as the driver reports it.
        clock_hz: the highest of the multiprocessors.
    """

    name: str
    capability: Capability
    multiprocessor_count: int
    l2_bytes: int
    clock_hz: float


_TABLES: Final = "meshwright.compiling"
CARDS: Final = {card.name: card for card in read_table(_TABLES, "cards.csv", GpuSpec)}
MULTIPROCESSORS: Final = {each.capability: each for each in read_table(_TABLES, "multiprocessors.csv", Multiprocessor)}

COMPILER_OPTIONS: Final[Mapping[str, str | bool | int]] = {"xla_gpu_autotune_level": 0}
"""Autotuning runs kernels, and there is no device to run them on."""


def describe_gpus(target: CompileTarget) -> dict[str, str]:
    """Returns a target as `get_topology_desc(platform="cuda", …)` takes it for XLA's CUDA compiler: the `topology` and
    the `target_config`, the card as text.

    Raises:
        NotCompiledError: the card is AMD's, or its figures are not known here.
    """
    chip = find_chip(target.chip)
    if (reason := _explain_card(target.chip)) or chip is None:
        raise NotCompiledError(f"{target.name}: {reason}")
    topology = write_topology(chip, target.shape[0], target.granules)
    return {"topology": topology, "target_config": write_config(chip)}


def _explain_card(name: str) -> str | None:
    """Returns why a card of this name cannot be described to XLA's CUDA compiler."""
    chip = find_chip(name)
    if chip is None or chip.platform != "gpu":
        return f"no GPU is called {name}; those that XLA compiles for: {_list()}"
    if chip.name.startswith("MI"):
        return "XLA's ROCm compiler is not supported; use a target of NVIDIA's, such as h100:8, or plan without compile"
    return None if chip.name in CARDS else f"the figures of {chip.name} are not known; use one of {_list()}"


def _list() -> str:
    chips = (find_chip(name) for name in CARDS)
    return ", ".join(chip.aliases[0] for chip in chips if chip)


def write_topology(chip: Chip, gpu_count: int, host_count: int) -> str:
    """Returns "<partitions>x<hosts of one>x<GPUs of a host>"; NVLink joins the GPUs of a partition.

    Hosts fill NVLink domains one after the other. Partitions are alike: of hosts that fill no whole number of domains,
    it has the largest that divide them.
    """
    domain = (find_domain_count(chip) or 0) // find_default_count(chip) or 1
    hosts = host_count if host_count <= domain else math.gcd(host_count, domain)
    return f"{host_count // hosts}x{hosts}x{gpu_count}"


def write_config(chip: Chip) -> str:
    """Returns the text proto of a card of the table: `gpu_target.textproto` with its figures.

    cuDNN 9.8 is the minimum that jax's CUDA wheels require. Source: the metadata of jax-cuda12-plugin 0.10.2,
    "with-cuda".

    Raises:
        KeyError: no card of `CARDS`.
    """
    card = CARDS[chip.name]
    figures = {
        **asdict(MULTIPROCESSORS[card.capability]),
        "major": card.capability[0],
        "minor": card.capability[1],
        "kind": chip.kinds[0],
        "core_count": card.multiprocessor_count,
        "clock_ghz": card.clock_hz / 1e9,
        "l2_bytes": card.l2_bytes,
        "memory_bytes": chip.device_memory_bytes,
        "memory_bytes_per_s": round(chip.memory_bytes_per_s),
        "pcie_bytes_per_s": round(chip.pcie_bytes_per_s or 0),
        "link_count": chip.link_count or 0,
    }
    return Template((files("meshwright.compiling") / "gpu_target.textproto").read_text()).substitute(figures)
