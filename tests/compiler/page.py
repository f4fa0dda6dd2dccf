"""A page with parts that programs write: each stands between two marks of its own, the rest is people's."""

from __future__ import annotations


def put_section(page: str, name: str, text: str) -> str:
    """Returns the page with `text` between the marks of this name.

    Raises:
        ValueError: a mark is missing, or they stand in the wrong order.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, first, rest = page.partition(begin)
    _, last, tail = rest.partition(end)
    if not (first and last):
        raise ValueError(f"the page needs {begin} and, after it, {end}")
    return f"{head}{begin}\n{text}{end}{tail}"
