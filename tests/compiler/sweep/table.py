"""What came of all cases: a table by generation, and what is broken.

Rule: a case is broken when our order is missing or told wrongly; all of them together are when ours is worse than JAX's
on too many, in its longest step or in the ways that XLA's collectives go at once. Knows no JAX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tests.compiler.sweep.cases import CASES_PER_SLICE, SEED, find_generation
from tests.compiler.sweep.orders import Cost, Row

WORSE_RATIO_MAX: Final = 0.005
"""Of the meshes that JAX has an order for."""

SEVERAL: Final = "several slices"

_COLUMNS: Final = (
    "slices of", "slices", "meshes", "JAX has no order", "longest step shorter", "equal", "longer",
    "ways of XLA's collectives more", "equal", "fewer", "worse in either",
)  # fmt: skip


def build_table(rows: Sequence[Row]) -> str:
    """Returns the rows counted by generation, as a Markdown table with their sum."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(SEVERAL if row.case.dcn else find_generation(row.case.slice), []).append(row)
    cells = [_list_cells(name, group) for name, group in groups.items()]
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *cells, _list_cells("all", rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _list_cells(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    counts = (
        len({row.case.target for row in rows}), len(rows), sum(row.jax is None for row in rows),
        *_count_sides(rows, lambda cost: cost.hops), *_count_sides(rows, lambda cost: cost.ways),
    )  # fmt: skip
    worse, known = sum(row.is_worse for row in rows), sum(row.jax is not None for row in rows)
    return (name, *(f"{count:,}" for count in counts), f"{worse} ({100 * worse / (known or 1):.2f} %)")


def _count_sides(rows: Sequence[Row], read: Callable[[Cost], float]) -> tuple[int, int, int]:
    """Returns on how many meshes ours is better, equal and worse than JAX's, where both have an order."""
    pairs = [(read(row.ours), read(row.jax)) for row in rows if row.ours and row.jax]
    sides = Counter((ours > theirs) - (ours < theirs) for ours, theirs in pairs)
    return sides[-1], sides[0], sides[1]


def tell(rows: Sequence[Row], possible_count: int, release: str) -> str:
    """Returns what stands under the table.

    Args:
        rows: of all cases.
        possible_count: how many meshes of one slice there are.
        release: of JAX.
    """
    one = sum(row.case.dcn is None for row in rows)
    how = f"at most {CASES_PER_SLICE} a slice, seed {SEED}"
    failures = Counter(row.jax_failure for row in rows if row.jax_failure)
    why = ", ".join(f"{name} {count:,}" for name, count in failures.most_common()) or "never"
    counted = (
        f"With jax {release}. {one:,} of the {possible_count:,} ways to write a slice's devices as up to three sizes"
        f" ({how}), and {len(rows) - one:,} meshes over several slices, split as JAX was told. JAX raises: {why}."
    )
    worse = [f"- {_name(row)}: {_tell_cost(row.ours)}; JAX's {_tell_cost(row.jax)}" for row in rows if row.is_worse]
    return "\n".join(["", counted, "", "Worse than JAX's order:", "", *(worse or ["- none"]), ""])


def _name(row: Row) -> str:
    split = f" split {write_sizes(row.case.dcn)}" if row.case.dcn else ""
    return f"{row.case.target} mesh {write_sizes(row.case.sizes)}{split}"


def _tell_cost(cost: Cost | None) -> str:
    return "none" if cost is None else f"longest step {cost.hops}, 1 ÷ ways {cost.ways:.4g}"


def list_complaints(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each rule that is broken."""
    complaints = [f"{_name(row)}: {fault.rule}: {fault.text}" for row in rows for fault in row.faults]
    worse, known = sum(row.is_worse for row in rows), sum(row.jax is not None for row in rows)
    if worse > WORSE_RATIO_MAX * known:
        complaints.append(f"worse than JAX's on {worse} of {known} meshes; at most {WORSE_RATIO_MAX:.1%} may be")
    return complaints


def write_sizes(sizes: Sequence[int]) -> str:
    """Returns sizes as they are read: "4×16"."""
    return "×".join(map(str, sizes))
