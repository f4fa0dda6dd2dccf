"""A coverage-guided fuzzer: inputs that take a step between two instructions that no other took are kept and varied.

Rule: same target, seeds and number: same inputs, so that a failure can be made again. Works on every Python that the
package does, with the interpreter's own trace function; only our sources are traced. Knows no target.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import meshwright
import meshwright_agent

Edge = tuple[object, int, int]
"""A code object, and two of its instructions that were run one after the other: also branches within a line."""

LONGEST: Final = 512
_SOURCES: Final = tuple(str(Path(package.__path__[0])) for package in (meshwright, meshwright_agent))
_NUMBERS: Final = (
    *(b"0", b"-1", b"1", b"255", b"65536", b"4294967296", b"18446744073709551616"),
    *(b"9" * 30, b"9" * 400, b"9" * 4301, b"1e999", b"-0.0", b"0x1f", b"1_0", "٣".encode()),
)
_MARKS: Final = (
    *(b"\n", b"\0", b" ", b"\t", b",", b":", b"-", b"=", b"(", b")", b"/", b"x", b"{", b"}", b"[", b"]", b'"'),
    *(b"null", b"true", b"NaN", b"\xff\xfe", b"\xed\xa0\x80", "\u2028".encode(), b"\r\n", b"max", b"kB"),
)


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        run: takes an input; returns, or raises one of `allowed`. Anything else is a bug.
        seeds: inputs as they are met in life.
        allowed: exceptions that the documented contract names.
    """

    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...] = ()


@dataclass
class Finding:
    """What became of it: how many inputs were tried, which are worth keeping, and those that broke the target."""

    tried: int = 0
    corpus: list[bytes] = field(default_factory=list)
    edges: set[Edge] = field(default_factory=set)
    broken: list[tuple[bytes, BaseException]] = field(default_factory=list)


def fuzz(target: Target, *, inputs: int, seed: int = 0, most_broken: int = 3) -> Finding:
    """Returns what `inputs` inputs did to a target: its seeds, then what chance and coverage made of them."""
    chance, found = random.Random(seed), Finding()
    queue, life = list(target.seeds), list(target.seeds) or [b""]
    while found.tried < inputs and len(found.broken) < most_broken:
        data = queue.pop() if queue else vary(chance, life + found.corpus)
        edges: set[Edge] = set()
        found.tried += 1
        try:
            with _tracing(edges):
                target.run(data)
        except target.allowed:
            pass
        except Exception as error:
            found.broken.append((data, error))
        if not found.corpus or not edges <= found.edges:
            found.corpus.append(data)
            found.edges |= edges
    return found


def vary(chance: random.Random, corpus: list[bytes]) -> bytes:
    """Returns one to six changes of an input that was kept; those kept last are taken more often."""
    data = corpus[max(chance.randrange(len(corpus)), chance.randrange(len(corpus)))]
    for _ in range(chance.randint(1, 6)):
        data = chance.choice(_CHANGES)(chance, data, corpus)
    return data[:LONGEST]


@contextmanager
def _tracing(edges: set[Edge]) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(_build_tracer(edges))
    try:
        yield
    finally:
        sys.settrace(before)


def _build_tracer(edges: set[Edge]) -> Callable[[FrameType, str, Any], Any]:
    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_SOURCES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        last = -1

        def step(here: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "opcode":
                edges.add((code, last, here.f_lasti))
                last = here.f_lasti
            return step

        return step

    return trace


# ---- changes --------------------------------------------------------------------------------------------------------


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


def describe(broken: Iterable[tuple[bytes, BaseException]]) -> str:
    """Returns the inputs that broke a target, one a line, to be pasted into a test."""
    return "\n".join(f"{type(error).__name__}: {error!s:.120} on {data!r:.300}" for data, error in broken)
