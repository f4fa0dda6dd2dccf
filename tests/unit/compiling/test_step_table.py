"""`make step-table`: every published row can be asked, or says why not."""

from __future__ import annotations

import math

import pytest

from meshwright.planning.parallelism import check_divides
from meshwright.spec import MeshSpec
from tests.compiler.steps.published import Published, read_published

PUBLISHED = {each.row: each for each in read_published()}
ROWS = [each for each in PUBLISHED.values() if each.case is not None]


def test_every_published_row_is_a_case_or_says_why_not() -> None:
    assert sorted(PUBLISHED) == list(range(51))
    assert len(ROWS) == 31
    assert all((each.case is None) == bool(each.left_out) for each in PUBLISHED.values())
    assert all(each.source.startswith("https://") for each in PUBLISHED.values())


@pytest.mark.parametrize("published", ROWS, ids=lambda each: each.name)
def test_a_published_row_can_be_asked(published: Published) -> None:
    case = published.case
    assert case is not None
    mesh = MeshSpec.parse(case.mesh)
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    check_divides(case.model, case.training, sizes)
    assert 0.1 < published.measured_s < 200
    assert int(published.fields["chips"]) * (2 if "tpu7x" in case.target else 1) == math.prod(mesh.sizes)
