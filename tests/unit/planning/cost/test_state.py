"""What lives from step to step, in bytes of a parameter, as the dtypes of a training say it."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planning.cost.memory import count_optimizer_bytes
from meshwright.wire.model import TrainingSpec


@pytest.mark.parametrize(
    ("training", "bytes_a_parameter"),
    [
        # scaling-book, applied-training.md: bfloat16 weights, float32 moments
        ({"weight_dtype": "bfloat16", "first_moment_dtype": "float32", "second_moment_dtype": "float32"}, 8),
        ({}, 8),
        ({"weight_dtype": "bfloat16"}, 4),
        ({"first_moment_dtype": "bfloat16"}, 6),
        ({"optimizer": "sgd"}, 0),
    ],
)
def test_bytes_of_moments_follow_from_the_dtypes(training: dict[str, Any], bytes_a_parameter: int) -> None:
    assert count_optimizer_bytes(TrainingSpec(global_batch_size=1, **training)) == bytes_a_parameter
