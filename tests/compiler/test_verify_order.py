"""`make verify-order` on a few cheap slices with the real compiler, and its parts on what was recorded or made up."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.cases import Case
from tests.compiler.children import Answer, Job, run_jobs
from tests.compiler.collective import Collective, parse_collective
from tests.compiler.compare import compare_orders, list_complaints
from tests.compiler.hops import measure_hops
from tests.process.slice_environment import needs_tpu_compiler

pytestmark = pytest.mark.exhaustive

RECORDED = Path(__file__).parents[1] / "compiler" / "recorded"

CUBE = Case("v5p:4x4x4", (4, 16))

DYING_CHILD = """
import os, time
from tests.compiler.children import Answer, serve_jobs

def answer(job):
    print("a line of libtpu's")
    if job.axis == 2:
        os.abort()
    if job.axis == 3:
        raise ValueError("axis 3\\nand more")
    if job.axis == 4:
        os._exit(7)
    if job.axis == 5:
        time.sleep(60)
    return Answer(job.order, len(job.case.sizes), job.axis)

serve_jobs(answer)
"""


CHEAP = {
    Case("v5p:2x2x4", (4, 4)): [("UniDirection1DRingStrategy", 2), ("UniDirectionNDRingStrategy", 4)],
    Case("tpu7x:2x2x1", (8,)): [("SparseCoreND", 4)],
}


@needs_tpu_compiler
def test_the_compiler_gives_our_order_as_many_colors_as_jax_s() -> None:
    rows = compare_orders(CHEAP)
    assert [(row.case, row.axis) for row in rows] == [(case, axis) for case in CHEAP for axis in case.axes]
    assert not list_complaints(rows)
    assert all(row.jax.failure is None for row in rows)
    chosen = [(row.ours.strategy, row.ours.colors) for row in rows]
    assert chosen == [expected for case in CHEAP.values() for expected in case]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("v5p-plane", Collective("UniDirectionNDRingStrategy", colors=4, phases=2)),
        ("v5p-odd", Collective("RingSumEmitter")),
        ("tpu7x-plane", Collective("SparseCoreND", colors=4, phases=2)),
    ],
)
def test_the_text_of_a_compiled_program_is_read(name: str, collective: Collective) -> None:
    assert parse_collective((RECORDED / f"{name}.txt").read_text()) == collective


def test_a_program_that_reduces_nothing_or_twice_or_in_an_unknown_way_is_refused() -> None:
    text = (RECORDED / "v5p-plane.txt").read_text()
    with pytest.raises(ValueError, match="has 2 all-reduces"):
        parse_collective(text + text)
    with pytest.raises(ValueError, match="has 0 all-reduces"):
        parse_collective(text.replace(" all-reduce(", " all-gather("))
    with pytest.raises(ValueError, match=r"without an algorithm; its configuration has .*novel_config"):
        parse_collective(text.replace("collective_algorithm_config", "novel_config"))


def test_a_child_that_aborts_is_told_and_the_other_jobs_are_answered() -> None:
    jobs = [Job(CUBE, axis, "ours") for axis in (0, 1, 2, 3, 4)] + [Job(CUBE, 0, "jax")]
    answers = run_jobs(jobs, [sys.executable, "-c", DYING_CHILD])
    assert answers == [
        Answer("ours", 2, 0),
        Answer("ours", 2, 1),
        Answer(failure="process abort (SIGABRT)"),
        Answer(failure="ValueError: axis 3"),
        Answer(failure="process ended with 7"),
        Answer("jax", 2, 0),
    ]


BEGIN, END = "<!-- verify-order -->", "<!-- /verify-order -->"


def test_hops_are_counted_round_a_ring_and_not_between_cores() -> None:
    row = np.array([[x, 0, 0] for x in range(16)])
    assert measure_hops(row, 0, "TPU v5 lite") == 1
    assert measure_hops(row[np.array([0, 15, *range(1, 15)])], 0, "TPU v5 lite") == 2
    short = np.array([[x, y, 0] for x in range(8) for y in range(8)])
    assert measure_hops(short.reshape(8, 8, 3), 0, "TPU v5 lite") == 1
    assert measure_hops(short, 0, "TPU v5 lite") == 8, "one step along x, and seven back along y, which is no ring of 8"
    assert measure_hops(np.repeat(short[:8], 2, axis=0).reshape(8, 2, 3), 1, "TPU7x") == 0
