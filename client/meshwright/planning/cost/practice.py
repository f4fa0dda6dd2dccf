"""How well a framework uses a chip: the constants that no datasheet has, each fitted to measured runs.

Rule: keyed by framework, platform and chip family, never by model, row or run. `constants.csv` beside this file has one
row a constant, `intervals.csv` how far left-out runs were from what these constants say; docs/accuracy.md
says how they were fitted. Where a framework or family has no row, the next wider one counts, and `find_practice` says
which.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from meshwright.topology.chips import read_table

DEFAULT: Final = "xla"
ANY: Final = ""
"""In the tables: every family of the platform, or every practice."""


@dataclass(frozen=True)
class Practice:
    """Constants of one framework on one chip; in the table each has its unit and where it comes from.

    Attributes:
        matmul: part of the curve's speed that matmuls reach in a step; the curve is of a matmul alone.
        narrow: part of that which matmuls in 8 or 4 bits reach.
        cast_bytes: memory traffic of bringing one element that such a matmul reads or writes to its dtype.
        misaligned: what a matmul takes more for each halving of 64 that its sizes are no multiple of.
        attention: part of the 16-bit peak that attention reaches, forward and backward together.
        score_bytes: memory traffic of one element of a matrix of scores, forward; for attention that is not fused.
        memory: part of the memory's peak bandwidth that elementwise work reaches.
        traffic: times that a token's hidden state goes to or from memory in a layer's forward pass, in places that a
            tensor axis does not cut.
        traffic_cut: the same in places that it does cut, in units of a quarter of the feed-forward's inner size.
        routed: times that the copies of a token for its experts go to or from memory in the forward pass.
        logits_bytes: memory traffic of one logit, forward and backward.
        optimizer_bytes: memory traffic of the optimizer for one parameter.
        launch_s: what starting a layer's forward kernels takes on the host; 0: compiled into one program.
        launch_expert_s: the same for each expert that a device holds.
        launch_backward: starting the backward kernels, in units of the forward ones.
        dispatch_s: of a layer of experts, forward: the host waits for how many tokens each expert gets.
        pass_s: of a pass through a pipeline's stage: its host waits for the neighbours.
        step_s: what a step takes beside all of this.
        tensor: part of a wire's calibrated rate that collectives inside a node or slice reach; above 1: parts of them
            run beside matmuls.
        network: the same between nodes or slices.
        partial: part of that which groups reach that have several devices of a node, but not all of them.
        tensor_latency_s, network_latency_s: of one collective, inside and between.
        hidden: how well communication that can run ahead hides behind compute: exponent p of
            (compute^p + communication^p)^(1/p); 1: not at all; large: wholly.
        exposed: part of that communication which is waited for all the same, however much compute there is.
        straggle: what a step takes more for each doubling of the nodes or slices that wait for each other.
        skew: which part of the last stage's extra work (head, loss) the pipeline waits for.
    """

    matmul: float = 0.9
    narrow: float = 1.0
    cast_bytes: float = 0.0
    misaligned: float = 0.0
    attention: float = 0.5
    score_bytes: float = 0.0
    memory: float = 0.8
    traffic: float = 8.0
    traffic_cut: float = 8.0
    routed: float = 6.0
    logits_bytes: float = 16.0
    optimizer_bytes: float = 30.0
    launch_s: float = 0.0
    launch_expert_s: float = 0.0
    launch_backward: float = 2.0
    dispatch_s: float = 0.0
    pass_s: float = 0.0
    step_s: float = 0.0
    tensor: float = 0.8
    network: float = 0.8
    partial: float = 1.0
    tensor_latency_s: float = 1e-5
    network_latency_s: float = 3e-5
    hidden: float = 4.0
    exposed: float = 0.0
    straggle: float = 0.0
    skew: float = 1.0


@dataclass(frozen=True)
class Constant:
    """One row of `constants.csv`: with an empty family for all of a platform; with one it replaces that."""

    practice: str
    platform: str
    name: str
    value: float
    unit: str
    source: str
    family: str = ANY


@dataclass(frozen=True)
class FoundPractice:
    """Constants, and whose they are.

    Attributes:
        practice: what formulas take.
        basis: "practice/platform" and, where the family has rows of its own, "/family".
        is_own: whether the practice that was asked for has rows for the platform.
    """

    practice: Practice
    basis: str
    is_own: bool


@dataclass(frozen=True)
class Spread:
    """One row of `intervals.csv`: measured ÷ predicted of left-out runs, as natural logarithms.

    Attributes:
        low, high: quantiles of 10 % and 90 %.
        rows: how many runs they are of.
    """

    platform: str
    low: float
    high: float
    rows: int
    source: str
    practice: str = ANY
    family: str = ANY


def find_practice(practice: str, platform: str, family: str = ANY) -> FoundPractice:
    """Returns the constants of a framework on a chip; those of `xla` on the platform where it has none there.

    Args:
        practice: the framework: "xla", "maxtext", "megatron-core", ….
        platform: "gpu" or "tpu".
        family: of the chip, as the chip table has it.

    Raises:
        ValueError: the table has nothing for the platform.
    """
    table = read_constants()
    for name in dict.fromkeys((practice, DEFAULT)):
        if shared := table.get((name, platform, ANY)):
            own = table.get((name, platform, family), {}) if family else {}
            basis = "/".join((name, platform, family) if own else (name, platform))
            return FoundPractice(replace(Practice(), **{**shared, **own}), basis, name == practice)
    raise ValueError(f"constants.csv has no practice for platform {platform!r}; platforms are 'gpu' and 'tpu'")


def interval(total_s: float, practice: str, platform: str, family: str = ANY) -> tuple[float, float]:
    """Returns bounds between which four of five steps lie that are predicted to take so long.

    Of the nearest kind of which runs were left out: practice and family, practice, family, platform.

    Args:
        total_s: predicted seconds.
        practice, platform, family: as in `find_practice`.

    Raises:
        ValueError: the table has nothing for the platform.
    """
    spread = find_spread(practice, platform, family)
    return total_s * float(np.exp(spread.low)), total_s * float(np.exp(spread.high))


def find_spread(practice: str, platform: str, family: str = ANY) -> Spread:
    """Returns the row that `interval` takes.

    Raises:
        ValueError: the table has nothing for the platform.
    """
    table = read_spreads()
    for key in ((practice, family), (practice, ANY), (ANY, family), (ANY, ANY)):
        if found := table.get((key[0], platform, key[1])):
            return found
    raise ValueError(f"intervals.csv has no row for platform {platform!r}; platforms are 'gpu' and 'tpu'")


@functools.cache
def read_constants() -> Mapping[tuple[str, str, str], Mapping[str, float]]:
    """Returns the values by practice, platform and family."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in read_table("meshwright.planning.cost", "constants.csv", Constant):
        found.setdefault((row.practice, row.platform, row.family), {})[row.name] = row.value
    return found


@functools.cache
def read_spreads() -> Mapping[tuple[str, str, str], Spread]:
    """Returns the rows of `intervals.csv` by practice, platform and family."""
    rows = read_table("meshwright.planning.cost", "intervals.csv", Spread)
    return {(row.practice, row.platform, row.family): row for row in rows}
