"""The largest batch that fits on a mesh, by few compiles.

Rule: a batch is counted in sequences of one data-parallel part; each is compiled as `report` does, and nothing is
guessed that was not. Knows no target.
"""

from __future__ import annotations

import time
from typing import Final

from meshwright.compiling import NotCompiledError
from meshwright.compiling.identity import build_key, read_versions
from meshwright.compiling.report import Site, Tell, open_site, verify_step
from meshwright.compiling.search import Attempt, search_largest
from meshwright.planning.compile_request import build_unfitted, count_parts
from meshwright.wire.batch_size import CompiledBatch, TriedBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.verification import Verification

EXPECTED_COUNT: Final = 6
"""Compiles that the search is said to take while it runs; most take fewer."""


def fit_batch(job: CompileJob, tell: Tell) -> CompiledBatch:
    """Returns the largest batch of the job's model that fits; `training.global_batch` is the greatest looked at."""
    try:
        site = open_site(job.target, job.mesh, job.capacity_bytes)
        return _Search(job, site, tell).run()
    except NotCompiledError as error:
        return build_unfitted(
            count_parts(job.mesh.shape), _tell(job, Verification(status="not_compiled", reason=str(error)))
        )


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
        return self._job.training.gradient_accumulation

    def run(self) -> CompiledBatch:
        """Returns the answer.

        Raises:
            NotCompiledError: the step cannot be compiled with any batch.
        """
        greatest = self._job.training.global_batch // (self._parts * self._unit)
        if greatest < 1:
            least = self._parts * self._unit
            raise NotCompiledError(
                f"a global batch of {self._job.training.global_batch} is less than one sequence for each of "
                f"{self._parts} data-parallel parts and {self._unit} accumulated passes; {least} is the least"
            )
        search_largest(self._attempt, greatest, self._site.capacity_bytes)
        return _build_answer(self._job, self._parts, self._tried, self._found, greatest * self._unit)

    def _attempt(self, size: int) -> Attempt:
        batch = size * self._unit
        count = len(self._tried)
        self._tell(f"compiling with {batch} sequences a part", count, max(EXPECTED_COUNT, count + 1))
        training = self._job.training.model_copy(update={"global_batch": batch * self._parts})
        began_s = time.monotonic()
        found = verify_step(self._site, self._job, training, lambda *_: None)
        if found.status == "not_compiled":
            raise NotCompiledError(found.reason or "the compiler refused the step")
        self._found[batch] = found
        self._tried.append(_build_tried(batch, found, time.monotonic() - began_s))
        fixed = found.memory.argument_bytes if found.memory else None
        return Attempt(size, found.status == "verified", found.peak_memory_bytes or found.needed_bytes, fixed)


def _build_tried(batch: int, found: Verification, took_s: float) -> TriedBatch:
    return TriedBatch(
        batch_per_device=batch,
        fits=found.status == "verified",
        peak_memory_bytes=found.peak_memory_bytes,
        needed_bytes=found.needed_bytes,
        compile_s=took_s,
    )


def _build_answer(
    job: CompileJob, parts: int, tried: list[TriedBatch], found: dict[int, Verification], greatest: int
) -> CompiledBatch:
    batch = max((each.batch_per_device for each in tried if each.fits), default=0)
    best = found.get(batch) or found[min(found)]
    margin = None
    if batch and best.capacity_bytes is not None and best.peak_memory_bytes is not None:
        margin = best.capacity_bytes - best.peak_memory_bytes
    return CompiledBatch(
        batch_per_device=batch,
        global_batch=batch * parts,
        data_parallel_size=parts,
        compile_count=len(tried),
        margin_bytes=margin,
        limit="asked" if batch and batch == greatest else "memory",
        tried=tuple(tried),
        verification=_tell(job, best),
    )


def _tell(job: CompileJob, found: Verification) -> Verification:
    """Returns the report with what was asked."""
    told = {"target": job.target.name, "versions": read_versions(job.target.platform), "key": build_key(job)}
    return found.model_copy(update=told)
