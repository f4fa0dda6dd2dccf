"""The largest batch that fits on a mesh, found with few compiles.

A batch is counted in sequences of one data-parallel part. The answer was compiled, and so was the next larger batch,
which did not fit, unless it is beyond the bound. The next try follows a line, because memory grows almost linearly with
the batch; a guess that stalls is halved instead, so the number of tries grows with the logarithm of the bound at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from meshwright.compiling.report import Site, describe_target, open_site, verify_step
from meshwright.compiling.worker import Tell
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileJob, build_unfitted, count_parts
from meshwright.wire.batch_size import CompiledBatch, TriedBatch
from meshwright.wire.verification import Verification


@dataclass(frozen=True)
class Attempt:
    """One attempt.

    Attributes:
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
        size = middle if slow >= STALLED else min(max(guess_size(low, tries, capacity_bytes), low.size + 1), high - 1)
        tries.append(attempt(size))
        after, above = find_bounds(tries, greatest)
        slow = 0 if 2 * (above - after.size) <= high - low.size else slow + 1
    return tuple(tries)


def find_bounds(tries: Sequence[Attempt], greatest: int) -> tuple[Attempt, int]:
    """Returns the largest attempt that fits, and the least size that does not fit or is above the limit."""
    low = max((each for each in tries if each.fits), key=lambda each: each.size)
    return low, min((each.size for each in tries if not each.fits), default=greatest + 1)


def guess_size(low: Attempt, tries: Sequence[Attempt], capacity_bytes: int | None) -> int:
    """Returns the largest fitting size by a line through `low`, the largest that fits, and the nearest attempt."""
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
        return _search(job, open_site(job), tell)
    except NotCompiledError as error:
        found = Verification(status="not_compiled", reason=str(error), **describe_target(job.target))
        return build_unfitted(found)


def _search(job: CompileJob, site: Site, tell: Tell) -> CompiledBatch:
    """Returns the answer; raises NotCompiledError where the least batch cannot be compiled."""
    parts, unit = count_parts(job.mesh.shape), job.training.gradient_accumulation_steps
    tried: list[TriedBatch] = []
    found: dict[int, Verification] = {}

    def attempt(size: int) -> Attempt:
        batch, count = size * unit, len(tried)
        tell(f"compiling with {batch} sequences a part", count, max(EXPECTED_COUNT, count + 1))
        training = job.training.model_copy(update={"global_batch_size": batch * parts})
        report = verify_step(site, job, training, lambda *_: None)
        if report.status == "not_compiled" and not tried:
            raise NotCompiledError(report.reason or "the compiler refused the step")
        found[batch] = report
        done = TriedBatch(
            per_replica_batch_size=batch,
            fits=report.status == "verified",
            needed_bytes=report.needed_bytes or report.peak_memory_bytes,
        )
        tried.append(done)
        fixed = report.memory.argument_bytes if report.memory else None
        return Attempt(size, done.fits, report.peak_memory_bytes or report.needed_bytes, fixed)

    greatest = job.training.global_batch_size // (parts * unit)
    search_largest(attempt, greatest, site.peak_limit_bytes)
    batch = max((each.per_replica_batch_size for each in tried if each.fits), default=0)
    best = found.get(batch) or found[min(found)]
    over = min((each for each in found if each > batch), default=None)  # refused for its memory, or for another reason
    limit: Literal["memory"] | None = None if over and found[over].status == "not_compiled" else "memory"
    return CompiledBatch(
        per_replica_batch_size=batch,
        global_batch_size=batch * parts,
        limit="asked" if batch and batch == greatest * unit else limit,
        tried=tuple(tried),
        verification=best.model_copy(update=describe_target(job.target)),
    )
