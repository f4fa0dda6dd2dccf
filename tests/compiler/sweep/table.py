"""What came of all cases: a table by generation, a line a case, and what is broken.

Rule: a case is broken when our order is missing, worse than JAX's by score or by its longest step, or told wrongly; all
of them together are when too few are better where an axis must be split. Knows no JAX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tests.compiler.sweep.cases import find_generation
from tests.compiler.sweep.orders import Row

BETTER_RATIO_MIN: Final = 0.6
"""Of the meshes that split a dimension of the torus and that JAX has an order for."""

SEVERAL: Final = "several slices"

_COLUMNS: Final = (
    "slices of",
    "slices",
    "meshes",
    "JAX has no order",
    "score better",
    "equal",
    "worse",
    "fewer hops",
    "equal",
    "more",
    "must be split",
    "JAX has no order",
    "score better",
    "fewer hops",
)
_FIELDS: Final = "slice,mesh,dcn,must_split,method,hops,jax_hops,cost,jax_cost,jax_failure"


def build_table(rows: Sequence[Row]) -> str:
    """Returns the rows counted by generation, as a Markdown table with their sum."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(SEVERAL if row.case.dcn else find_generation(row.case.slice), []).append(row)
    cells = [_list_cells(name, group) for name, group in groups.items()]
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *cells, _list_cells("all", rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _list_cells(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    split = [row for row in rows if row.must_split]
    known = len(split) - _count_refused(split)
    counts = (
        len({row.case.target for row in rows}),
        len(rows),
        _count_refused(rows),
        *_count_sides(rows, by_hops=False),
        *_count_sides(rows, by_hops=True),
        len(split),
        _count_refused(split),
    )
    better = (_count_sides(split, by_hops=by_hops)[0] for by_hops in (False, True))
    shares = (f"{count:,} ({100 * count / known:.1f} %)" if known else "–" for count in better)
    return (name, *(f"{count:,}" for count in counts), *shares)


def _count_refused(rows: Sequence[Row]) -> int:
    return sum(row.jax is None for row in rows)


def _count_sides(rows: Sequence[Row], *, by_hops: bool) -> tuple[int, int, int]:
    """Returns on how many meshes ours is better, equal and worse than JAX's, where both have an order."""
    sides = Counter(_find_side(row, by_hops=by_hops) for row in rows if row.ours and row.jax)
    return sides[-1], sides[0], sides[1]


def _find_side(row: Row, *, by_hops: bool) -> int:
    assert row.ours
    assert row.jax
    ours, theirs = (row.ours.hops, row.jax.hops) if by_hops else (row.ours, row.jax)
    return (ours > theirs) - (ours < theirs)  # type: ignore[operator]


def tell(rows: Sequence[Row], possible_count: int, per_slice: int, seed: int, release: str) -> str:
    """Returns what stands under the table.

    Args:
        rows: of all cases.
        possible_count: how many meshes of one slice there are.
        per_slice: at most so many were laid on each; 0: all.
        seed: of the sample.
        release: of JAX.
    """
    one = sum(row.case.dcn is None for row in rows)
    how = f"at most {per_slice} a slice, seed {seed}" if per_slice else "all"
    failures = Counter(row.jax_failure for row in rows if row.jax_failure)
    why = ", ".join(f"{name} {count:,}" for name, count in failures.most_common()) or "never"
    counted = (
        f"With jax {release}. {one:,} of the {possible_count:,} ways to write a slice's devices as up to three sizes"
        f" ({how}), and {len(rows) - one:,} meshes over several slices, split as JAX was told. Shares are of the meshes"
        f" that JAX has an order for; it raises: {why}."
    )
    return f"\n{counted}\n"


def list_complaints(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each rule that is broken."""
    return [*_list_faults(rows), *_list_shortages(rows)]


def _list_faults(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for fault in row.faults:
            split = f" split {write_sizes(row.case.dcn)}" if row.case.dcn else ""
            yield f"{row.case.target} mesh {write_sizes(row.case.sizes)}{split}: {fault.rule}: {fault.text}"


def _list_shortages(rows: Sequence[Row]) -> Iterator[str]:
    split = [row for row in rows if row.must_split and row.ours and row.jax]
    for name, by_hops in (("score", False), ("hops", True)):
        better = _count_sides(split, by_hops=by_hops)[0]
        if better < BETTER_RATIO_MIN * len(split):
            yield (
                f"better by {name} on {better} of {len(split)} meshes that split a dimension; "
                f"it must be on {100 * BETTER_RATIO_MIN:.0f} %"
            )


def write_rows(rows: Sequence[Row]) -> str:
    """Returns the rows as CSV, one line a case; an empty field is what there is not."""
    return "".join(f"{line}\n" for line in (_FIELDS, *map(_write_row, rows)))


def _write_row(row: Row) -> str:
    fields = (
        row.case.target,
        write_sizes(row.case.sizes),
        write_sizes(row.case.dcn or ()),
        "yes" if row.must_split else "no",
        row.method,
        *(str(cost.hops) if cost else "" for cost in (row.ours, row.jax)),
        *(f"{cost.cost:.6g}" if cost else "" for cost in (row.ours, row.jax)),
        row.jax_failure,
    )
    return ",".join(fields)


def write_sizes(sizes: Sequence[int]) -> str:
    """Returns sizes as they are read: "4×16"."""
    return "×".join(map(str, sizes))
