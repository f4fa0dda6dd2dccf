"""Compiles small programs of ours and writes their protobufs here, gzipped: the tests of `compiling.hlo` read them.

Run from the repository root, once for each platform: `python tests/recorded/hlo/record.py tpu|cpu|cuda [NAME…]`.
Opens no device. Each program is a few lines, so that its collectives' bytes can be counted by hand.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PLATFORM: Final = sys.argv[1] if len(sys.argv) > 1 else "tpu"

os.environ.update(
    ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_SKIP_MDS_QUERY="1", TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0", JAX_PLATFORMS="cpu",
)  # fmt: skip

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import mesh_utils, topologies  # noqa: E402
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from meshwright.compiling.compilers import COMPILER_OPTIONS, describe_gpus  # noqa: E402
from meshwright.planning.compile_job import CompileTarget  # noqa: E402

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    """What is compiled for which mesh of which target; of several slices, which one each place of the mesh is on."""

    name: str
    target: str
    mesh: dict[str, int]
    build: Callable[[Mesh], tuple[Callable[..., Any], tuple[Any, ...]]]
    granules: tuple[int, ...] | None = None


def describe(mesh: Mesh, shape: tuple[int, ...], spec: P, dtype: Any = jnp.bfloat16) -> Any:
    """Returns an array that does not exist, with its sharding."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def build_dp(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Weights on all, batch over all axes: gradients are summed."""
    axes = tuple(mesh.axis_names)

    def step(weight: Any, batch: Any) -> Any:
        return weight - jax.grad(lambda w: jnp.sum((batch @ w).astype(jnp.float32) ** 2))(weight)

    return step, (describe(mesh, (1024, 512), P()), describe(mesh, (2048, 1024), P(axes, None)))


def build_fsdp(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Four layers in a scan, weights sharded over fsdp: gathered in each trip, gradients scattered."""

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            def layer(x: Any, w: Any) -> tuple[Any, None]:
                w = lax.with_sharding_constraint(w, NamedSharding(mesh, P(None, None)))
                x = jnp.tanh(x @ w)
                return lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp", None))), None

            x, _ = lax.scan(jax.checkpoint(layer), batch, weights)
            return jnp.sum(x.astype(jnp.float32) ** 2)

        gradients = jax.grad(loss)(weights)
        gradients = lax.with_sharding_constraint(gradients, NamedSharding(mesh, P(None, "fsdp", None)))
        return weights - gradients

    return step, (describe(mesh, (4, 512, 512), P(None, "fsdp", None)), describe(mesh, (1024, 512), P("fsdp", None)))


def build_tp(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A feed-forward layer, its hidden dimension over tp: one all-reduce."""

    def step(x: Any, up: Any, down: Any) -> Any:
        return lax.with_sharding_constraint(jax.nn.relu(x @ up) @ down, NamedSharding(mesh, P()))

    arguments = (
        describe(mesh, (512, 256), P()),
        describe(mesh, (256, 1024), P(None, "tp")),
        describe(mesh, (1024, 256), P("tp", None)),
    )
    return step, arguments


def build_fsdp_tp(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Gathers over fsdp and sums over tp, both of the same size: told apart by their groups alone."""

    def part(x: Any, up: Any, down: Any) -> Any:
        up = lax.all_gather(up, "fsdp", axis=0, tiled=True)
        down = lax.all_gather(down, "fsdp", axis=1, tiled=True)
        return lax.psum(jax.nn.relu(x @ up) @ down, "tp")

    step = jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(P("fsdp", None), P("fsdp", "tp"), P("tp", "fsdp")),
        out_specs=P("fsdp", None),
        check_vma=False,
    )
    arguments = (
        describe(mesh, (512, 256), P("fsdp", None)),
        describe(mesh, (256, 1024), P("fsdp", "tp")),
        describe(mesh, (1024, 256), P("tp", "fsdp")),
    )
    return step, arguments


def build_ep(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Tokens to their experts and back: two all-to-alls."""

    def part(tokens: Any, weight: Any) -> Any:
        sent = lax.all_to_all(tokens, "ep", split_axis=0, concat_axis=1, tiled=True)
        done = jnp.einsum("etd,edf->etf", sent, weight)
        return lax.all_to_all(done, "ep", split_axis=1, concat_axis=0, tiled=True)

    step = jax.shard_map(part, mesh=mesh, in_specs=(P(None, "ep"), P("ep")), out_specs=P(None, "ep"), check_vma=False)
    return step, (describe(mesh, (8, 1024, 256), P(None, "ep")), describe(mesh, (8, 256, 256), P("ep")))


def build_cp(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Keys go round the ring of cp: one permute a trip of a loop whose end JAX writes as a constant."""
    size = mesh.shape["cp"]
    ring = [(i, (i + 1) % size) for i in range(size)]

    def part(query: Any, key: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            total, key = carry
            scores = (query @ key.T).astype(jnp.float32)
            return total + jnp.sum(jnp.exp(scores), axis=1), lax.ppermute(key, "cp", ring)

        total, key = lax.fori_loop(0, size, body, (jnp.zeros(query.shape[0], jnp.float32), key))
        return total, key

    step = jax.shard_map(part, mesh=mesh, in_specs=(P("cp"), P("cp")), out_specs=(P("cp"), P("cp")), check_vma=False)
    return step, (describe(mesh, (1024, 128), P("cp")), describe(mesh, (1024, 128), P("cp")))


def build_windowed(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Large matmuls whose gathers and scatters over tp the compiler turns into loops of permutes."""

    def step(x: Any, up: Any, down: Any) -> Any:
        x = lax.with_sharding_constraint(jax.nn.relu(x @ up), NamedSharding(mesh, P("dp", None, "tp")))
        return lax.with_sharding_constraint(x @ down, NamedSharding(mesh, P("dp", "tp", None)))

    arguments = (
        describe(mesh, (4, 4096, 8192), P("dp", "tp", None)),
        describe(mesh, (8192, 16384), P(None, "tp")),
        describe(mesh, (16384, 8192), P("tp", None)),
    )
    return step, arguments


def build_transfers(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Between slices: a sum over dp, a gather over dp, a permute over pp."""

    def part(x: Any) -> Any:
        gathered = lax.all_gather(jnp.tanh(lax.psum(x, "dp")), "dp", axis=0, tiled=True)
        return lax.ppermute(gathered, "pp", [(0, 1)])

    spec = P(("pp", "dp", "fsdp"), None)
    step = jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=P(("pp", "fsdp"), None), check_vma=False)
    return step, (describe(mesh, (64, 1024), spec),)


def build_nested(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Sums in a loop of 3 in a scan of 5: 15 times."""

    def part(x: Any, weights: Any) -> Any:
        def inner(x: Any, w: Any) -> Any:
            return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(lax.psum(y @ w, "tp")), x), None

        return lax.scan(inner, x, weights)[0]

    step = jax.shard_map(part, mesh=mesh, in_specs=(P(), P(None, None, None)), out_specs=P(), check_vma=False)
    return step, (describe(mesh, (256, 256), P()), describe(mesh, (5, 256, 256), P()))


def build_unknown_trips(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A loop whose end is a value of the run: nobody knows its trips."""

    def part(x: Any, count: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < count[0], lambda c: (c[0] + 1, lax.psum(c[1], "tp") * 0.5), (0, x))[1]

    step = jax.shard_map(part, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
    return step, (describe(mesh, (256, 256), P()), describe(mesh, (1,), P(), jnp.int32))


def build_branches(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Two branches, of which one sums over dp and one does not."""

    def part(x: Any, which: Any) -> Any:
        return lax.cond(which[0] > 0, lambda y: lax.psum(jnp.sin(y), "dp"), lambda y: y * 2, x)

    step = jax.shard_map(part, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
    return step, (describe(mesh, (256, 256), P()), describe(mesh, (1,), P(), jnp.int32))


def build_splash(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """JAX's splash attention, a Pallas kernel, on keys and values that go round the ring of cp."""
    heads, length, size = 4, 1024, mesh.shape["cp"]
    masks = splash_attention_mask.MultiHeadMask([splash_attention_mask.FullMask((length, length))] * heads)
    kernel = splash_attention_kernel.make_splash_mha(masks, head_shards=1, q_seq_shards=1)
    ring = [(i, (i + 1) % size) for i in range(size)]

    def part(query: Any, key: Any, value: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            total, key, value = carry
            total = total + kernel(query, key, value)
            return (total, lax.ppermute(key, "cp", ring), lax.ppermute(value, "cp", ring)), None

        return lax.scan(body, (jnp.zeros_like(query), key, value), None, length=size)[0][0]

    spec = P(None, "cp", None)
    step = jax.shard_map(part, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    return step, (describe(mesh, (heads, length * size, 128), spec),) * 3


BUILDERS: Final = {
    "dp": (build_dp, {"dp": 4}),
    "dp-two-axes": (build_dp, {"dp": 2, "fsdp": 2}),
    "fsdp": (build_fsdp, {"fsdp": 4}),
    "tp": (build_tp, {"tp": 4}),
    "fsdp-tp": (build_fsdp_tp, {"fsdp": 2, "tp": 2}),
    "ep": (build_ep, {"dp": 2, "ep": 2}),
    "cp": (build_cp, {"cp": 4}),
    "nested": (build_nested, {"dp": 2, "tp": 2}),
    "unknown-trips": (build_unknown_trips, {"dp": 2, "tp": 2}),
    "branches": (build_branches, {"dp": 2, "tp": 2}),
}

PROGRAMS: Final[dict[str, list[Program]]] = {
    "tpu": [
        *(Program(name, "v5e:2x2", mesh, build) for name, (build, mesh) in BUILDERS.items()),
        Program("fsdp-tp-16", "v5e:4x4", {"fsdp": 4, "tp": 4}, build_fsdp_tp),
        Program("splash", "v5e:2x2", {"cp": 4}, build_splash),
        Program("windowed", "v5e:4x4", {"dp": 4, "tp": 4}, build_windowed),
        Program("windowed-16", "v5e:4x4", {"dp": 1, "tp": 16}, build_windowed),
        Program("dcn", "2*v5e:2x2", {"dp": 2, "fsdp": 4}, build_dp, (0,) * 4 + (1,) * 4),
        Program("dcn-inner", "2*v5e:2x2", {"fsdp": 4, "dp": 2}, build_dp, (0, 1) * 4),
        Program(
            "transfers", "4*v5e:2x2", {"pp": 2, "dp": 2, "fsdp": 4}, build_transfers,
            tuple(place // 4 for place in range(16)),
        ),
        Program("dp", "v5p:2x2x2", {"dp": 8}, build_dp),
        Program("fsdp", "v5p:2x2x2", {"fsdp": 8}, build_fsdp),
        Program("dp", "tpu7x:2x2x1", {"dp": 8}, build_dp),
        Program("fsdp", "tpu7x:2x2x1", {"fsdp": 8}, build_fsdp),
        Program("ep", "tpu7x:2x2x1", {"dp": 2, "ep": 4}, build_ep),
    ],
    "cpu": [Program(name, "cpu:4", mesh, build) for name, (build, mesh) in BUILDERS.items()],
    "cuda": [
        *(Program(name, "h100:4", mesh, build) for name, (build, mesh) in BUILDERS.items()),
        Program("windowed", "h100:8", {"dp": 2, "tp": 4}, build_windowed),
    ],
}  # fmt: skip


def build_mesh(program: Program) -> Mesh:
    """Returns the mesh of the target's devices: in JAX's own order on TPU."""
    devices = list_devices(program.target)
    sizes = tuple(program.mesh.values())
    if program.granules:
        slices = [iter([d for d in devices if d.slice_index == granule]) for granule in sorted(set(program.granules))]
        places = np.array([next(slices[granule]) for granule in program.granules]).reshape(sizes)
    elif PLATFORM == "tpu":
        places = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    else:
        places = np.array(devices).reshape(sizes)
    return Mesh(places, tuple(program.mesh), axis_types=(AxisType.Auto,) * len(sizes))


def list_devices(target: str) -> list[Any]:
    """Returns the devices of a target that is not here."""
    granules, _, rest = target.rpartition("*")
    chip, _, shape = rest.partition(":")
    if chip == "cpu":
        return jax.devices("cpu")[: int(shape)]
    if PLATFORM == "cuda":
        told = describe_gpus(CompileTarget(platform="gpu", chip=chip, shape=(int(shape),), name=target))
        described = topologies.get_topology_desc(platform="cuda", **told)
    else:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=rest, **({"num_slices": int(granules)} if granules else {})
        )
    devices: list[Any] = described.devices
    return devices


def compile_program(program: Program) -> bytes:
    """Returns the compiled program's protobuf."""
    step, arguments = program.build(build_mesh(program))
    options = dict(COMPILER_OPTIONS) if PLATFORM == "cuda" else None
    compiled = jax.jit(step, donate_argnums=(0,)).lower(*arguments).compile(compiler_options=options)
    return bytes(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())


def main() -> None:
    """Writes each program, and what it was made with."""
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths of this machine
    wanted = set(sys.argv[2:])
    if PLATFORM == "cpu":
        jax.config.update("jax_num_cpu_devices", 8)
    version = version_of(PLATFORM)
    for program in PROGRAMS[PLATFORM]:
        name = f"{program.target.replace(':', '-').replace('*', '-')}.{program.name}"
        if wanted and name not in wanted and program.name not in wanted:
            continue
        head = json.dumps(
            {
                "mesh": program.mesh, "target": program.target, "jax": jax.__version__, "made_by": version,
                "granules": program.granules,
            }
        )  # fmt: skip
        path = FOLDER / f"{name}.{version}.hlo.gz"
        try:
            serialized = compile_program(program)
        except Exception as error:
            print(path.name, "failed:", str(error)[:300])
            continue
        path.write_bytes(gzip.compress(head.encode() + b"\n" + serialized, mtime=0))
        print(path.name, len(serialized), flush=True)


def version_of(platform: str) -> str:
    """Returns the package that compiles, with its version."""
    wanted = {"tpu": ("libtpu",), "cpu": ("jaxlib",), "cuda": ("jax-cuda12-pjrt", "jax-cuda13-pjrt")}[platform]
    installed = {found.name for found in importlib.metadata.distributions()}
    package = next(name for name in wanted if name in installed or name.replace("-", "_") in installed)
    return f"{package}-{importlib.metadata.version(package)}"


if __name__ == "__main__":
    main()
