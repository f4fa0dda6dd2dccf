"""A page with parts that programs write: each stands between two marks of its own, the rest is people's."""

from __future__ import annotations


def put_section(page: str, name: str, text: str) -> str:
    """Returns the page with `text` between the marks of this name; a page without marks gets them at its end.

    Raises:
        ValueError: one mark without the other, one twice, or in the wrong order.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    marks = page.count(begin), page.count(end)
    if marks == (0, 0):
        return f"{page.rstrip()}\n\n{begin}\n{text}{end}\n".lstrip()
    if marks != (1, 1) or page.index(begin) > page.index(end):
        raise ValueError(f"the page has {marks[0]} × {begin} and {marks[1]} × {end}; it needs one each, in this order")
    return f"{page.partition(begin)[0]}{begin}\n{text}{end}{page.partition(end)[2]}"
