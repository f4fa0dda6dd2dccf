"""`make step-table` and `make verify-steps` on made-up answers: the published rows, the tables, what is kept."""

from __future__ import annotations

import math

import pytest

from meshwright.planning.parallelism import check_divides
from meshwright.spec import MeshSpec
from meshwright.wire.model import TrainingSpec
from tests.compiler.steps.cases import TINY, Case
from tests.compiler.steps.published import Published, derive_step_s, read_published

PUBLISHED = {each.row: each for each in read_published()}
ROWS = [each for each in PUBLISHED.values() if each.case is not None]
CASE = Case("cpu:4", "fsdp:2,tp:2", TINY, TrainingSpec(global_batch_size=16, seq_len=1024))


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


def test_the_count_of_flops_agrees_with_rows_that_give_seconds_and_flops() -> None:
    both = [each for each in ROWS if each.fields["step_s"] and each.fields["tflops_per_chip"]]
    assert len(both) == 10
    for each in both:
        assert each.case is not None
        derived_s, basis = derive_step_s({**each.fields, "step_s": ""}, each.case)
        assert derived_s == pytest.approx(each.measured_s, rel=1e-3)
        assert (each.derived, basis) == ("", "FLOP/s")


def test_seconds_are_derived_from_tokens_where_nothing_else_was_told() -> None:
    assert PUBLISHED[37].derived == "tokens/s"
    assert PUBLISHED[37].measured_s == pytest.approx(4 * 4096 / 692)


@pytest.mark.parametrize("remat", ["none", "minimal", "full"])
def test_the_other_step_keeps_no_gathered_weights_for_backward(remat: str) -> None:
    import jax
    import numpy as np

    from tests.compiler.steps.other import build_step

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("fsdp",))
    training = TrainingSpec.model_validate({**CASE.training.model_dump(), "remat": remat})
    step = build_step(CASE.model, training, mesh)
    text = str(jax.make_jaxpr(step.function)(*step.arguments))
    layers, width, size = TINY.num_hidden_layers, TINY.hidden_size, TINY.intermediate_size
    assert f"bf16[{width},{size}]" in text, "a layer's matrix is gathered"
    assert f"bf16[{layers},{width},{size}]" not in text, "those of all layers are not"
