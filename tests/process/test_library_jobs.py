"""Jobs of real processes that use the library as trainers do: meshes of blocks, parts of batches, planned meshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright import Client
from meshwright.testing import FakeAgent
from tests.agents import RunningAgent
from tests.documents import Document
from tests.process.jobs import run_program

PROGRAM = Path(__file__).with_name("library_job.py")
ROWS, PROCESSES, EACH = 16, 2, 4


@dataclass(frozen=True)
class Layout:
    """A mesh of 8 devices by rank, the axes that its batch is split over, and what each process shall load."""

    name: str
    shape: tuple[int, ...]
    names: str
    axes: str
    shards: tuple[int, ...]
    count: int
    rows: Sequence[int] = range(ROWS)
    order: tuple[int, ...] | None = None

    def step(self) -> dict[str, Any]:
        axes, names = self.axes.split(), self.names.split()
        return {"do": "feed", "shape": self.shape, "names": names, "axes": axes, "rows": ROWS, "order": self.order}


def spread(blocks: Sequence[int], size: int) -> list[int]:
    """The rows of blocks of `size` rows, in the order of the blocks."""
    return [block * size + row for block in blocks for row in range(size)]


LAYOUTS = [
    Layout("data outer", (2, 4), "data tp", "data", (0, 1), 2),
    Layout("data outer, tp within processes", (4, 2), "dp tp", "dp", (0, 1), 2),
    Layout("data inner: each process has all of it", (2, 4), "tp data", "data", (0, 0), 1),
    Layout("data over both axes", (2, 4), "dcn ici", "dcn ici", (0, 1), 2),
    Layout("tp between two data axes", (2, 2, 2), "dp tp fsdp", "dp fsdp", (0, 1), 2),
    Layout("one data axis of size 1", (1, 8), "data tp", "data", (0, 0), 1),
    Layout("no data axis", (8,), "tp", "", (0, 0), 1),
    Layout("processes in reverse", (8,), "data", "data", (1, 0), 2, order=(4, 5, 6, 7, 0, 1, 2, 3)),
    Layout("devices mixed within processes", (4, 2), "data tp", "data", (1, 0), 2, order=(6, 4, 7, 5, 3, 1, 2, 0)),
    Layout("four devices, two of each process", (2, 2), "data tp", "data", (1, 0), 2, order=(5, 7, 0, 3)),
    # Not adjacent: process 0 has blocks 0, 1, 6, 7 of two rows, as on a line that goes out and back on a torus.
    Layout(
        "there and back", (8,), "data", "data", (0, 1), 2,
        rows=spread([0, 1, 4, 5, 6, 7, 2, 3], 2), order=(0, 1, 4, 5, 6, 7, 2, 3),
    ),
    # Not adjacent: process 0 has every second block of four rows, for the inner axis is named first.
    Layout("inner axis first", (2, 2, 2), "dp tp fsdp", "fsdp dp", (0, 1), 2, rows=spread([0, 2, 1, 3], 4)),
]  # fmt: skip


def nest(**block: Any) -> dict[str, Any]:
    return {"trainer": {"parallelism": block}}


def run(folder: Path, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what each process saw and answered; all see the same ranks, those of process 0 first."""
    job = run_program(PROGRAM, folder, steps, processes=PROCESSES, devices_each=EACH)
    assert [[process for process, _ in answer["seen"]] for answer in job] == [[0] * EACH + [1] * EACH] * PROCESSES
    return job


# ---- batches that processes load ----


def test_jax_arrays_of_any_mesh_are_placed_under_the_mesh_of_the_job_and_numbers_stay_weak(tmp_path: Path) -> None:
    for process in run(tmp_path, [{"do": "inside"}]):
        (answer,) = process["answers"]
        assert answer == {
            "right": [True] * 6, "whole": True, "keys": [True] * 2, "dealt": [True] * 2, "weak": [True, False, True],
        }  # fmt: skip


def test_the_parts_that_processes_load_make_one_batch(tmp_path: Path) -> None:
    job = run(tmp_path, [layout.step() for layout in LAYOUTS])
    for at, layout in enumerate(LAYOUTS):
        answers = [process["answers"][at] for process in job]
        assert [answer.get("error") for answer in answers] == [None] * PROCESSES, layout.name
        assert [tuple(answer["shard"]) for answer in answers] == [(i, layout.count) for i in layout.shards], layout.name
        for answer in answers:
            assert answer["global"] == [ROWS, 3], layout.name
            assert answer["rows"] == list(layout.rows), layout.name
            assert answer["right"] == (list(layout.rows) == list(range(ROWS))), layout.name
            assert all([*answer["parts"], *answer["whole"]]), layout.name
            if layout.count == 1:
                assert answer["refused"] in (True, None), "every process passes the global batch"
            else:
                assert any(words in answer["refused"] for words in ("passes other values", "does not divide")), answer
                assert "process_local=True" in answer["refused"]
        check_against_jax(answers, layout.name)


def check_against_jax(answers: list[dict[str, Any]], name: str) -> None:
    """JAX forms the same groups; it numbers them in an order of its own."""
    assert [answer["jax"][1] for answer in answers] == [answer["shard"][1] for answer in answers], name
    pairs = {(answer["jax"][0], answer["shard"][0]) for answer in answers}
    assert len(pairs) == answers[0]["shard"][1], name


def test_the_trainers_example_for_several_processes_prints_what_the_page_says(tmp_path: Path) -> None:
    blocks = Document.read("docs/tutorials/trainer.md").blocks()
    (at,) = [at for at, block in enumerate(blocks) if block.options.get("file") == "rows.py"]
    example = tmp_path / "rows.py"
    example.write_text(blocks[at].text)
    program, steps = PROGRAM.with_name("example_job.py"), [{"path": str(example)}]
    job = run_program(program, tmp_path, steps, processes=PROCESSES, devices_each=EACH)
    assert blocks[at + 1].language == "text"
    assert [answer["printed"] for answer in job] == [blocks[at + 1].text] * PROCESSES


def test_uneven_layouts_and_processes_without_a_device_are_refused(tmp_path: Path) -> None:
    def lay(shape: list[int], order: list[int]) -> dict[str, Any]:
        names = ["data", "tp"][: len(shape)]
        return {"do": "feed", "shape": shape, "names": names, "axes": ["data"], "rows": 24, "order": order}

    steps = [
        lay([6], [0, 1, 2, 3, 4, 5]),
        lay([4, 2], [0, 1, 2, 4, 3, 5, 6, 7]),
        lay([4], [4, 5, 6, 7]),
        {"do": "device_mesh", "block": {"tensor": 2}, "world_size": 4},
        {"do": "device_mesh", "block": {"data": "ddp"}, "world_size": 6},
        {"do": "device_mesh", "block": {"tensor": 3}},
        {"do": "coords", "conf": nest(tensor=2)},
        {"do": "coords", "conf": nest(tensor=2), "rank": 5, "world_size": 8},
    ]
    first, second = (process["answers"] for process in run(tmp_path, steps))
    uneven = {
        0: "the 6 data coordinates is uneven: process 0 covers 0-3; process 1 covers 4-5;",
        1: "the 4 data coordinates is uneven: process 0 covers 0-2; process 1 covers 1-3;",
        4: "the 6 data coordinates is uneven",
    }
    for at, words in uneven.items():
        assert first[at] == second[at]
        assert (first[at]["type"], words in first[at]["error"]) == ("ValueError", True), first[at]
    assert first[2]["error"].startswith("process 0 has none of the 4 devices of the mesh, which belong to process 1;")
    assert second[2]["shard"] == [0, 1]
    assert second[2]["right"]
    assert first[3]["mesh"] == {"shape": {"dp": 2, "tp": 2}, "ranks": [0, 1, 2, 3]}
    assert second[3]["error"].startswith("process 1 has none of the 4 devices of the mesh, which belong to process 0;")
    for answers in (first, second):
        assert "world_size 8 is not divisible by tensor 3" in answers[5]["error"]
        assert answers[6]["type"] == "RuntimeError"
        assert "process 0 has 4 devices" in answers[6]["error"]
        assert "process_batch_shard(mesh" in answers[6]["error"]
        assert answers[7] == {"coords": [2, 4]}


# ---- meshes over processes ----


def is_split(ranks: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """How many different processes stand along each axis, at the least: 1 for an axis inside processes."""
    owners = np.array(ranks).reshape(shape) // EACH
    counts = []
    for axis in range(owners.ndim):
        lines = np.moveaxis(owners, axis, -1).reshape(-1, owners.shape[axis])
        counts.append(min(len(set(line)) for line in lines.tolist()))
    return tuple(counts)


def test_processes_are_the_granules_of_a_mesh_over_them(tmp_path: Path) -> None:
    whole = {"do": "create", "names": ["a", "b"]}
    steps = [
        {**whole, "sizes": [4, 2]},
        {**whole, "sizes": [2, -1]},
        {**whole, "sizes": [4, 2], "dcn_mesh_dims": [1, 2]},
        {**whole, "sizes": [4, 2], "use_jax": True},
        {**whole, "sizes": [4, 2], "dcn_mesh_dims": [2, 2]},
        {**whole, "sizes": [3, 2], "subset": [0, 1, 2, 3, 4, 5]},
        {"do": "manage", "shape": {"data": -1, "model": 2}},
        {"do": "part_of_host", "sizes": [4, 2]},
        {"do": "part_of_host", "sizes": [4, 4]},
        {"do": "on_cpu"},
    ]
    job = run(tmp_path, steps)
    for at in range(9):
        assert len({str(process["answers"][at]) for process in job}) == 1, "all processes make the same mesh"
    first = job[0]["answers"]
    for at in (0, 1, 2, 3, 5):
        assert all(first[at].get("right", [False])), first[at]
    assert first[0] == {**first[3], "ranks": list(range(8))}
    assert is_split(first[0]["ranks"], (4, 2)) == (2, 1)
    assert first[1]["shape"] == {"a": 2, "b": 4}
    assert is_split(first[1]["ranks"], (2, 4)) == (2, 1)
    assert is_split(first[2]["ranks"], (4, 2)) == (1, 2)
    assert "there are 2 granules" in first[4]["error"]
    assert len(first[5]["warnings"]) == 1
    assert "cross them unevenly" in first[5]["warnings"][0]
    assert first[6] == {"shape": {"data": 4, "model": 2}, "ranks": list(range(8))}
    assert first[7] == {"part": [2, 2]}
    assert "2 processes with 4 devices each have 8" in first[8]["error"]
    for rank, process in enumerate(job):
        own = list(range(rank * EACH, (rank + 1) * EACH))
        assert process["answers"][9]["ranks"] == own
        assert (process["answers"][9]["first"], process["answers"][9]["total"]) == (own[0], 28.0)


def test_inner_axes_stay_inside_processes_whoever_makes_the_mesh(tmp_path: Path) -> None:
    """`create_mesh`, `DeviceMeshManager`, plans with `build_mesh`, and `calculate_host_mesh_shape` split alike."""
    shapes = [((2, 2, 2), (2, 1, 1)), ((1, 2, 4), (1, 2, 1)), ((4, 2), (2, 1)), ((2, 4), (2, 1))]
    steps: list[dict[str, Any]] = []
    for sizes, _ in shapes:
        shape = dict(zip(["dp", "fsdp", "tp"][-len(sizes) :], sizes, strict=True))
        with FakeAgent().client() as client:
            plan = client.plan(shape, target=f"{PROCESSES}*cpu:{EACH}")
        steps += [
            {"do": "create", "names": list(shape), "sizes": sizes},
            {"do": "manage", "shape": shape},
            {"do": "build", "plan": plan.model_dump_json()},
            {"do": "part_of_host", "sizes": sizes},
        ]
    for process in run(tmp_path, steps):
        for at, (sizes, split) in enumerate(shapes):
            created, managed, built, part = process["answers"][4 * at : 4 * at + 4]
            assert is_split(created["ranks"], sizes) == split
            assert created["ranks"] == managed["ranks"] == built["ranks"]
            assert part == {"part": [size // parts for size, parts in zip(sizes, split, strict=True)]}


# ---- meshes of parallelism blocks ----


def test_every_process_makes_the_mesh_of_a_block_and_its_own_lines(tmp_path: Path) -> None:
    degrees = [(1, 1), (2, 1), (1, 4), (2, 2), (8, 1), (4, 2)]
    steps = [{"do": "device_mesh", "block": {"data": "fsdp2", "tensor": t, "domain": d}} for t, d in degrees]
    job = run(tmp_path, steps)
    for at, (tensor, domain) in enumerate(degrees):
        sizes = {"dp": 8 // (tensor * domain), "tp": tensor, "domain": domain}
        shape = {name: size for name, size in sizes.items() if size > 1 or name == "dp"}
        ranks = np.arange(8).reshape(tuple(shape.values()))
        for process, answers in enumerate(job):
            answer = answers["answers"][at]
            assert answer["mesh"] == {"shape": shape, "ranks": list(range(8))}
            assert answer["types"] == ["Auto"]
            place = np.argwhere(ranks == process * EACH)[0]
            for axis, name in enumerate(shape):
                through = [*place[:axis], slice(None), *place[axis + 1 :]]
                line = {"shape": {name: shape[name]}, "ranks": ranks[tuple(through)].tolist()}
                assert answer["lines"][name] == line, (shape, process)
            replicas_here = max(1, EACH // (tensor * domain))
            count = shape["dp"] // replicas_here
            assert answer["shard"] == [process * count // PROCESSES, count]


# ---- the agent's plans ----


def test_processes_load_their_rows_onto_the_mesh_that_the_agent_planned(agent: RunningAgent, tmp_path: Path) -> None:
    turned = {"devices": [4, 5, 6, 7, 3, 2, 1, 0], "device_order": "given"}
    with Client(agent.url) as client:
        plans = [client.plan("dp:4,tp:2"), client.plan("dp:2,tp:4"), client.plan("dp:4,tp:2", **turned)]
        planned = [[device.local_index for device in plan.devices] for plan in plans]
        known = {device.jax_id for device in client.devices().devices}
    steps = [{"do": "planned", "plan": plan.model_dump_json(), "rows": ROWS} for plan in plans]
    job = run(tmp_path, steps)
    assert known == set(range(8)) != {identity for _, identity in job[0]["seen"]}
    for at, plan in enumerate(plans):
        answers = [process["answers"][at] for process in job]
        for answer in answers:
            assert answer["fingerprint"] == plan.fingerprint
            assert answer["order"] == planned[at]
            assert answer["ids"] == [job[0]["seen"][rank][1] for rank in planned[at]]
            assert answer["right"]
        indices = [answer["shard"][0] for answer in answers]
        count = min(PROCESSES, plan.axes[0].size)
        assert {answer["shard"][1] for answer in answers} == {count}
        assert set(indices) == set(range(count))
    assert job[0]["answers"][2]["shard"][0] > job[-1]["answers"][2]["shard"][0]
