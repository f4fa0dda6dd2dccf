"""run_suite(): runs a bench request and returns its result, in the device worker, which owns the devices.

Rule: every requested trial becomes a record or is listed in `skipped` with the reason. Each record is reported as soon
as it is measured. This module does not depend on HTTP or the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import jax
from jax.sharding import PartitionSpec

from meshwright.errors import RunFailedError
from meshwright.wire.base import Notice
from meshwright.wire.bench import BenchCase, BenchRecord, BenchRequest, BenchResult, Skipped
from meshwright.wire.devices import parse_platform
from meshwright_agent.bench.scope import COLLECTIVE_CASES, Scope, build_scope
from meshwright_agent.children.bench.collectives import KINDS, list_collective
from meshwright_agent.children.bench.compute import list_matmul, list_memory_bandwidth
from meshwright_agent.children.bench.measure import (
    OutOfTime,
    Stage,
    Timetable,
    Trial,
    build_record,
    follow_plan,
    measure_samples,
    read_devices,
)
from meshwright_agent.children.bench.transfers import BATCH_AXIS, Fetch, Move, Put, list_each, list_singles, list_spread
from meshwright_agent.clock import SystemClock

NAMED_TRIALS: Final = 4

Lister = Callable[[Scope, Stage], Iterator[Trial]]

LISTERS: Final[Mapping[BenchCase, Lister]] = {
    "host_to_device": partial(list_each, "host_to_device", Put, list_singles),
    "device_to_host": partial(list_each, "device_to_host", Fetch, list_singles),
    "device_to_device": partial(list_each, "device_to_device", Move, lambda scope: scope.pairs),
    "replicate": partial(list_spread, "replicate", PartitionSpec()),
    "shard_batch": partial(list_spread, "shard_batch", PartitionSpec(BATCH_AXIS)),
    **{case: partial(list_collective, case) for case in KINDS},
    "matmul": list_matmul,
    "memory_bandwidth": list_memory_bandwidth,
}


def run_suite(
    request: BenchRequest, *, progress: Callable[[dict[str, Any]], None], check: Callable[[], None]
) -> BenchResult:
    """Returns the records and the skipped trials.

    Args:
        progress: called with {"done", "total", "message"} before each trial and at the end, and with {"record": {…}}
            for each record.
        check: called before each call on a device; raises to cancel.

    Raises:
        InvalidMeshError: the mesh is not valid.
        InvalidRequestError: JAX on this host does not have a device, axis or mesh size.
        RunFailedError: no trial was measured.
    """
    clock = SystemClock()
    started_at, began_s = clock.now(), clock.monotonic()
    devices, notices = read_devices()
    first = next(iter(devices.values()))
    platform = parse_platform(first.platform)
    scope = build_scope(request, platform=platform, indices=tuple(devices))
    if request.devices is None:
        scope = follow_plan(scope, devices)
    stage = Stage(devices, platform, scope.dtype, clock)
    bench = Bench(scope, stage, progress, check, Timetable.start(clock, scope.limit_s))
    bench.run(bench.list_trials())
    bench.check_anything()
    return BenchResult(
        suite=scope.suite,
        platform=platform,
        device_kind=devices[scope.devices[0]].device_kind,
        device_count=len(scope.devices),
        jax=jax.__version__,
        jaxlib=version("jaxlib"),
        started_at=started_at,
        duration_s=clock.monotonic() - began_s,
        records=tuple(bench.records),
        skipped=bench.list_skipped(),
        warnings=(*notices, *bench.list_notices()),
    )


@dataclass
class Bench:
    """The state of one bench run."""

    scope: Scope
    stage: Stage
    progress: Callable[[dict[str, Any]], None]
    check: Callable[[], None]
    timetable: Timetable
    records: list[BenchRecord] = field(default_factory=list)
    omissions: list[tuple[BenchCase, str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, trials: Sequence[Trial]) -> None:
        """Measures the trials in their order."""
        for done, trial in enumerate(trials):
            self.progress({"done": done, "total": len(trials), "message": f"{trial.case}: {trial.label}"})
            self.check()
            self.attempt(trial, trials_left=len(trials) - done)
        message = f"{len(self.records)} measured, {len(trials) - len(self.records)} not"
        self.progress({"done": len(trials), "total": len(trials), "message": message})

    def list_trials(self) -> list[Trial]:
        """Returns the trials of all cases, and records the cases without trials."""
        trials = []
        for case in self.scope.cases:
            found = list(LISTERS[case](self.scope, self.stage))
            trials += found
            if not found:
                self.omissions.append((case, explain_absence(case, self.scope), ""))
        return trials

    def attempt(self, trial: Trial, *, trials_left: int) -> None:
        """Measures one trial. If time runs out or XLA rejects it, records the reason."""
        try:
            self.note(self.measure(trial, self.timetable.share_until_s(trials_left)))
        except OutOfTime as reason:
            self.omissions.append((trial.case, str(reason), trial.label))
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            text = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0][:300]}"
            self.failures.append(f"{trial.case} ({trial.label}): {text}")
            self.omissions.append((trial.case, text, trial.label))

    def measure(self, trial: Trial, until_s: float) -> BenchRecord:
        """Prepares, warms up, samples and verifies one trial."""
        clock = self.stage.clock
        subject = trial.prepare()
        self.check()
        samples_s = measure_samples(
            subject.sample, count=self.scope.samples, until_s=until_s, timetable=self.timetable, check=self.check
        )
        kind = self.stage.devices[trial.device_indices[0]].device_kind
        return build_record(trial, samples_s, subject.verify(), at=clock.now(), device_kind=kind)

    def note(self, record: BenchRecord) -> None:
        """Stores a record and reports it."""
        self.records.append(record)
        self.progress({"record": record.model_dump(mode="json")})

    def check_anything(self) -> None:
        """Raises RunFailedError, with the reason for every case, unless something was measured."""
        if self.records:
            return
        reasons = "; ".join(f"{entry.case}: {entry.reason}" for entry in self.list_skipped())
        raise RunFailedError(f"nothing was measured: {reasons}", hint=suggest_request(self))

    def list_skipped(self) -> tuple[Skipped, ...]:
        """Returns one entry per case and reason, with the skipped trials."""
        gathered: dict[tuple[BenchCase, str], list[str]] = {}
        for case, reason, label in self.omissions:
            gathered.setdefault((case, reason), []).append(label)
        return tuple(
            Skipped(case=case, reason=reason + format_labels(labels)) for (case, reason), labels in gathered.items()
        )

    def list_notices(self) -> Iterator[Notice]:
        """Yields the notices that readers of the figures must know."""
        if self.stage.platform == "cpu" and len(self.stage.devices) > 1:
            yield VIRTUAL
        for failure in self.failures:
            yield Notice(
                code="case_failed",
                message=failure,
                hint="the worker's log and GET /health tell more; RESOURCE_EXHAUSTED: use smaller sizes_bytes",
            )


def explain_absence(case: BenchCase, scope: Scope) -> str:
    """Returns why a case does not have a trial on these devices."""
    if case in COLLECTIVE_CASES:
        sizes = ", ".join(f"{name}:{size}" for name, size in scope.mesh if name in scope.axes)
        return f"there is nothing to exchange over {sizes}: a collective needs an axis of at least 2 devices"
    return f"it needs 2 devices; {len(scope.devices)} take part"


def suggest_request(bench: Bench) -> str:
    """Returns a request to try instead when nothing was measured."""
    if not any(label for _, _, label in bench.omissions):
        return 'name cases that one device can do, as in "cases": ["matmul", "memory_bandwidth"]; or more devices'
    return f'raise "max_s" (it was {bench.scope.limit_s:g}), or name fewer "cases" or smaller sizes'


def format_labels(labels: Sequence[str]) -> str:
    """Returns a text that names the first few trials."""
    named = [label for label in labels if label]
    rest = f"; and {len(named) - NAMED_TRIALS} more" if len(named) > NAMED_TRIALS else ""
    return f" (not measured: {'; '.join(named[:NAMED_TRIALS])}{rest})" if named else ""


VIRTUAL: Final = Notice(
    code="virtual_devices",
    message="virtual CPU devices share cores and memory: these figures are not those of separate devices",
    hint="without named devices the quick suite measures cases of one device on device 0 only",
)
