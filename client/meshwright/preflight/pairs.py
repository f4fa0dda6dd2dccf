"""Which hosts exchange data with each other in a preflight, round by round.

Rule: every process of the job computes the same rounds from the same arguments. In a round each host has at most one
partner, so that all pairs of a round run at the same time and a host's time is that of its own pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

Round = Mapping[int, int]
"""Host → its partner, both ways; a host that rests is not in it."""


def choose_rounds(count: int) -> tuple[Round, ...]:
    """Returns ⌈log₂ count⌉ + 1 rounds, fewer if there are not so many different ones; none for one host.

    The rounds are those of a round-robin tournament (circle method), so that no two hosts meet twice. With an odd
    number of hosts one of them rests in each round.
    """
    if count < 2:
        return ()
    places = count + count % 2
    possible = places - 1
    wanted = min(possible, math.ceil(math.log2(count)) + 1)
    return tuple(_pair_up(number * possible // wanted, places, count) for number in range(wanted))


def _pair_up(number: int, places: int, count: int) -> Round:
    """Returns a round of the circle method: the last place stays, the others turn."""
    turning = places - 1
    pairs = [(turning, number), *(((number + i) % turning, (number - i) % turning) for i in range(1, places // 2))]
    return _build_round(pair for pair in pairs if max(pair) < count)


def pair_with(some: Sequence[int], others: Sequence[int], count: int) -> tuple[Round, ...]:
    """Returns `count` rounds in which each of some hosts meets the others in turn, and the others left meet each other.

    Hosts beyond the number of others are not paired.
    """

    def pair_up(number: int) -> Round:
        first = number % len(others)
        turn = [*others[first:], *others[:first]]
        left = turn[len(some) :]
        return _build_round([*zip(some, turn, strict=False), *zip(left[::2], left[1::2], strict=False)])

    return tuple(pair_up(number) for number in range(count if some and others else 0))


def _build_round(pairs: Iterable[tuple[int, int]]) -> Round:
    return {host: partner for a, b in pairs for host, partner in ((a, b), (b, a))}
