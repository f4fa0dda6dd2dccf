"""MaxText's published runs on TPUs, as runs: the rows that the compiler's table has.

Rule: nothing is said twice: mesh, remat and seconds are those of `tests.compiler.steps.published`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.accuracy.cases import build_case_run
from tests.accuracy.run import LeftOut, Run
from tests.accuracy.sets import MAXTEXT
from tests.compiler.steps.cases import Case
from tests.compiler.steps.published import Published, read_published


def read_maxtext() -> Iterator[Run | LeftOut]:
    """Yields the rows in the order of their file."""
    for published in read_published():
        if published.case is None:
            yield LeftOut(MAXTEXT.name, published.name, published.left_out, published.source)
        else:
            yield _build_run(published, published.case)


def _build_run(published: Published, case: Case) -> Run:
    return build_case_run(
        MAXTEXT,
        case,
        published.name,
        f"{MAXTEXT.name}/{case.target.rpartition('*')[2].partition(':')[0]}/{published.fields['model']}",
        published_recompute=published.published_remat,
        step_s=published.measured_s,
        step_basis=published.derived or "published",
        note=published.note,
        source=published.source,
    )
