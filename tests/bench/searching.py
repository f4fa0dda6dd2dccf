"""Searching the best mesh for a model; `python -m tests.bench.searching`.

The search lists, prices and ranks all candidates; the whole answer also lays the devices of the best and writes no list
of them. The target is there already, as in an agent. Memory is the process's most.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from meshwright.planning.models import read_model
from meshwright.planning.request import answer_request
from meshwright.planning.search.answer import Question
from meshwright.planning.search.hardware import Hardware
from meshwright.planning.search.ranking import rank
from meshwright.planning.search.request import read_bounds
from meshwright.planning.search.space import list_space
from meshwright.topology.assemble import build_target
from meshwright.topology.model import Topology
from meshwright.wire.mesh import PlanRequest
from tests.bench.rows import Row, run_rows, tell_rows

ROUNDS: Final = 5
SMALL, LARGE = "v5p:8x8x8", "16*v5p:16x16x16"
GPUS: Final = "64*h100:8"


def bench_searching() -> list[Row]:
    """Returns the rows, measured in a process of their own."""
    return run_rows("tests.bench.searching", {})


def measure_rows() -> list[Row]:
    """Returns the rows, measured in this process."""
    rows = [("searching: measured on", f"load {os.getloadavg()[0]:.1f}", f"{os.cpu_count()} cores; llama3-70b, 8,192")]
    taken: dict[str, float] = {}
    for target, batch, rounds in ((SMALL, 512, ROUNDS), (GPUS, 512, ROUNDS), (LARGE, 65536, 1)):
        topology, request = build_target(target), build_request(batch)
        count, taken[target] = measure_search(request, topology)
        whole_s = time_it(partial(answer_request, request, topology), rounds)
        devices = len(topology.devices)
        rows.append((f"search {target}", f"{1e3 * taken[target]:.0f} ms", f"{count:,} candidates, {devices:,} devices"))
        rows.append(
            (f"… with the order of the best, {target}", f"{1e3 * whole_s:.0f} ms", "512 devices: budget 500 ms")
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows.append(("search: growth from 512 to 65,536 devices", f"{taken[LARGE] / taken[SMALL]:.1f} ×", "budget 5 ×"))
    rows.append(("search: most memory of the process", f"{most / 1e6:.0f} MB", "budget 500 MB; devices' objects too"))
    return rows


def build_request(batch: int) -> PlanRequest:
    """Returns a request for the best mesh of a 70B model on this host."""
    training = {"sequence_length": 8192, "global_batch": batch}
    asked = {"model": "llama3-70b", "training": training, "include_devices": False, "top": 1}
    return PlanRequest.model_validate(asked)


def measure_search(request: PlanRequest, topology: Topology) -> tuple[int, float]:
    """Returns how many candidates there are, and the median seconds to list, price and rank them."""
    assert request.training is not None
    hardware = Hardware.of(topology, len(topology.devices))
    question = Question(read_model("llama3-70b"), request.training, hardware, 0.75)
    bounds = read_bounds(request)

    def search() -> int:
        space = list_space(hardware.devices, question.model, question.training, bounds)
        assert rank(question.price(space.layout), 1).best
        return space.size

    return search(), time_it(search, ROUNDS)


def time_it(call: Callable[[], Any], rounds: int) -> float:
    """Returns the median seconds of a call."""
    taken = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


if __name__ == "__main__":
    tell_rows(measure_rows, bench_searching)
