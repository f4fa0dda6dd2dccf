"""Prefetch: does sending the next batch hide behind computing on this one?

Rule: the same batches, sent by the same library and computed on alike, once in turn (send, wait, compute, wait) and
once through `prefetch_to_device`, whose thread sends the next batch while this one is computed. The computation is
made about as long as a transfer, where hiding matters most. The samples are of the second way; overlap_ratio is the
first ÷ the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshwright.placement import distribute_batch, prefetch_to_device
from meshwright_agent.bench.patterns import Array, choose_modulus, count_wrong
from meshwright_agent.bench.scope import Scope
from meshwright_agent.bench.stage import Stage
from meshwright_agent.bench.timing import WARMUP_COUNT, build_summary
from meshwright_agent.bench.transfers import (
    BATCH_AXIS,
    build_batch_mesh,
    build_host_array,
    describe_put,
    round_sizes,
)
from meshwright_agent.bench.trials import Outcome, Subject, Trial

BATCH_COUNT: Final = 4
BUFFER_COUNT: Final = 1
"""Batches on their way beside the one that is computed: two on the devices."""

PROBE_STEPS: Final = 16
MOST_STEPS: Final = 20_000

Step = Callable[[jax.Array, int], jax.Array]


def list_prefetch(scope: Scope, stage: Stage) -> Iterator[Trial]:
    """Yields one trial a size, on all devices; S is all batches together."""
    sharding = NamedSharding(build_batch_mesh(scope, stage), PartitionSpec(BATCH_AXIS))
    for size in round_sizes(scope.sizes_bytes, stage.item_bytes, parts=BATCH_COUNT * len(scope.devices)):
        yield Trial(
            case="prefetch",
            name="prefetch_meshwright_prefetch_to_device",
            description=f"{BATCH_COUNT} batches sent and computed on, the next on its way while this one is computed",
            device_indices=scope.devices,
            dtype=stage.dtype,
            size_bytes=size,
            prepare=partial(Prefetch, stage, size, sharding),
            at_size=partial(_build_prefetch, stage, sharding, BATCH_COUNT * len(scope.devices)),
        )


def _build_prefetch(stage: Stage, sharding: NamedSharding, parts: int, size_bytes: int) -> Prefetch:
    return Prefetch(stage, round_sizes((size_bytes,), stage.item_bytes, parts=parts)[0], sharding)


def build_batches(stage: Stage, size_bytes: int) -> tuple[Array, ...]:
    """Returns `BATCH_COUNT` arrays `[elements]`, all different."""
    return tuple(build_host_array(stage, size_bytes // BATCH_COUNT, seed=seed) for seed in range(BATCH_COUNT))


def build_step(sharding: NamedSharding, ceiling: int) -> Step:
    """Returns the computation: x → ceiling − x, as often as asked; x again after an even number of times."""

    def step(batch: jax.Array, count: int) -> jax.Array:
        result: jax.Array = jax.lax.fori_loop(0, count, lambda _, x: (ceiling - x).astype(x.dtype), batch)
        return result

    compiled: Step = jax.jit(step, out_shardings=sharding)
    return compiled


def choose_step_count(put_s: float, probe_s: float) -> int:
    """Returns the even number of steps that takes about as long as a transfer, from the time of `PROBE_STEPS`."""
    wanted = PROBE_STEPS * put_s / probe_s if probe_s > 0 else MOST_STEPS
    return 2 * round(min(max(wanted, 2.0), MOST_STEPS) / 2)


@dataclass
class Prefetch(Subject):
    """Batches on the host, and the compiled computation."""

    stage: Stage
    size_bytes: int
    sharding: NamedSharding
    results: list[jax.Array] = field(default_factory=list)
    in_turn_s: list[float] = field(default_factory=list)
    overlapped_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batches = build_batches(self.stage, self.size_bytes)
        self.step = build_step(self.sharding, choose_modulus(self.stage.dtype, 1))
        self.step_count = self._calibrate()

    def _calibrate(self) -> int:
        stage, batch = self.stage, self._send(0)
        jax.block_until_ready(self.step(batch, PROBE_STEPS))
        put_s = min(stage.time_s(lambda: self._send(0)) for _ in range(3))
        probe_s = min(stage.time_s(lambda: self.step(batch, PROBE_STEPS)) for _ in range(3))
        return choose_step_count(put_s, probe_s)

    def _send(self, index: int) -> jax.Array:
        sent: jax.Array = distribute_batch(self.batches[index], self.sharding)
        return sent

    def sample(self) -> float:
        """Runs both ways; returns the seconds of the overlapped one."""
        self.in_turn_s.append(self.stage.time_s(self._run_in_turn))
        self.overlapped_s.append(self.stage.time_s(self._run_overlapped))
        return self.overlapped_s[-1]

    def _run_in_turn(self) -> None:
        for index in range(BATCH_COUNT):
            batch = jax.block_until_ready(self._send(index))
            jax.block_until_ready(self.step(batch, self.step_count))

    def _run_overlapped(self) -> list[jax.Array]:
        self.results = []
        with prefetch_to_device(self.batches, self.sharding, BUFFER_COUNT) as batches:
            for batch in batches:
                self.results.append(jax.block_until_ready(self.step(batch, self.step_count)))
        return self.results

    def verify(self) -> Outcome:
        """Compares every batch's result with what was sent: the even number of steps gives it back."""
        wrong = sum(
            count_wrong(np.asarray(result), batch) for result, batch in zip(self.results, self.batches, strict=True)
        )
        in_turn = build_summary(self.in_turn_s[WARMUP_COUNT:])
        detail = {
            "batch_count": BATCH_COUNT,
            "compute_steps": self.step_count,
            "in_turn_samples_s": list(in_turn.samples_s),
            "in_turn_median_s": in_turn.median_s,
            **describe_put(self._send(0), self.batches[0]),
        }
        overlapped = build_summary(self.overlapped_s[WARMUP_COUNT:])
        return Outcome(wrong, detail, overlap_ratio=in_turn.median_s / overlapped.median_s)
