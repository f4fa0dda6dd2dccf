"""Texts from life, changed: noise, cuts, repeats, splices, and numbers and marks that parsers stumble over."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

LONGEST: Final = 512
_NUMBERS: Final = (
    *(b"0", b"-1", b"1", b"255", b"65536", b"4294967296", b"18446744073709551616"),
    *(b"9" * 30, b"9" * 400, b"9" * 4301, b"1e999", b"-0.0", b"0x1f", b"1_0", "٣".encode()),
)
_MARKS: Final = (
    *(b"\n", b"\0", b" ", b"\t", b",", b":", b"-", b"=", b"(", b")", b"/", b"x", b"{", b"}", b"[", b"]", b'"'),
    *(b"null", b"true", b"NaN", b"\xff\xfe", b"\xed\xa0\x80", "\u2028".encode(), b"\r\n", b"max", b"kB"),
)


def vary(chance: random.Random, corpus: list[bytes]) -> bytes:
    """Returns one to six changes of an input that was kept; those kept last are taken more often."""
    data = corpus[max(chance.randrange(len(corpus)), chance.randrange(len(corpus)))]
    for _ in range(chance.randint(1, 6)):
        data = chance.choice(_CHANGES)(chance, data, corpus)
    return data[:LONGEST]


def _pick(chance: random.Random, data: bytes) -> slice:
    start = chance.randint(0, len(data))
    return slice(start, min(len(data), start + chance.choice((0, 1, 1, 2, 4, 16, 64))))


def _replace(data: bytes, where: slice, new: bytes) -> bytes:
    return data[: where.start] + new + data[where.stop :]


def _noise(chance: random.Random, data: bytes, _corpus: list[bytes]) -> bytes:
    return _replace(data, _pick(chance, data), chance.randbytes(chance.choice((1, 1, 2, 8))))


def _cut(chance: random.Random, data: bytes, _corpus: list[bytes]) -> bytes:
    return _replace(data, _pick(chance, data), b"")


def _repeat(chance: random.Random, data: bytes, _corpus: list[bytes]) -> bytes:
    where = _pick(chance, data)
    return _replace(data, where, data[where] * chance.choice((2, 3, 50)))


def _word(chance: random.Random, data: bytes, _corpus: list[bytes]) -> bytes:
    return _replace(data, _pick(chance, data), chance.choice(_NUMBERS + _MARKS))


def _number(chance: random.Random, data: bytes, _corpus: list[bytes]) -> bytes:
    """Puts another number in the place of one that stands there."""
    starts = [place for place, byte in enumerate(data) if byte in b"0123456789"]
    if not starts:
        return data
    start = stop = chance.choice(starts)
    while stop < len(data) and data[stop] in b"0123456789":
        stop += 1
    return _replace(data, slice(start, stop), chance.choice(_NUMBERS))


def _splice(chance: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    other = chance.choice(corpus)
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


_CHANGES: Final[tuple[Callable[[random.Random, bytes, list[bytes]], bytes], ...]] = (
    *(_noise, _cut, _repeat, _word, _word, _number, _splice),
)
