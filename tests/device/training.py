"""What was said of a training step before it ran, beside what it did: memory by the compiler and the plan, and time.

The plan comes from the agent of this host, the compile opens no device, and the step runs in a process as a trainer's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from meshwright import Client
from meshwright.compiling.request import compile_in_child
from meshwright.planning.compile_job import build_job
from meshwright.planning.models import read_model
from meshwright.wire.mesh import Plan
from meshwright.wire.model import TrainingSpec
from meshwright.wire.verification import Verification
from tests.device.bed import Bed, release
from tests.device.record import Finding
from tests.documents import ROOT
from tests.process.jobs import read_answer

LIMIT_S: Final = 200.0
MEMORY_RATIOS: Final = (0.85, 1.15)

CASES: Final[dict[str, list[tuple[Any, dict[str, Any]]]]] = {
    "gpu": [
        ("llama3.2-1b", {"seq_len": 4096, "global_batch_size": 4}),
        ("llama3.2-3b", {"seq_len": 4096, "global_batch_size": 4}),
    ],
    "cpu": [
        (
            {
                "vocab_size": 256,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            },
            {"seq_len": 64, "global_batch_size": 1},
        )
    ],
}
"""Model and training by platform, the batch of one device."""


def check_step(bed: Bed) -> Iterator[Finding]:
    """A plan's mesh trains, and its memory and time are what was said."""
    for named, training in CASES[bed.platform]:
        model = read_model(named)
        with bed.start_agent() as agent, Client(agent.url, timeout=60) as client:
            count = len(client.devices().devices)
            batch = training["global_batch_size"] * count
            training = {**training, "global_batch_size": batch}
            plan = client.plan("dp:-1", model=named, training=training)
            release(agent)
        spec = TrainingSpec(**training)
        found = compile_in_child(build_job(plan, model, spec), limit_s=LIMIT_S)
        assert isinstance(found, Verification)
        what = f"{named if isinstance(named, str) else 'a small model'}, {batch} × {spec.seq_len} tokens"
        yield Finding(
            f"{what}: compile-only", found.status, found.status == "verified", rule="verified", note=found.reason or ""
        )
        job = {"plan": plan.model_dump(mode="json"), "model": model.model_dump(mode="json"), "training": training}
        yield from compare_step(what, plan, found, run_job({**job, "steps": 10}))


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Returns what the process of the step says."""
    with tempfile.TemporaryDirectory(prefix="mw-") as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        command = [sys.executable, "-m", "tests.device.step", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise AssertionError(f"the step's process ended with {done.returncode}: {last}\n{done.stderr[-3000:]}")
    return read_answer(done.stdout)


def compare_step(what: str, plan: Plan, found: Verification, ran: dict[str, Any]) -> Iterator[Finding]:
    """Yields what a step did beside what was said of it."""
    same = ran["fingerprint"] == plan.fingerprint
    yield Finding(f"{what}: the plan's mesh", same, same, rule="has the plan's fingerprint")
    falls = ran["is_finite"] and ran["losses"][-1] < ran["losses"][0]
    yield Finding(f"{what}: loss", ran["losses"][-1], falls, "", "falls", f"from {ran['losses'][0]:.4g}")
    step_s = statistics.median(ran["steps_s"])
    spread = f"{min(ran['steps_s']):.4g} to {max(ran['steps_s']):.4g} s, compiled in {ran['compile_s']:.1f} s"
    yield Finding(f"{what}: step", step_s, unit="s", note=f"{spread}, {ran['device']}, jax {ran['jax']}")
    peak, low, high = ran["peak_bytes"], *MEMORY_RATIOS
    yield Finding(f"{what}: memory at most", peak, unit="B", note="JAX's peak_bytes_in_use")
    said: list[tuple[str, int | None]] = [
        ("compile-only", found.peak_memory_bytes),
        ("the card's own compile", ran["compiled_peak_bytes"]),
        ("the plan", plan.memory.per_device_bytes if plan.memory else None),
    ]
    for who, said_bytes in said:
        if said_bytes and peak:
            ratio = said_bytes / peak
            yield Finding(
                f"{what}: memory by {who} ÷ measured", ratio, low <= ratio <= high, "ratio", f"{low:.0%} to {high:.0%}"
            )
        elif said_bytes:
            yield Finding(f"{what}: memory by {who}", said_bytes, unit="B")
    if plan.step_time is not None:
        told = plan.step_time
        inside = told.low_s is None or told.high_s is None or told.low_s <= step_s <= told.high_s
        rule = f"within {told.low_s:.4g} to {told.high_s:.4g} s" if told.low_s and told.high_s else ""
        yield Finding(f"{what}: step time by the plan ÷ measured", told.total_s / step_s, inside, "ratio", rule)
    if found.estimated_step_s is not None:
        yield Finding(f"{what}: step time by the compiler ÷ measured", found.estimated_step_s / step_s, unit="ratio")
