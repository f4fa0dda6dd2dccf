"""Which compiler it is, and what a compile is known by.

Rule: whatever can change the compiler's answer is in the key, and nothing else: not the names of target and model,
which are only what people call them. Knows no jax: versions are read from what is installed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from meshwright.compiling.environment import COMPILE_ENVIRONMENT, build_compile_environment
from meshwright.wire.compiling import CompileJob, CompileTarget
from meshwright.wire.devices import Platform

KEY_PREFIX: Final = "mwv1-"

_BASE: Final = ("jax", "jaxlib", "meshwright")
_COMPILERS: Final[Mapping[Platform, tuple[str, ...]]] = {
    "cpu": (),
    "tpu": ("libtpu",),
    "gpu": (
        "jax-cuda12-plugin",
        "jax-cuda12-pjrt",
        "nvidia-cuda-nvcc-cu12",
        "jax-cuda13-plugin",
        "jax-cuda13-pjrt",
        "nvidia-cuda-nvcc",
    ),
}

_FLAGS: Final = ("JAX_", "XLA_", "LIBTPU_", "TPU_LIBRARY_PATH")
"""What else JAX and XLA's compilers read from the environment, by how it begins."""

_SILENT: Final = ("XLA_PYTHON_CLIENT_", "JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_LOG", "JAX_TRACEBACK")
"""Of these, what changes no program: the memory of a running job, caches, logs."""

_ROOMS: Final = ("compiling", "wire/model.py", "wire/compiling.py", "wire/verification.py", "planning/axis_names.py")
"""The sources that make the step and read the answer."""


def read_versions(platform: Platform) -> dict[str, str]:
    """Returns the versions of what compiles for a platform, by distribution; without those that are not installed."""
    found = ((name, _read_version(name)) for name in (*_BASE, *_COMPILERS[platform]))
    return {name: known for name, known in found if known is not None}


def explain_libtpu(installed: str | None = None, requirements: Sequence[str] | None = None) -> str | None:
    """Returns why libtpu is not the one that jaxlib was built with; None where it is, or its version is not known.

    Args:
        installed: its version; None: of what is installed.
        requirements: of jax, as its metadata has them; None: of the jax that is installed.

    Source: the requirement of the extra `tpu` in the metadata of jax. With another libtpu some programs do not compile:
    libtpu 0.0.51 and jaxlib 0.10.2 refuse collectives of TPU7x.
    """
    found = installed or _read_version("libtpu")
    wanted = _find_wanted_libtpu(requires("jax") or () if requirements is None else requirements)
    if found is None or wanted is None or f"{found}.".startswith(wanted.removesuffix("*")):
        return None
    return (
        f"libtpu {found} is here with jaxlib {_read_version('jaxlib')}, whose TPU compiler is libtpu {wanted}; "
        f"with another one some programs do not compile: pip install 'libtpu=={wanted}'"
    )


def _find_wanted_libtpu(requirements: Sequence[str]) -> str | None:
    """Returns the version in a line such as `libtpu==0.0.42.*; extra == "tpu"`."""
    for line in requirements:
        name, equals, rest = line.partition(";")[0].partition("==")
        if equals and name.strip() == "libtpu":
            return rest.strip()
    return None


def build_key(job: CompileJob, fingerprint: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Returns what the answer to a job is kept under: equal for equal jobs, compilers and sources of ours.

    Args:
        job: its target and its model count by what they are, not by their names.
        fingerprint: of whatever else is compiled, such as the user's own step.
        environment: whose compiler flags count; None: this process's.
    """
    flags = os.environ if environment is None else environment
    content = {
        "job": _describe_job(job),
        "fingerprint": fingerprint,
        "versions": read_versions(job.target.platform),
        "flags": {name: value for name, value in build_compile_environment(flags).items() if value and _matters(name)},
        "sources": hash_sources(),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return KEY_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def _matters(name: str) -> bool:
    """Returns whether JAX or a compiler reads its answer from a variable."""
    return name.startswith(_FLAGS) and not name.startswith(_SILENT) and name not in COMPILE_ENVIRONMENT


def _describe_job(job: CompileJob) -> dict[str, object]:
    """Returns the job without what people call its parts; a mesh's axes as a list, since their order counts."""
    return {
        **job.model_dump(mode="json", exclude={"target": True, "model": {"name"}}),
        "axes": list(job.mesh.shape.items()),
        "target": _describe_target(job.target),
    }


def _describe_target(target: CompileTarget) -> dict[str, object]:
    """Returns the target without its name."""
    return target.model_dump(mode="json", exclude={"name"})


@functools.cache
def hash_sources() -> str:
    """Returns a hash of our own sources that make the step and read the compiler's answer."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for name, content in sorted(_read_sources(files("meshwright").joinpath(*room.split("/")), room)):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _read_sources(root: Traversable, name: str) -> list[tuple[str, bytes]]:
    if root.is_file():
        return [(name, root.read_bytes())] if name.endswith((".py", ".csv")) else []
    return [found for child in root.iterdir() for found in _read_sources(child, f"{name}/{child.name}")]


def _read_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
