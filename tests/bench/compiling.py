"""Verifying plans by XLA's compilers, each in a child process as a user has it; `python -m tests.bench.compiling`.

Times are from the question to the answer: start of the child, tracing, compiling and reading the program.
"""

from __future__ import annotations

import os
import time
from typing import Final

from meshwright.compiling.request import compile_in_child
from meshwright.planning.compile_job import CompileJob, build_job
from meshwright.planning.models import read_model
from meshwright.planning.request import answer_request
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.verification import Verification
from tests.bench.rows import Row, tell_rows

LIMIT_S: Final = 1200.0

_LLAMA_7B: Final = read_model("llama2-7b")
_LLAMA_70B: Final = read_model("llama3-70b")
LLAMA_80B: Final = _LLAMA_70B.model_copy(update={"num_hidden_layers": 91, "name": "llama3-70b with 91 layers"})
"""79,965,290,496 parameters: the class that the budget names."""


def bench_compiling() -> list[Row]:
    """Returns the rows; each compile has a process of its own anyway."""
    return [
        ("verifying: measured on", f"load {os.getloadavg()[0]:.1f}", f"{os.cpu_count()} cores"),
        time_verify("80B", build("64*h100:8", "fsdp:64,tp:8", LLAMA_80B, 64, 8192), "budget 15 s"),
        time_verify("70B that does not fit", build("8*h100:8", "fsdp:8,tp:8", _LLAMA_70B, 512, 8192), "budget 10 s"),
        time_verify("7B that does not fit", build("v5e:2x2", "fsdp:4", _LLAMA_7B, 4, 2048), "budget 10 s"),
        time_verify("7B", build("v5e:4x4", "fsdp:16", _LLAMA_7B, 16, 2048), "budget 150 s"),
        time_fit("7B", build("16*a100:8", "fsdp:128", _LLAMA_7B, 128 * 64, 4096)),
    ]


def build(target: str, mesh: str, model: ModelSpec, batch: int, length: int) -> CompileJob:
    """Returns the job of a model on a mesh."""
    request = PlanRequest(mesh=mesh, target=target)
    training = TrainingSpec(global_batch_size=batch, seq_len=length)
    plan = answer_request(request).plans[0]
    return build_job(plan, model, training)


def time_verify(name: str, job: CompileJob, budget: str) -> Row:
    """Returns what one verification takes, and what it says."""
    began_s = time.perf_counter()
    answer = compile_in_child(job, limit_s=LIMIT_S)
    duration_s = time.perf_counter() - began_s
    assert isinstance(answer, Verification)
    return (f"verify {name} on {job.target.name}", f"{duration_s:.1f} s", f"{budget}; {_tell(answer)}")


def _tell(answer: Verification) -> str:
    if answer.status in ("not_compiled", "aborted"):
        return f"{answer.status}: {answer.reason}"
    needed = answer.peak_memory_bytes or answer.needed_bytes or 0
    return f"{answer.status}, {needed / 1e9:.1f} of {(answer.capacity_bytes or 0) / 1e9:.1f} GB a device"


def time_fit(name: str, job: CompileJob) -> Row:
    """Returns what the search for the largest batch takes, and how many compiles."""
    began_s = time.perf_counter()
    answer = compile_in_child(job.model_copy(update={"search": "largest_batch"}), limit_s=LIMIT_S)
    duration_s = time.perf_counter() - began_s
    if not isinstance(answer, CompiledBatch):
        return (f"largest batch of {name} on {job.target.name}", f"{duration_s:.1f} s", _tell(answer))
    note = f"{len(answer.tried)} compiles; {answer.per_replica_batch_size} sequences a device"
    return (f"largest batch of {name} on {job.target.name}", f"{duration_s:.1f} s", note)


if __name__ == "__main__":
    tell_rows(bench_compiling, bench_compiling)
