"""Prefetch beside a plain loop, beside Flax, and beside the ideal; `python -m tests.bench.prefetch`.

All ways get the same batches from the same source and do the same computation, in rounds that take turns; a ratio is
the median over the rounds. The process that measures gives XLA one core for a computation, so that on a machine with
two the source has the other, as beside an accelerator. Flax is measured where it is installed.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench.rows import Call, Row, run_rows, tell_rows, time_call

ROWS, COLUMNS = 2048, 1024
BATCH_COUNT = 30
BUFFER_SIZE = 2
ROUND_COUNT = 7
READ_S = 0.015
SLEEPS_S = [(0.020, 0.030), (0.030, 0.020), (0.020, 0.020)]
SLEEP_COUNT = 50
SLEEP_ROUND_COUNT = 3


def bench_prefetch() -> list[Row]:
    """Returns the rows of all comparisons, measured in a process of their own."""
    environ = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    return run_rows("tests.bench.prefetch", environ)


def measure_rows() -> list[Row]:
    """Returns the rows, measured in this process."""
    return [describe_machine(), *compare_loops(), *compare_with_ideal()]


# ---- real batches ----


class Work:
    """The same batches and the same computation for every way.

    The source waits as for a file, then shuffles and scales rows as an augmentation does; the step multiplies the
    batch with weights again and again, as often as makes a step about as long as a batch's source.
    """

    def __init__(self) -> None:
        import jax
        import numpy as np

        self.jax, self.np = jax, np
        self.device = jax.devices()[0]
        random = np.random.default_rng(0)
        self.pool = random.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        self.weights = jax.device_put(np.eye(COLUMNS, dtype=np.float32), self.device)
        self.source_s = time_call(lambda: list(self.batches()), rounds=3) / BATCH_COUNT
        self.repeats = 1
        self.step = self.build_step(1)
        placed = jax.device_put(self.pool, self.device)
        once_s = time_call(lambda: float(self.step(placed)), rounds=5)
        self.repeats = max(1, round(self.source_s / once_s))
        self.step = self.build_step(self.repeats)
        self.step_s = time_call(lambda: float(self.step(placed)), rounds=5)

    def build_step(self, repeats: int) -> Callable[[Any], Any]:
        def step(batch: Any) -> Any:
            rows = batch.reshape(-1, COLUMNS)[: ROWS // 8]
            product = self.jax.lax.fori_loop(0, repeats, lambda _, x: x @ self.weights, rows)
            return product.sum() + batch.sum()

        compiled: Callable[[Any], Any] = self.jax.jit(step)
        return compiled

    def batches(self) -> Iterator[Any]:
        random = self.np.random.default_rng(1)
        for _ in range(BATCH_COUNT):
            time.sleep(READ_S)
            yield self.pool[random.permutation(ROWS)] * self.np.float32(random.uniform(0.5, 1.5))

    def run_plain(self) -> list[float]:
        return [float(self.step(self.jax.device_put(batch, self.device))) for batch in self.batches()]

    def run_plain_without_reading(self) -> list[float]:
        losses = [self.step(self.jax.device_put(batch, self.device)) for batch in self.batches()]
        return [float(loss) for loss in losses]

    def run_ours(self) -> list[float]:
        from meshwright.placement import prefetch_to_device

        batches = prefetch_to_device(self.batches(), self.device, BUFFER_SIZE)
        return [float(self.step(batch)) for batch in batches]

    def run_flax(self) -> list[float]:
        """As its users call it: batches with a leading axis of devices, and the devices of `pmap`, here one."""
        from flax import jax_utils  # type: ignore[import-not-found,unused-ignore]

        sharded = (batch.reshape(1, *batch.shape) for batch in self.batches())
        batches = jax_utils.prefetch_to_device(sharded, BUFFER_SIZE, devices=[self.device])
        return [float(self.step(batch)) for batch in batches]


def compare_loops() -> list[Row]:
    """Returns throughput of ours ÷ that of each other way, and what one batch takes in each."""
    work = Work()
    ways: dict[str, Call] = {"ours": work.run_ours, "a plain device_put loop": work.run_plain}
    ways["a plain loop that reads no loss before the end"] = work.run_plain_without_reading
    if importlib.util.find_spec("flax"):
        import flax  # type: ignore[import-not-found,unused-ignore]

        ways[f"flax {flax.__version__} jax_utils.prefetch_to_device"] = work.run_flax
    expected = work.run_plain()
    duration_s = time_in_turns(ways, expected)
    ours_s = duration_s.pop("ours")
    kind = (
        f"{BATCH_COUNT} batches of {work.pool.nbytes >> 20} MiB, buffer_size {BUFFER_SIZE}; alone: source "
        f"{work.source_s * 1e3:.1f} ms ({READ_S * 1e3:.0f} of it asleep), step {work.step_s * 1e3:.1f} ms "
        f"({work.repeats} matmuls); loss read each step; median of {ROUND_COUNT}"
    )
    ideal_s = max(work.source_s, work.step_s)
    own = statistics.median(ours_s) / BATCH_COUNT
    rows = [("prefetch_to_device, a batch", f"{own * 1e3:.1f} ms", f"{own / ideal_s:.2f}× the longer half; {kind}")]
    for name, other_s in duration_s.items():
        ratio = statistics.median(other / mine for other, mine in zip(other_s, ours_s, strict=True))
        each = statistics.median(other_s) / BATCH_COUNT
        rows.append((f"throughput ÷ {name}", f"{ratio:.2f}×", f"{each * 1e3:.1f} ms a batch there"))
    return rows


def time_in_turns(ways: dict[str, Call], expected: list[float]) -> dict[str, list[float]]:
    duration_s: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUND_COUNT + 1):
        for name, run in ways.items():
            began_s = time.perf_counter()
            losses = run()
            if number:
                duration_s[name].append(time.perf_counter() - began_s)
            assert losses == expected, f"{name}: other results"
    return duration_s


# ---- known durations ----


def compare_with_ideal() -> list[Row]:
    """Returns total ÷ (n · max(a, b)) for a source that takes a and a consumer that takes b, both asleep."""
    rows = []
    for source_s, consumer_s in SLEEPS_S:
        ratios = [run_asleep(source_s, consumer_s) for _ in range(SLEEP_ROUND_COUNT)]
        name = f"total ÷ ideal, {source_s * 1e3:.0f} ms source, {consumer_s * 1e3:.0f} ms consumer"
        note = f"target 1.10; in turn {(source_s + consumer_s) / max(source_s, consumer_s):.2f}; {SLEEP_COUNT} batches"
        rows.append((name, f"{statistics.median(ratios):.3f}×", note))
    return rows


def run_asleep(source_s: float, consumer_s: float) -> float:
    import numpy as np

    from meshwright.placement import prefetch_to_device

    def sleep() -> Iterator[Any]:
        for number in range(SLEEP_COUNT):
            time.sleep(source_s)
            yield np.float32(number)

    began_s = time.perf_counter()
    for _ in prefetch_to_device(sleep(), buffer_size=BUFFER_SIZE):
        time.sleep(consumer_s)
    return (time.perf_counter() - began_s) / (SLEEP_COUNT * max(source_s, consumer_s))


def describe_machine() -> Row:
    """Returns what it was measured on."""
    import jax

    count, load = os.cpu_count(), os.getloadavg()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    return ("prefetch: measured on", f"jax {jax.__version__}", f"{count} cores, load {load:.1f}, XLA_FLAGS={flags}")


if __name__ == "__main__":
    tell_rows(measure_rows, bench_prefetch)
