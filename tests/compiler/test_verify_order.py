"""`make verify-order` on a few cheap slices with the real compiler, and its parts on what was recorded or made up."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.__main__ import report
from tests.compiler.cases import CASES, Case
from tests.compiler.children import Answer, Job, run_jobs
from tests.compiler.collective import Collective, parse_collective
from tests.compiler.compare import Row, build_table, compare_orders, list_complaints, summarize
from tests.compiler.hops import measure_hops
from tests.compiler.page import put_section
from tests.process.slice_environment import needs_tpu_compiler

pytestmark = pytest.mark.exhaustive

RECORDED = Path(__file__).parents[1] / "compiler" / "recorded"

CUBE = Case("v5p:4x4x4", (4, 16))
ONE = Answer("StrategyRing", 1, 1, 2)
FOUR = Answer("UniDirectionNDRingStrategy", 4, 2, 1)
PLAIN = Answer("RingSumEmitter", None, None, 1)
NONE = Answer(failure="no order: TypeError")

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
def test_the_compiler_gives_our_order_as_many_colours_as_jax_s() -> None:
    rows = compare_orders(CHEAP)
    assert [(row.case, row.axis) for row in rows] == [(case, axis) for case in CHEAP for axis in case.axes]
    assert not list_complaints(rows)
    assert all(row.jax.failure is None for row in rows)
    chosen = [(row.ours.strategy, row.ours.colours) for row in rows]
    assert chosen == [expected for case in CHEAP.values() for expected in case]


@needs_tpu_compiler
def test_where_there_is_no_order_the_answer_says_so() -> None:
    wrong = Case("v5e:2x4", (3, 2))
    answers = run_jobs([Job(wrong, 0, "jax"), Job(wrong, 0, "ours")])
    assert answers == [Answer(failure="no order: ValueError")] * 2


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("v5p-plane", Collective("UniDirectionNDRingStrategy", colours=4, phases=2)),
        ("v5p-odd", Collective("RingSumEmitter")),
        ("tpu7x-plane", Collective("SparseCoreND", colours=4, phases=2)),
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


def test_a_child_that_hangs_is_told() -> None:
    [answer] = run_jobs([Job(CUBE, 5, "ours")], [sys.executable, "-c", DYING_CHILD], limit_s=1.0)
    assert answer == Answer(failure="no answer in 1 s")


def test_a_child_that_cannot_start_is_an_error_and_no_result() -> None:
    with pytest.raises(ChildProcessError, match=r"before any job: .*No module named tests\.nowhere"):
        run_jobs([Job(CUBE, 0, "ours")], [sys.executable, "-m", "tests.nowhere"])


@pytest.mark.parametrize(
    ("ours", "jax", "status"),
    [
        (ONE, FOUR, 1),
        (PLAIN, ONE, 1),
        (Answer(failure="process abort (SIGABRT)"), NONE, 1),
        (FOUR, FOUR, 0),
        (FOUR, ONE, 0),
        (PLAIN, PLAIN, 0),
        (ONE, NONE, 0),
    ],
)
def test_fewer_colours_with_ours_or_none_fail(
    ours: Answer, jax: Answer, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = Row(CUBE, 0, FOUR, FOUR)
    assert report([fine, Row(CUBE, 1, ours, jax)]) == status
    printed = capsys.readouterr()
    assert printed.out.startswith("| slice | mesh | axis |")
    assert ("worse: v5p:4x4x4 mesh (4, 16) axis 1" in printed.err) is bool(status)


def test_the_table_has_a_line_for_each_axis_and_their_sum() -> None:
    rows = [Row(CUBE, 0, FOUR, ONE), Row(CUBE, 1, ONE, NONE), Row(Case("v6e:2x4", (2, 4)), 1, PLAIN, PLAIN)]
    lines = build_table(rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == (
        "| v5p:4x4x4 | 4×16 | 0 (4) | UniDirectionNDRingStrategy | 4 | 2 | 1 | StrategyRing | 1 | 1 | 2 |"
    )
    assert lines[3].endswith("| no order: TypeError | – | – | – |")
    assert lines[4] == "| v6e:2x4 | 2×4 | 1 (4) | RingSumEmitter | – | – | 1 | RingSumEmitter | – | – | 1 |"
    assert summarize(rows) == (
        "3 axes of 2 meshes: 2 better with ours (1 of them have no result with JAX's order), 1 equal, 0 worse."
    )


BEGIN, END = "<!-- verify-order -->", "<!-- /verify-order -->"


def test_the_table_is_put_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page, table = tmp_path / "device-order.md", tmp_path / "axes.md"
    report([Row(CUBE, 0, FOUR, ONE)], (page, table))
    assert table.read_text() == build_table([Row(CUBE, 0, FOUR, ONE)])
    text = page.read_text()
    assert text.startswith(f"# The device order\n\n{BEGIN}\n1 axes of 1 meshes: 1 better with ours")
    page.write_text(f"# Mine\n\nBefore.\n\n{text.partition(chr(10) * 2)[2]}\nAfter.\n")
    report([Row(CUBE, 0, ONE, ONE)], (page, table))
    changed = page.read_text()
    assert changed.startswith(f"# Mine\n\nBefore.\n\n{BEGIN}\n")
    assert changed.endswith(f"{END}\n\nAfter.\n")
    assert "1 better" not in changed
    assert put_section(changed, "verify-order", "new\n") == f"# Mine\n\nBefore.\n\n{BEGIN}\nnew\n{END}\n\nAfter.\n"


@pytest.mark.parametrize("page", [BEGIN, END, f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}"])
def test_a_page_with_other_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="it needs one each"):
        put_section(page, "verify-order", "table\n")


def test_the_cases_are_meshes_of_whole_slices_of_every_generation() -> None:
    assert all(np.prod(case.sizes) == case.device_count for case in CASES)
    assert len(set(CASES)) == len(CASES)
    assert {case.generation for case in CASES} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}
    assert sum(len(case.axes) for case in CASES) >= 30


def test_hops_are_counted_round_a_ring_and_not_between_cores() -> None:
    row = np.array([[x, 0, 0] for x in range(16)])
    assert measure_hops(row, 0, "TPU v5 lite") == 1
    assert measure_hops(row[np.array([0, 15, *range(1, 15)])], 0, "TPU v5 lite") == 2
    short = np.array([[x, y, 0] for x in range(8) for y in range(8)])
    assert measure_hops(short.reshape(8, 8, 3), 0, "TPU v5 lite") == 1
    assert measure_hops(short, 0, "TPU v5 lite") == 8, "one step along x, and seven back along y, which is no ring of 8"
    assert measure_hops(np.repeat(short[:8], 2, axis=0).reshape(8, 2, 3), 1, "TPU7x") == 0
