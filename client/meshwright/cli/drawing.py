"""Drawing: a mesh as a grid of text, which shows the place of each device.

Rule: the last axis runs across, the one before it down; each place of the axes further out has its own grid. Uses
names, sizes and labels only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence


def draw_mesh(shape: Mapping[str, int], labels: Sequence[str], *, width: int = 100) -> tuple[str, ...]:
    """Returns the lines of the drawing.

    Args:
        shape: axis name to size, outermost first.
        labels: one per device, row-major; each is in the drawing exactly once.
        width: the maximum columns of a line; a longer row continues in a grid below.

    Raises:
        ValueError: the numbers of labels and places differ.
    """
    if math.prod(shape.values()) != len(labels):
        raise ValueError(f"mesh {dict(shape)} has {math.prod(shape.values())} places; got {len(labels)} labels")
    axes = list(shape.items())
    across = _name_places(*axes[-1]) if axes else ("",)
    down = _name_places(*axes[-2]) if len(axes) > 1 else ("",)
    lines: list[str] = []
    for number, outer in enumerate(itertools.product(*(_name_places(*axis) for axis in axes[:-2]))):
        start = number * len(across) * len(down)
        rows = [labels[start + row * len(across) :][: len(across)] for row in range(len(down))]
        lines += [", ".join(outer)] if outer else []
        lines += _draw_grid(across, down, rows, width)
    return tuple(lines)


def _name_places(name: str, size: int) -> tuple[str, ...]:
    return tuple(f"{name}={place}" for place in range(size))


def _draw_grid(across: Sequence[str], down: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    cell = 2 + max(len(text) for text in (*across, *itertools.chain(*rows)))
    head = max(len(name) for name in down)
    band = max(1, (width - head) // cell)
    for first in range(0, len(across), band):
        columns = slice(first, first + band)
        yield " " * head + "".join(f"{name:>{cell}}" for name in across[columns])
        for name, row in zip(down, rows, strict=True):
            yield f"{name:<{head}}" + "".join(f"{label:>{cell}}" for label in row[columns])
