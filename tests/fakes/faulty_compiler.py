"""A compiler that misbehaves: `python -m tests.fakes.faulty_compiler`, started by a real supervisor as the real one is.

The model's name says what goes wrong. Everything else, the memory's limit too, is the real child's.
"""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

import numpy

from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.compiling import CompileJob, CompileMesh, CompileTarget
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.verification import Verification
from meshwright_agent.worker.child import serve
from meshwright_agent.worker.compiler import KIND, Tell, build_handler, read_hello
from tests.fakes.faulty_child import hold_the_gil

MODULE = "tests.fakes.faulty_compiler"
CHUNK_BYTES = 1 << 20


def verify(job: CompileJob, tell: Tell) -> Verification:
    tell("tracing the step", 1, 3)
    match job.model.name:
        case "aborts":
            print("F1121 check failed: rank == 2", file=sys.stderr, flush=True)
            os.abort()
        case "hangs":
            hold_the_gil().usleep(600_000_000)
        case "leaks":
            leak()
        case "leaks with the lock":
            leak_with_the_lock()
        case "leaves":
            os._exit(3)
        case "raises":
            raise ZeroDivisionError("a bug of ours")
        case "does not fit":
            return Verification(status="does_not_fit", reason="it needs 2 bytes of 1", needed_bytes=2)
        case "not compiled":
            return Verification(status="not_compiled", reason="no compiler; pip install one")
        case "names its process":
            return Verification(status="verified", log=(str(os.getpid()), *(f"{k}={v}" for k, v in os.environ.items())))
    tell("reading the program", 2, 3)
    return Verification(status="verified", peak_memory_bytes=7, compile_s=0.1)


def leak() -> NoReturn:
    """Takes memory and gives it back never; between two chunks the watch gets its turn."""
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1)) * CHUNK_BYTES)
        time.sleep(0.001)


def leak_with_the_lock() -> NoReturn:
    """Takes memory while no other thread gets the interpreter's lock, as a C extension may; zeros are quick to take."""
    hold_the_gil()
    kept = []
    while True:
        kept.append(numpy.zeros(64 * CHUNK_BYTES, numpy.uint8))


def fit(job: CompileJob, tell: Tell) -> CompiledBatch:
    found = verify(job, tell)
    return CompiledBatch(
        batch_per_device=3, global_batch=6, data_parallel_size=2, compile_count=2, limit="memory", verification=found
    )


def build_job(name: str = "well") -> CompileJob:
    """Returns a job, small and complete, that the real compiler would take too."""
    model = ModelSpec(
        name=name, vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    return CompileJob(
        target=CompileTarget(platform="cpu", chip="cpu", shape=(2,), name="cpu:2"),
        mesh=CompileMesh(shape={"dp": 2}, axis_types={"dp": "auto"}, places=((0, 0), (0, 1))),
        model=model,
        training=TrainingSpec(global_batch=4, sequence_length=16),
    )


if __name__ == "__main__":
    serve(KIND, read_hello, {"verify": build_handler(lambda: verify), "fit": build_handler(lambda: fit)})
