"""How fast the card is by the agent's own bench, against the chip table; and how far two runs differ."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from meshwright.topology.chips import Chip, find_chip
from tests.device.bed import Bed
from tests.device.record import Finding
from tests.process.living import await_end, submit

RUNS: Final = 3
LEAST_RATIO: Final = 0.5
MOST_RATIO: Final = 1.0
SPREAD_RATIO: Final = 0.1
OF_CARD: Final = ("matmul", "memory_bandwidth")
"""Cases that the host's pageable memory has no part in."""

_CASES: Final = ["matmul", "memory_bandwidth", "host_to_device", "device_to_host"]
_FULL: Final[dict[str, Any]] = {"suite": "full", "cases": _CASES, "max_s": 45}
_SMALL: Final[dict[str, Any]] = {**_FULL, "sizes_bytes": [1 << 20], "matmul_size": 256, "samples": 5}

Key = tuple[str, int]


def check_speed(bed: Bed) -> Iterator[Finding]:
    """Three full benches: the best of each case against the table, all medians right, and their spread."""
    medians: dict[Key, list[float]] = defaultdict(list)
    best: dict[str, tuple[float, str]] = {}
    kind, wrong = "", 0
    with bed.start_agent(idle_release_s="60") as agent:
        for number in range(1, RUNS + 1):
            run = await_end(agent, submit(agent, _FULL if bed.is_gpu else _SMALL), limit_s=120)
            ok = run["state"] == "succeeded"
            yield Finding(f"full bench {number}", run["state"], ok, rule="succeeded", note=str(run["error"] or ""))
            for record in run["result"]["records"] if ok else ():
                kind, wrong = run["result"]["device_kind"], wrong + record["wrong_elements"]
                medians[record["case"], record["size_bytes"]].append(record["median_s"])
                rate = record["flops_per_s"] or record["busbw_bytes_per_s"] or record["algbw_bytes_per_s"]
                best[record["case"]] = max(best.get(record["case"], (0.0, "")), (rate, _describe(record)))
    yield Finding("wrong elements", wrong, wrong == 0, rule="0", note=f"of {sum(map(len, medians.values()))} records")
    yield from compare_peaks(best, find_chip(kind))
    for (case, size_bytes), found in medians.items():
        spread = (max(found) - min(found)) / statistics.median(found)
        big = case in OF_CARD and size_bytes == max(size for name, size in medians if name == case)
        rule, ok = (f"≤ {SPREAD_RATIO:.0%}", spread <= SPREAD_RATIO) if big and bed.is_gpu else ("", None)
        note = f"of {len(found)} medians of about {statistics.median(found):.3g} s"
        yield Finding(f"spread of {case}, S = {size_bytes >> 10} KiB", spread, ok, "ratio", rule, note)


def _describe(record: dict[str, Any]) -> str:
    detail = f"S = {record['size_bytes'] / 2**20:.0f} MiB {record['dtype']}"
    return f"{detail}, median {record['median_s']:.3g} s, p10 {record['p10_s']:.3g} s, p90 {record['p90_s']:.3g} s"


def compare_peaks(best: dict[str, tuple[float, str]], chip: Chip | None) -> Iterator[Finding]:
    """Yields the best rate of each case, and its share of what the chip table has.

    Args:
        best: by case: rate in FLOP/s or bytes/s, and what it was measured on.
        chip: None: the table has no such chip.
    """
    peaks = {"matmul": chip.device_flops_per_s, "memory_bandwidth": chip.device_memory_bytes_per_s} if chip else {}
    for case, (rate, note) in best.items():
        yield Finding(case, rate, unit="FLOP/s" if case == "matmul" else "B/s", note=note)
        if case in peaks and chip:
            share, rule = rate / peaks[case], f"{LEAST_RATIO:.0%} to {MOST_RATIO:.0%}"
            ok = LEAST_RATIO <= share <= MOST_RATIO
            yield Finding(f"{case} ÷ the table's {chip.name}", share, ok, "ratio", rule, f"{peaks[case]:.4g} a second")
