"""Compile targets with XLA's real compilers, in children as the compiler worker starts them. No device is opened.

CUDA's cases run where its wheels are installed: `make test-compile-cuda`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from meshwright.compiling.compilers import CARDS, read_versions
from meshwright.compiling.process import build_compile_environment
from meshwright.topology.chips import find_chip
from meshwright.topology.targets import build_target
from tests.process.slice_environment import needs_tpu_compiler

PROGRAM = Path(__file__).with_name("compile_target_job.py")
LIMIT_S = 120.0
GIB = 2**30

HAS_CUDA = any(name.endswith("-plugin") for name in read_versions("gpu"))

needs_cuda_compiler = pytest.mark.skipif(
    not HAS_CUDA, reason="XLA's CUDA compiler is not installed: make test-compile-cuda"
)


class Child:
    """One process that answers cases."""

    def __init__(self, *, without: str = "", **environment: str) -> None:
        base = {name: value for name, value in os.environ.items() if name not in {"JAX_PLATFORMS", "XLA_FLAGS"}}
        made = build_compile_environment({**base, "PYTHONPATH": str(PROGRAM.parents[3]), **environment})
        # a file, since a pipe that nobody reads fills up
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={name: value for name, value in made.items() if name != without}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()

    def send(self, case: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.read_log()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def read_log(self) -> str:
        self.process.wait(LIMIT_S)
        self.log.seek(0)
        return self.log.read()[-4000:]

    def ask(self, case: dict[str, Any]) -> dict[str, Any]:
        self.send(case)
        return self.read()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child() as started:
        yield started


def write_target(platform: str, chip: str, shape: tuple[int, ...], granules: int = 1, *, twisted: bool = False) -> Any:
    name = f"{granules}*{chip}:{'x'.join(map(str, shape))}{'_twisted' * twisted}"
    described = {"platform": platform, "chip": chip, "shape": shape, "granules": granules}
    return {**described, "twisted": twisted, "name": name}


write_tpu = functools.partial(write_target, "tpu")


WHOLE = [
    (write_tpu("v2", (2, 2)), 700e6), (write_tpu("v3", (2, 2)), 940e6), (write_tpu("v4", (2, 2, 1)), 1.05e9),
    (write_tpu("v5e", (1, 1)), 1.503e9), (write_tpu("v5e", (2, 4)), 1.503e9), (write_tpu("v5e", (2, 2), 2), 1.503e9),
    (write_tpu("v5p", (2, 2, 2)), 1.751e9), (write_tpu("v5p", (4, 4, 8), twisted=True), 1.751e9),
    (write_tpu("v6e", (2, 2)), 1.751e9), (write_tpu("tpu7x", (2, 2, 1)), 2.2e9),
]  # fmt: skip


@needs_tpu_compiler
@pytest.mark.parametrize(("target", "clock_hz"), WHOLE, ids=lambda case: case["name"] if isinstance(case, dict) else "")
def test_a_slice_has_its_devices_in_the_topologys_order(child: Child, target: dict[str, Any], clock_hz: float) -> None:
    told = child.ask({"target": target})
    known = build_target(target["name"]).devices
    assert told["devices"] == [[d.slice_index or 0, *(d.coords or ()), d.core_on_chip or 0] for d in known]
    assert told["kind"] == known[0].kind
    assert told["clock_hz"] == clock_hz
    assert told["counts"] == [len(known) // target["granules"]] * target["granules"]
    assert told["peak"] > 0
    assert len(known) == 1 or told["all_reduces"] > 0


PARTS = [
    ("a corner", write_tpu("v5e", (4, 4)), [(0, 0), (0, 1), (0, 4), (0, 5)], [[0, 0], [1, 0], [0, 1], [1, 1]]),
    ("the middle", write_tpu("v5e", (4, 4)), [(0, 5), (0, 6), (0, 9), (0, 10)], [[0, 0], [1, 0], [0, 1], [1, 1]]),
    ("a column, turned", write_tpu("v5e", (4, 4)), [(0, n) for n in (15, 11, 7)], [[0, 2], [0, 1], [0, 0]]),
    ("one chip", write_tpu("v5e", (4, 4)), [(0, 7)], [[0, 0]]),
    ("the second of two slices", write_tpu("v5e", (2, 2), 2), [(1, 0), (1, 1)], [[0, 0], [1, 0]]),
    ("a chip of each slice", write_tpu("v5e", (2, 2), 2), [(0, 0), (1, 3)], [[0, 0], [0, 0]]),
    ("two slices of three", write_tpu("v5e", (2, 2), 3), [(g, 0) for g in (1, 2)], [[0, 0], [0, 0]]),
    ("a chip of two cores", write_tpu("tpu7x", (2, 2, 1)), [(0, 2), (0, 3)], [[0, 0], [0, 0]]),
]


@needs_tpu_compiler
@pytest.mark.parametrize(("target", "places", "corners"), [case[1:] for case in PARTS], ids=[case[0] for case in PARTS])
def test_a_part_of_a_slice_compiles_as_a_slice(child: Child, target: Any, places: Any, corners: Any) -> None:
    told = child.ask({"target": target, "places": places})
    assert [device[1:3] for device in told["devices"]] == corners
    assert len({tuple(device) for device in told["devices"]}) == len(places)


ODD = [
    (write_tpu("v5e", (4, 4)), [(0, 0), (0, 1), (0, 4)], "no box of whole chips"),
    (write_tpu("tpu7x", (2, 2, 1)), [(0, 0), (0, 2)], "no box of whole chips"),
    (write_tpu("v5e", (2, 2), 2), [(0, 0), (0, 1), (1, 0)], "1x1x1 chips of a slice and 2x1x1 of another"),
    (write_tpu("v5p", (4, 4, 8), twisted=True), [(0, n) for n in range(64)], "4x4x4 chips of a twisted torus"),
    (write_tpu("v5e", (0, 2)), None, "libtpu has no slice for 1*v5e:0x2"),
    (write_target("tpu", "h100", (8,)), None, "no tpu is called h100"),
]


@needs_tpu_compiler
@pytest.mark.parametrize(("target", "places", "words"), ODD, ids=[case[2] for case in ODD])
def test_what_the_compiler_cannot_place_is_not_compiled(child: Child, target: Any, places: Any, words: str) -> None:
    told = child.ask({"target": target, "places": places})
    assert words in told["not_compiled"]


@needs_tpu_compiler
@pytest.mark.parametrize(("chip", "shape", "least"), [("v5e", (2, 2), 15.7), ("v5p", (2, 2, 1), 95.7)])
def test_the_tpu_compiler_says_what_a_device_has_to_give(child: Child, chip: str, shape: Any, least: float) -> None:
    told = child.ask({"target": write_tpu(chip, shape), "capacity": True})
    nominal: Any = build_target(f"{chip}:{'x'.join(map(str, shape))}").devices[0].memory
    assert least * GIB < told["capacity"] < max(nominal.capacity_bytes, (least + 0.1) * GIB)


@needs_tpu_compiler
def test_a_refusal_for_memory_is_read_in_the_words_of_the_libtpu_that_is_here(child: Child) -> None:
    told = child.ask({"target": write_tpu("v5e", (2, 2)), "large": True})
    assert told["needed"] == 24 * GIB, told["message"]
    assert told["available"] == round(15.75 * GIB)


@pytest.mark.exhaustive
@needs_tpu_compiler
def test_a_trainer_that_holds_libtpus_lock_is_in_nobodys_way() -> None:
    case = {"target": write_tpu("v5e", (2, 2))}
    with Child(without="ALLOW_MULTIPLE_LIBTPU_LOAD") as trainer:
        assert trainer.ask(case)["peak"] > 0
        with Child(without="ALLOW_MULTIPLE_LIBTPU_LOAD") as other:
            assert "lockfile" in other.ask(case)["not_compiled"], "the lock is real"
        with Child() as ours:
            assert ours.ask(case)["peak"] > 0


@needs_tpu_compiler
def test_what_this_host_is_does_not_change_what_is_compiled() -> None:
    slice_of_a_host = {"TPU_TOPOLOGY": "4x8", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
    with Child(**slice_of_a_host, XLA_FLAGS="--xla_force_host_platform_device_count=3") as elsewhere:
        assert elsewhere.ask({"target": write_tpu("v5e", (2, 2))})["counts"] == [4]


def test_without_its_plugin_a_gpu_is_not_compiled(child: Child) -> None:
    if HAS_CUDA:
        pytest.skip("XLA's CUDA compiler is installed")
    told = child.ask({"target": write_target("gpu", "h100", (8,))})
    assert "pip install 'meshwright[compile-cuda]'" in told["not_compiled"]


def write_gpu(chip: str, count: int, hosts: int) -> dict[str, Any]:
    return write_target("gpu", chip, (count,), hosts)


@needs_cuda_compiler
@pytest.mark.parametrize("name", CARDS)
def test_the_cuda_compiler_takes_every_card_of_the_table(child: Child, name: str) -> None:
    chip: Any = find_chip(name)
    count = 4 if chip.family.startswith(("gb", "gh")) else 8
    told = child.ask({"target": write_gpu(chip.aliases[0], count, 2)})
    if "not_compiled" in told:
        assert (CARDS[name].capability, "jax-cuda12-plugin" in read_versions("gpu")) == ((7, 0), False), told
        assert "meshwright[compile-cuda12]" in told["not_compiled"]
        return
    assert told["kind"] == chip.kinds[0]
    assert told["counts"] == [count, count]
    assert told["all_reduces"] > 0
    assert told["peak"] > 0


@needs_cuda_compiler
def test_a_mesh_on_some_hosts_and_some_of_their_gpus_compiles(child: Child) -> None:
    places = [(host, gpu) for host in (1, 3) for gpu in (4, 5, 6, 7)]
    assert len(child.ask({"target": write_gpu("h100", 8, 4), "places": places})["devices"]) == 8


@needs_cuda_compiler
def test_a_mesh_on_more_gpus_of_one_host_than_of_another_is_not_compiled(child: Child) -> None:
    told = child.ask({"target": write_gpu("h100", 8, 2), "places": [(0, 0), (0, 1), (1, 0)]})
    assert "1 GPUs of one host and 2 of another" in told["not_compiled"]


@needs_cuda_compiler
def test_gpus_have_no_capacity_of_the_compilers(child: Child) -> None:
    assert child.ask({"target": write_gpu("h100", 8, 1), "capacity": True})["capacity"] is None
