"""A process with virtual CPU devices that runs benches: requests as JSON on stdin, answers as JSON on stdout.

python tests/unit/bench/bench_job.py suite       [request, …] → [{"result" or "failure": {…}, "updates": [{…}, …]}, …]
python tests/unit/bench/bench_job.py sabotage    → {name: {"wrong_elements": …, "correct": …}}
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np

from meshwright.errors import RunFailedError
from meshwright.wire.bench import BenchRequest
from meshwright_agent.bench.scope import build_scope
from meshwright_agent.children.bench.collectives import KINDS, CollectiveRun
from meshwright_agent.children.bench.measure import Outcome, Stage, read_devices
from meshwright_agent.children.bench.suite import run_suite
from meshwright_agent.children.bench.transfers import Fetch, Move, Put
from meshwright_agent.clock import SystemClock


def run_suites(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for request in requests:
        updates: list[dict[str, Any]] = []
        try:
            result = run_suite(BenchRequest.model_validate(request), progress=updates.append, check=lambda: None)
        except RunFailedError as error:
            answers.append({"failure": {"detail": error.detail, "hint": error.hint}, "updates": updates})
        else:
            answers.append({"result": result.model_dump(mode="json"), "updates": updates})
    return answers


def run_sabotage() -> dict[str, dict[str, Any]]:
    """Collectives that do something else than they say, and transfers that lose or misplace bytes."""
    devices, _ = read_devices()
    scope = build_scope(BenchRequest(mesh="dp:2,tp:4"), platform="cpu", indices=tuple(devices))
    stage = Stage(devices, "cpu", "float32", SystemClock())
    outcomes = {"right": collective(scope, stage)}
    outcomes["not there at all"] = collective(scope, stage, run=lambda block, axis, n: block)
    outcomes["over the other axis"] = collective(scope, stage, run=lambda block, axis, n: jax.lax.psum(block, "dp"))
    outcomes["a maximum"] = collective(scope, stage, run=lambda block, axis, n: jax.lax.pmax(block, axis))
    back = lambda block, axis, n: jax.lax.ppermute(block, axis, [(i, (i - 1) % n) for i in range(n)])  # noqa: E731
    outcomes["the wrong way round"] = collective(scope, stage, kind=KINDS["permute"], run=back)
    outcomes["sent right"] = transfer(Put(stage, 4096, devices[1]))
    outcomes["sent with a flipped byte"] = transfer(Put(stage, 4096, devices[1]), last=flip)
    outcomes["read with a flipped byte"] = transfer(Fetch(stage, 4096, devices[1]), out=flip)
    outcomes["moved right"] = transfer(Move(stage, 4096, devices[0], devices[1]))
    outcomes["moved elsewhere"] = transfer(
        Move(stage, 4096, devices[0], devices[1]), last=lambda array: jax.device_put(array, devices[2])
    )
    return {name: describe(outcome) for name, outcome in outcomes.items()}


def collective(scope: Any, stage: Stage, *, kind: Any = None, **changes: Any) -> Outcome:
    kind = dataclasses.replace(kind or KINDS["all_reduce"], **changes)
    subject = CollectiveRun(stage, kind, "tp", scope, 4096)
    subject.sample()
    return subject.verify()


def transfer(subject: Any, **changes: Any) -> Outcome:
    subject.sample()
    for name, change in changes.items():
        setattr(subject, name, change(getattr(subject, name)))
    return subject.verify()  # type: ignore[no-any-return]


def flip(array: Any) -> Any:
    flipped = np.array(array)
    flipped.view(np.uint8)[1234] ^= 0x40
    return jax.device_put(flipped, array.device) if isinstance(array, jax.Array) else flipped


def describe(outcome: Outcome) -> dict[str, Any]:
    return {"wrong_elements": outcome.wrong_elements, "correct": outcome.correct}


if __name__ == "__main__":
    print(json.dumps(run_suites(json.load(sys.stdin)) if sys.argv[1] == "suite" else run_sabotage()))
