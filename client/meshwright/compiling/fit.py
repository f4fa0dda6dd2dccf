"""The largest batch that fits on a mesh, found with few compiles.

A batch is counted in sequences of one data-parallel part. The answer was compiled, and so was the next larger batch,
which did not fit, unless it is beyond the bound. The next try follows a line, because memory grows almost linearly with
the batch; a guess that stalls is halved instead, so the number of tries grows with the logarithm of the bound at worst.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from meshwright.compiling.report import Site, describe_job, open_site, verify_step
from meshwright.compiling.worker import Tell
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import build_unfitted, count_parts
from meshwright.wire.batch_size import CompiledBatch, TriedBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.verification import Verification


@dataclass(frozen=True)
class Attempt:
    """One attempt.

    Attributes:
        size: the attempted size.
        fits: whether it fits.
        bytes: its peak, or its need; None: not known.
        fixed_bytes: the part that does not depend on the size: the arguments.
    """

    size: int
    fits: bool
    bytes: int | None = None
    fixed_bytes: int | None = None


STALLED: Final = 3
"""After this number of guesses in a row that each move a bound by less than half, the middle is tried."""


def search_largest(attempt: Callable[[int], Attempt], greatest: int, capacity_bytes: int | None) -> tuple[Attempt, ...]:
    """Returns all attempts, in order. The last one that fits has the largest fitting size; there may be none.

    Args:
        attempt: compiles a size.
        greatest: the largest size to try, 1 or more.
        capacity_bytes: the limit of an attempt's bytes; None: not known until an attempt fails.
    """
    tries = [attempt(1)]
    slow = 0
    while tries[0].fits:
        low, high = find_bounds(tries, greatest)
        if high - low.size <= 1:
            break
        middle = (low.size + high) // 2
        size = middle if slow >= STALLED else min(max(guess_size(tries, capacity_bytes), low.size + 1), high - 1)
        tries.append(attempt(size))
        after, above = find_bounds(tries, greatest)
        slow = 0 if 2 * (above - after.size) <= high - low.size else slow + 1
    return tuple(tries)


def find_bounds(tries: Sequence[Attempt], greatest: int) -> tuple[Attempt, int]:
    """Returns the largest attempt that fits, and the least size that does not fit or is above the limit."""
    low = max((each for each in tries if each.fits), key=lambda each: each.size)
    return low, min((each.size for each in tries if not each.fits), default=greatest + 1)


def guess_size(tries: Sequence[Attempt], capacity_bytes: int | None) -> int:
    """Returns the largest fitting size by a line through the nearest attempts."""
    low = max((each for each in tries if each.fits), key=lambda each: each.size)
    slope = measure_slope(low, tries)
    if low.bytes is None or capacity_bytes is None or slope is None:
        return 2 * low.size
    return low.size + int((capacity_bytes - low.bytes) / slope)


def measure_slope(low: Attempt, tries: Sequence[Attempt]) -> float | None:
    """Returns bytes a unit of size: towards the nearest try that fails, else from the try below, else at most."""
    failed = [each for each in tries if not each.fits and each.bytes is not None]
    below = [each for each in tries if each.fits and each.size < low.size and each.bytes is not None]
    if failed:
        return _rise(low, min(failed, key=lambda each: each.size))
    if below:
        return _rise(max(below, key=lambda each: each.size), low)
    moving = (low.bytes or 0) - (low.fixed_bytes or 0)
    return moving / low.size if moving > 0 and low.fixed_bytes is not None else None


def _rise(a: Attempt, b: Attempt) -> float | None:
    rise = ((b.bytes or 0) - (a.bytes or 0)) / (b.size - a.size)
    return rise if rise > 0 else None


EXPECTED_COUNT: Final = 6
"""The number of compiles that the progress of a search assumes; most searches take fewer."""


def fit_batch(message: dict[str, Any], tell: Tell) -> CompiledBatch:
    """Returns the largest batch with which a CompileJob's step fits; its `training.global_batch_size` is the bound."""
    job = CompileJob.model_validate(message)
    try:
        site = open_site(job.target, job.mesh, job.capacity_bytes)
        return _Search(job, site, tell).run()
    except NotCompiledError as error:
        found = Verification(status="not_compiled", reason=str(error), **describe_job(job))
        return build_unfitted(count_parts(job.mesh.shape), found)


class _Search:
    """Compiles of one job with other batches."""

    def __init__(self, job: CompileJob, site: Site, tell: Tell) -> None:
        self._job = job
        self._site = site
        self._tell = tell
        self._parts = count_parts(job.mesh.shape)
        self._tried: list[TriedBatch] = []
        self._found: dict[int, Verification] = {}

    @property
    def _unit(self) -> int:
        """Sequences of a part that a batch is a multiple of."""
        return self._job.training.gradient_accumulation_steps

    def run(self) -> CompiledBatch:
        """Returns the answer.

        Raises:
            NotCompiledError: the step cannot be compiled with any batch.
        """
        greatest = self._job.training.global_batch_size // (self._parts * self._unit)
        if greatest < 1:
            least = self._parts * self._unit
            raise NotCompiledError(
                f"a global batch of {self._job.training.global_batch_size} is less than one sequence for each of "
                f"{self._parts} data-parallel parts and {self._unit} micro-batches; {least} is the least"
            )
        search_largest(self._attempt, greatest, self._site.capacity_bytes)
        return _build_answer(self._job, self._parts, self._tried, self._found, greatest * self._unit)

    def _attempt(self, size: int) -> Attempt:
        batch = size * self._unit
        count = len(self._tried)
        self._tell(f"compiling with {batch} sequences a part", count, max(EXPECTED_COUNT, count + 1))
        training = self._job.training.model_copy(update={"global_batch_size": batch * self._parts})
        began_s = time.monotonic()
        found = verify_step(self._site, self._job, training, lambda *_: None)
        if found.status == "not_compiled":
            raise NotCompiledError(found.reason or "the compiler refused the step")
        self._found[batch] = found
        self._tried.append(_build_tried(batch, found, time.monotonic() - began_s))
        fixed = found.memory.argument_bytes if found.memory else None
        return Attempt(size, found.status == "verified", found.peak_memory_bytes or found.needed_bytes, fixed)


def _build_tried(batch: int, found: Verification, duration_s: float) -> TriedBatch:
    return TriedBatch(
        per_replica_batch_size=batch,
        fits=found.status == "verified",
        peak_memory_bytes=found.peak_memory_bytes,
        needed_bytes=found.needed_bytes,
        compile_s=duration_s,
    )


def _build_answer(
    job: CompileJob, parts: int, tried: list[TriedBatch], found: dict[int, Verification], greatest: int
) -> CompiledBatch:
    batch = max((each.per_replica_batch_size for each in tried if each.fits), default=0)
    best = found.get(batch) or found[min(found)]
    margin = None
    if batch and best.capacity_bytes is not None and best.peak_memory_bytes is not None:
        margin = best.capacity_bytes - best.peak_memory_bytes
    return CompiledBatch(
        per_replica_batch_size=batch,
        global_batch_size=batch * parts,
        data_parallel_size=parts,
        compile_count=len(tried),
        margin_bytes=margin,
        limit="asked" if batch and batch == greatest else "memory",
        tried=tuple(tried),
        verification=best.model_copy(update=describe_job(job)),
    )
