"""The largest batch, found by XLA's real compilers in a child process."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.process.slice_environment import needs_tpu_compiler
from tests.unit.compiling.step_jobs import V5E, build_job, fit, verify

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]  # its compiles give way to other tests

WIDE = ModelSpec(vocab_size=512, hidden_size=2048, intermediate_size=16384, num_hidden_layers=1, num_attention_heads=16)
SMALL = ModelSpec(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
PARTS = 4


@needs_tpu_compiler
def test_the_largest_batch_of_a_slice_fits_and_one_more_does_not() -> None:
    """Within a capacity that is given: what fills a chip takes minutes to compile."""
    capacity_bytes = 2 * 2**20
    training = TrainingSpec(global_batch_size=PARTS * 4096, seq_len=128)
    job = build_job(V5E, {"fsdp": PARTS}, SMALL, training, capacity_bytes=capacity_bytes)
    found = fit(job)

    assert found.limit == "memory"
    assert 1 < found.per_replica_batch_size < 64
    assert found.global_batch_size == PARTS * found.per_replica_batch_size
    assert len(found.tried) <= 7
    best: Any = found.verification
    assert (best.status, best.target, best.capacity_bytes) == ("verified", "v5e:2x2", capacity_bytes)
    assert best.peak_memory_bytes <= capacity_bytes

    more = training.model_copy(update={"global_batch_size": found.global_batch_size + PARTS})
    refused = verify(job.model_copy(update={"training": more}))
    assert refused.status == "does_not_fit"
    (above,) = (each for each in found.tried if each.per_replica_batch_size == found.per_replica_batch_size + 1)
    assert (above.fits, above.needed_bytes) == (False, refused.needed_bytes)


@needs_tpu_compiler
def test_where_not_one_sequence_fits_the_answer_says_what_one_needs() -> None:
    job = build_job(V5E, {"fsdp": PARTS}, WIDE, TrainingSpec(global_batch_size=PARTS * 8, seq_len=2**17, remat="none"))
    found = fit(job)
    assert (found.per_replica_batch_size, found.limit, len(found.tried)) == (0, "memory", 1)
    needed: Any = found.verification.needed_bytes
    assert found.verification.status == "does_not_fit"
    assert needed > found.verification.capacity_bytes
