"""What a compile is known by."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from meshwright.compiling.compilers import (
    _find_wanted_libtpu,
    build_key,
    explain_libtpu,
    hash_sources,
    read_versions,
)
from meshwright.wire.compiling import CompileJob, CompileMesh, CompileTarget
from meshwright.wire.model import ModelSpec, TrainingSpec

TARGET = CompileTarget(platform="tpu", chip="v5e", shape=(2, 2), name="v5e:2x2")
MESH = CompileMesh(shape={"dp": 4}, axis_types={"dp": "auto"}, places=((0, 0), (0, 1), (0, 2), (0, 3)))
MODEL = ModelSpec(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, name="a"
)
TRAINING = TrainingSpec(global_batch=8, sequence_length=128)
JOB = CompileJob(target=TARGET, mesh=MESH, model=MODEL, training=TRAINING)


def change(**fields: Any) -> CompileJob:
    return JOB.model_copy(update=fields)


def key(job: CompileJob = JOB, fingerprint: str | None = None, **environment: str) -> str:
    return build_key(job, fingerprint, environment)


def test_a_key_is_the_same_for_the_same_job() -> None:
    again = CompileJob.model_validate_json(JOB.model_dump_json())
    assert key() == key(again)
    assert key().startswith("mwv1-")
    assert key().removeprefix("mwv1-").isalnum()


def test_what_people_call_things_does_not_matter() -> None:
    assert key(change(target=TARGET.model_copy(update={"name": "v5litepod-4"}))) == key()
    assert key(change(model=MODEL.model_copy(update={"name": None}))) == key()


def test_the_order_in_which_axis_types_are_written_does_not_matter() -> None:
    kinds = ({"dp": "auto", "tp": "explicit"}, {"tp": "explicit", "dp": "auto"})
    assert len({key(change(mesh=MESH.model_copy(update={"axis_types": types}))) for types in kinds}) == 1


@pytest.mark.parametrize(
    "job",
    [
        change(target=TARGET.model_copy(update={"twisted": True})),
        change(target=TARGET.model_copy(update={"chip": "v6e"})),
        change(target=TARGET.model_copy(update={"granules": 2})),
        change(mesh=MESH.model_copy(update={"shape": {"tp": 4}})),
        change(mesh=MESH.model_copy(update={"places": MESH.places[::-1]})),
        change(model=MODEL.model_copy(update={"hidden_size": 128})),
        change(training=TRAINING.model_copy(update={"global_batch": 16})),
        change(capacity_bytes=10**9),
        change(search="largest_batch"),
    ],
    ids=["twist", "chip", "granules", "axes", "order", "model", "batch", "capacity", "search"],
)
def test_whatever_changes_the_answer_changes_the_key(job: CompileJob) -> None:
    assert key(job) != key()


def test_the_order_of_axes_is_part_of_the_key() -> None:
    shapes = ({"dp": 2, "tp": 2}, {"tp": 2, "dp": 2})
    both = {key(change(mesh=MESH.model_copy(update={"shape": shape}))) for shape in shapes}
    assert len(both) == 2


def test_flags_and_the_users_step_are_part_of_the_key() -> None:
    assert len({key(), key(fingerprint="f"), key(XLA_FLAGS="--xla_x=1"), key(LIBTPU_INIT_ARGS="--xla_x=1")}) == 4
    assert key(HOME="/root", XLA_FLAGS="") == key()


def test_versions_are_of_what_is_installed() -> None:
    for platform in ("cpu", "tpu", "gpu"):
        told = read_versions(platform)
        assert {name: told[name] for name in ("jax", "jaxlib", "meshwright")} == {
            name: version(name) for name in ("jax", "jaxlib", "meshwright")
        }
    assert "libtpu" not in read_versions("cpu")


def test_the_libtpu_that_is_here_is_the_one_that_jax_wants() -> None:
    assert explain_libtpu() is None


@pytest.mark.parametrize(
    ("installed", "wanted", "matches"),
    [
        ("0.0.42.1", "0.0.42.*", True),
        ("0.0.42", "0.0.42.*", True),
        ("0.0.421", "0.0.42.*", False),
        ("0.0.51", "0.0.42.*", False),
        ("0.0.42.1", "0.0.42.1", True),
        ("0.0.51", None, True),
    ],
)
def test_a_libtpu_of_another_release_is_explained(installed: str | None, wanted: str | None, matches: bool) -> None:
    lines = () if wanted is None else ("numpy>=2", f'libtpu=={wanted}; extra == "tpu"')
    told = explain_libtpu(installed, lines)
    assert (told is None) == matches
    if told is not None:
        assert f"libtpu {installed} is here with jaxlib {version('jaxlib')}" in told
        assert f"pip install 'libtpu=={wanted}'" in told


def test_the_wanted_libtpu_is_found_among_other_requirements() -> None:
    assert _find_wanted_libtpu(("jaxlib==1", 'libtpu ==0.0.42.* ; extra == "tpu"')) == "0.0.42.*"
    assert _find_wanted_libtpu(("libtpu-nightly==1",)) is None


def test_our_own_sources_are_read_once() -> None:
    assert hash_sources() == hash_sources()
    assert len(hash_sources()) == 64


@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("JAX_ENABLE_X64", True),
        ("JAX_DEFAULT_MATMUL_PRECISION", True),
        ("LIBTPU_INIT_ARGS", True),
        ("TPU_LIBRARY_PATH", True),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", False),
        ("JAX_COMPILATION_CACHE_DIR", False),
        ("JAX_PLATFORMS", False),
        ("HOME", False),
    ],
)
def test_what_jax_and_compilers_read_from_the_environment_is_in_the_key(name: str, matters: bool) -> None:
    assert (build_key(JOB, environment={name: "1"}) != build_key(JOB, environment={})) == matters
