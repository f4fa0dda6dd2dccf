"""What lives from step to step, in bytes of a parameter, as the dtypes of a training say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.planning.cost.memory import Moments, build_state, read_moments
from meshwright.wire.model import TrainingSpec


@pytest.mark.parametrize(
    ("training", "bytes_a_parameter"),
    [
        # scaling-book, applied-training.md: bfloat16 weights, float32 moments
        ({"weight_dtype": "bfloat16", "first_moment_dtype": "float32", "second_moment_dtype": "float32"}, (2, 2, 8)),
        ({}, (4, 4, 8)),
        ({"weight_dtype": "bfloat16"}, (2, 2, 4)),
        ({"first_moment_dtype": "bfloat16"}, (4, 4, 6)),
        ({"optimizer": "sgd"}, (4, 4, 0)),
    ],
)
def test_bytes_of_weights_gradients_and_moments_follow_from_the_dtypes(
    training: dict[str, Any], bytes_a_parameter: tuple[int, int, int]
) -> None:
    state = build_state(TrainingSpec(global_batch_size=1, **training))
    assert (state.weight_bytes, state.gradient_bytes, state.optimizer_bytes) == bytes_a_parameter


def test_each_candidate_has_the_moments_that_it_chose() -> None:
    training = TrainingSpec(global_batch_size=1)
    moments: tuple[Moments, ...] = (read_moments(training), ("bfloat16", "bfloat16"))
    state = build_state(training, moments, np.asarray([1, 0, 1]))
    assert list(np.asarray(state.optimizer_bytes)) == [4, 8, 4]
