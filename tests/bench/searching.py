"""Searching the best mesh for a model; `python -m tests.bench.searching`.

The search lists, prices and ranks all candidates; the whole answer also lays the devices of the best and writes no list
of them. The target is there already, as in an agent. Memory is the process's most. One question is that which another
public search was asked: Chinchilla's dimensions on 512 H100 (docs/explanation/accuracy.md).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from meshwright.planning.hardware import find_memory_fraction
from meshwright.planning.models import read_model
from meshwright.planning.request import Inventory, answer_request
from meshwright.planning.search.candidates import Hardware, Question
from meshwright.planning.search.search import list_leaders, list_rejected, read_bounds
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import SearchRequest
from tests.bench.rows import Row, run_rows, tell_rows, time_call

ROUNDS: Final = 5
SMALL, LARGE = "v5p:8x8x8", "16*v5p:16x16x16"
GPUS: Final = "64*h100:8"

CHINCHILLA: Final[Mapping[str, Any]] = {
    "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 32768, "num_hidden_layers": 80,
    "num_attention_heads": 64, "gated": False, "activation": "gelu", "norm": "layernorm",
}  # fmt: skip
"""calculon-ai/calculon at caa4b11, models/chinchilla.json; calculon prices no vocabulary, so ours is a small one."""


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
        whole_s = time_call(partial(answer_request, request, Inventory(topology)), rounds=rounds)
        devices = len(topology.devices)
        rows.append((f"search {target}", f"{1e3 * taken[target]:.0f} ms", f"{count:,} candidates, {devices:,} devices"))
        name = f"… with the order of the best, {target}"
        rows.append((name, f"{1e3 * whole_s:.0f} ms", "512 devices: budget 500 ms"))
    rows += measure_published()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows.append(("search: growth from 512 to 65,536 devices", f"{taken[LARGE] / taken[SMALL]:.1f} ×", "budget 5 ×"))
    rows.append(("search: most memory of the process", f"{most / 1e6:.0f} MB", "budget 500 MB; devices' objects too"))
    return rows


def measure_published() -> list[Row]:
    """Returns what the question takes that another search was asked, and the answer."""
    topology, request = build_target(GPUS), build_request(512, CHINCHILLA, 2048, memory_strategy="aggressive")
    count, taken_s = measure_search(request, topology)
    [plan] = answer_request(request, Inventory(topology)).plans
    assert plan.schedule is not None
    assert plan.step_time is not None
    mesh = ",".join(f"{axis}:{size}" for axis, size in plan.mesh_shape.items())
    schedule, mfu = plan.schedule, f"MFU {100 * (plan.mfu or 0):.0f} %"
    how = f"{schedule.gradient_accumulation_steps} × micro-batch {schedule.micro_batch_size}, remat {schedule.remat}"
    answer = f"{how}; {plan.step_time.total_s:.2f} s a step of 512 × 2,048, {mfu}"
    return [
        (f"search {GPUS} for Chinchilla", f"{1e3 * taken_s:.0f} ms", f"{count:,} candidates"),
        ("… the best", mesh, answer),
    ]


def build_request(
    batch: int, model: str | Mapping[str, Any] = "llama3-70b", sequence: int = 8192, **more: Any
) -> SearchRequest:
    """Returns a request for the best mesh of a 70B model on this host."""
    training = {"seq_len": sequence, "global_batch_size": batch}
    asked = {"model": model, "training": training, "include_devices": False, "top": 1, **more}
    return SearchRequest.model_validate(asked)


def measure_search(request: SearchRequest, topology: Topology) -> tuple[int, float]:
    """Returns how many candidates there are, and the median seconds to list, price and rank them."""
    model, bounds, devices = read_model(request.model), read_bounds(request), len(topology.devices)
    fraction = find_memory_fraction(request.memory_strategy, trains=True)
    question = Question(model, request.training, Hardware.of(topology, devices, range(devices)), fraction)

    def search() -> int:
        space = question.list_space(bounds)
        priced = question.price(space.layout)
        leaders = list_leaders(priced)
        assert priced.fits[leaders[0]]
        list_rejected(priced, leaders, [int(leaders[0])], {})
        return space.size

    return search(), time_call(search, rounds=ROUNDS)


if __name__ == "__main__":
    tell_rows(measure_rows, bench_searching)
