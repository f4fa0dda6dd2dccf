"""Jobs of real processes on loopback: a program, its steps as JSON, one process a rank, an answer from each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 150.0


def run_program(
    program: Path, folder: Path, steps: list[dict[str, Any]] | dict[str, Any], *, processes: int, devices_each: int
) -> list[dict[str, Any]]:
    """Runs `python PROGRAM RANK COUNT PORT STEPS` once a rank; returns the answer of each, a line of JSON."""
    path = folder / "steps.json"
    path.write_text(json.dumps(steps))
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices_each), "XLA_FLAGS": ""}
    arguments = [str(processes), str(find_port()), str(path)]
    job = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in job]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the job did not end in {LIMIT_S:g} s\n{stop(job)}") from None
    finally:
        stop(job)
    for process, (_, err) in zip(job, outputs, strict=True):
        assert process.returncode == 0, err[-4000:]
    return [read_answer(out) for out, _ in outputs]


def stop(job: list[subprocess.Popen[str]]) -> str:
    """Ends what still runs, closes all pipes, and returns what each rank had come to."""
    said = []
    for rank, process in enumerate(job):
        ended = process.poll()
        process.kill()
        out, err = process.communicate() if process.stdout and not process.stdout.closed else ("", "")
        said.append(
            f"rank {rank}: {'still ran' if ended is None else f'ended with {ended}'}\n{out[-2000:]}\n{err[-2000:]}"
        )
    return "\n".join(said)


def read_answer(out: str) -> dict[str, Any]:
    """Returns the last JSON object; gloo's threads may write lines of their own after it."""
    answer: dict[str, Any] = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    return answer


def find_port() -> int:
    """Returns a port of loopback that was free just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
