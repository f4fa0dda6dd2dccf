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
from meshwright.planning.compile_job import apply_schedule, build_job
from meshwright.planning.models import read_model
from meshwright.wire.mesh import Plan
from meshwright.wire.model import TrainingSpec
from meshwright.wire.verification import Verification
from tests.device.bed import Bed
from tests.device.record import Finding
from tests.documents import ROOT
from tests.process.jobs import read_answer
from tests.process.living import time_release

LIMIT_S: Final = 200.0
MEMORY_RATIOS: Final = (0.85, 1.15)

SMALL: Final = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
CASES: Final[dict[str, list[tuple[Any, dict[str, Any]]]]] = {
    "gpu": [(name, {"seq_len": 4096, "global_batch_size": 4}) for name in ("llama3.2-1b", "llama3.2-3b")],
    "cpu": [(SMALL, {"seq_len": 64, "global_batch_size": 1})],
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
            time_release(agent)
        spec = apply_schedule(TrainingSpec(**training), plan.schedule)
        found = compile_in_child(build_job(plan, model, spec), limit_s=LIMIT_S)
        assert isinstance(found, Verification)
        what = f"{named if isinstance(named, str) else 'a small model'}, {batch} × {spec.seq_len} tokens"
        is_verified, note = found.status == "verified", found.reason or ""
        yield Finding(f"{what}: compile-only", found.status, is_verified, rule="verified", note=note)
        job = {"plan": plan.model_dump(mode="json"), "model": model.model_dump(mode="json"), "steps": 10}
        job["training"] = spec.model_dump(mode="json", exclude_none=True)
        yield from compare_step(what, plan, found, run_job({**job, "attention": "own"}))
        if bed.is_gpu:
            yield from compare_time(what, plan, run_job({**job, "attention": "cudnn"}))


def check_batch(bed: Bed) -> Iterator[Finding]:
    """The largest batch by the compiler trains, within the memory that was said; one more does not fit, it says."""
    named, training = CASES[bed.platform][-1]
    training = {"seq_len": training["seq_len"], **({} if bed.is_gpu else {"global_batch_size": 8})}
    with bed.start_agent() as agent, Client(agent.url, timeout=60) as client:
        least = {**training, "global_batch_size": len(client.devices().devices)}
        plan = client.plan("dp:-1", model=named, training=least)  # its environment has the memory of the compile
        asked: dict[str, Any] = {"model": named, "training": training, "mesh": "dp:-1"}
        found = client.batch_size(**asked, compile=True, timeout_s=LIMIT_S).compiled
        time_release(agent)
    assert found is not None
    batch = found.global_batch_size or 0
    yield Finding("largest batch", batch, bool(batch), rule="1 or more", note=f"{len(found.tried)} compiles")
    model = read_model(named).model_dump(mode="json")
    job = {"plan": plan.model_dump(mode="json"), "model": model, "attention": "own", "steps": 2}
    ran = run_job({**job, "training": {**training, "global_batch_size": batch}})
    said_bytes, peak = found.verification.peak_memory_bytes, ran["peak_bytes"]
    yield build_step_finding("largest batch: step", ran)
    if said_bytes and peak:
        yield build_ratio_finding("memory by compile-only ÷ measured", said_bytes / peak)
    if bed.is_gpu:
        more = {**training, "global_batch_size": batch + batch // (found.per_replica_batch_size or 1)}
        try:
            run_job({**job, "training": more})
            after = "it ran"
        except AssertionError as error:
            after = "out of memory" if "RESOURCE_EXHAUSTED" in str(error) else str(error)[:200]
        yield Finding("one sequence more on each device", after, note="does not fit, by the compiler")


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
    yield build_step_finding(f"{what}: step", ran)
    peak = ran["peak_bytes"]
    yield Finding(f"{what}: memory at most", peak, unit="B", note="JAX's peak_bytes_in_use")
    said: list[tuple[str, int | None]] = [
        ("compile-only", found.peak_memory_bytes),
        ("the card's own compile", ran["compiled_peak_bytes"]),
        ("the plan", plan.memory.per_device_bytes if plan.memory else None),
    ]
    for who, said_bytes in said:
        if said_bytes and peak:
            yield build_ratio_finding(f"{what}: memory by {who} ÷ measured", said_bytes / peak)


def compare_time(what: str, plan: Plan, ran: dict[str, Any]) -> Iterator[Finding]:
    """Yields the time of a step with the attention of NVIDIA's library beside the plan's."""
    yield build_step_finding(f"{what}: step with cuDNN's attention", ran)
    told, step_s = plan.step_time, statistics.median(ran["steps_s"])
    if told is not None and told.low_s is not None and told.high_s is not None:
        inside, rule = told.low_s <= step_s <= told.high_s, f"within {told.low_s:.4g} to {told.high_s:.4g} s"
        yield Finding(f"{what}: step time by the plan ÷ measured", told.total_s / step_s, inside, "ratio", rule)


def build_ratio_finding(name: str, ratio: float) -> Finding:
    """Returns whether memory is what was said of it."""
    low, high = MEMORY_RATIOS
    return Finding(name, ratio, low <= ratio <= high, "ratio", f"{low:.0%} to {high:.0%}")


def build_step_finding(name: str, ran: dict[str, Any]) -> Finding:
    """Returns the median of the steps, with their spread."""
    spread = f"{min(ran['steps_s']):.4g} to {max(ran['steps_s']):.4g} s, compiled in {ran['compile_s']:.1f} s"
    note = f"{spread}, {ran['device']}, jax {ran['jax']}"
    return Finding(name, statistics.median(ran["steps_s"]), unit="s", note=note)
