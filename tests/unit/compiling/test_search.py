"""The search for the largest size: right for any memory that grows, and few tries for memory that grows as a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling import fit
from meshwright.compiling.fit import Attempt, search_largest
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.verification import Verification
from tests.unit.compiling.step_jobs import V5E, build_job

Memory = Callable[[int], int]
GREATEST = 400


TELLS = ("all", "fitting", "none")
"""For which sizes a compiler tells bytes."""


@dataclass
class Machine:
    """A device with so much memory; counts what is tried on it."""

    memory: Memory
    capacity_bytes: int
    tells: str = "all"
    fixed_bytes: int | None = None
    sizes: list[int] = field(default_factory=list)

    def attempt(self, size: int) -> Attempt:
        """Tries a size; what it needs is told always, only where it fits, or never."""
        self.sizes.append(size)
        fits = self.memory(size) <= self.capacity_bytes
        tells = self.tells == "all" or (self.tells == "fitting" and fits)
        return Attempt(size, fits, self.memory(size) if tells else None, self.fixed_bytes)


def search(machine: Machine, greatest: int, capacity_bytes: int | None) -> int:
    """Returns the largest size that fits, 0 for none."""
    tries = search_largest(machine.attempt, greatest, capacity_bytes)
    assert [each.size for each in tries] == machine.sizes
    return max((each.size for each in tries if each.fits), default=0)


@st.composite
def rising(draw: st.DrawFn) -> tuple[Memory, int]:
    """Memory that never falls as sizes rise: a line, stairs, a line that flattens, one that leaps, a square."""
    fixed, each = draw(st.integers(0, 10_000)), draw(st.integers(0, 200))
    step, leap, at = draw(st.integers(1, 40)), draw(st.integers(0, 20_000)), draw(st.integers(1, GREATEST))
    shapes: Sequence[Memory] = (
        lambda size: fixed + each * size, lambda size: fixed + each * step * math.ceil(size / step),
        lambda size: fixed + each * min(size, at), lambda size: fixed + each * size + leap * (size >= at),
        lambda size: fixed + each * size * size,
    )  # fmt: skip
    return draw(st.sampled_from(shapes)), fixed


@given(rising(), st.integers(0, 60_000), st.integers(1, GREATEST), st.sampled_from(TELLS), st.data())
def test_the_largest_that_fits_is_found(memory: Any, capacity_bytes: int, greatest: int, tells: str, data: Any) -> None:
    known = data.draw(st.sampled_from([capacity_bytes, None]))
    machine = Machine(memory[0], capacity_bytes, tells=tells, fixed_bytes=data.draw(st.sampled_from([memory[1], None])))
    expected = max((size for size in range(1, greatest + 1) if memory[0](size) <= capacity_bytes), default=0)

    assert search(machine, greatest, known) == expected
    assert len(set(machine.sizes)) == len(machine.sizes), "no size is tried twice"
    assert all(1 <= size <= greatest for size in machine.sizes)
    assert expected in (0, greatest) or expected + 1 in machine.sizes, "the next one was tried, and does not fit"


@given(rising(), st.integers(0, 60_000), st.sampled_from(TELLS))
def test_tries_grow_with_the_logarithm_of_a_bound(memory: tuple[Memory, int], capacity_bytes: int, tells: str) -> None:
    """Each four tries halve the range at least: three guesses that did not, and the middle."""
    machine = Machine(memory[0], capacity_bytes, tells=tells)
    search(machine, GREATEST, capacity_bytes)
    assert len(machine.sizes) <= 2 + 4 * math.log2(GREATEST)


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(0, 10**10), st.integers(1, 2**20))
def test_a_line_takes_five_tries_at_most(fixed: int, each: int, capacity_bytes: int, greatest: int) -> None:
    machine = Machine(lambda size: fixed + each * size, capacity_bytes, fixed_bytes=fixed)
    expected = min(greatest, max(0, (capacity_bytes - fixed) // each))
    assert search(machine, greatest, capacity_bytes) == expected
    assert len(machine.sizes) <= 5


def test_where_nothing_bounds_memory_sizes_double_and_then_halve_what_is_left() -> None:
    machine = Machine(lambda size: size, 10**9)
    assert search(machine, 100, None) == 100
    assert machine.sizes[:4] == [1, 2, 4, 8]
    assert len(machine.sizes) <= 10


def test_a_batch_that_the_compiler_refuses_ends_the_search_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(_: Any, __: Any, training: TrainingSpec, *___: Any) -> Verification:
        return Verification(status="not_compiled" if training.global_batch_size > 12 else "verified")

    monkeypatch.setattr(fit, "verify_step", verify)
    model = ModelSpec(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    job = build_job(V5E, {"fsdp": 4}, model, TrainingSpec(global_batch_size=64, seq_len=64))
    found = fit._search(job, cast(Any, SimpleNamespace(peak_limit_bytes=None)), lambda *_: None)
    assert (found.global_batch_size, found.limit, found.verification.status) == (12, None, "verified")
