"""Hostlists: many hosts in a short text, "node[01-16,20],gpu3", as Slurm writes them in SLURM_JOB_NODELIST.

Rule: what is no hostlist is refused, never taken for a name. Pure.

Source: slurm.conf(5), NodeName: lists and ranges of numbers in brackets, leading zeros keep the width, several
brackets in one name ("rack[0-63]_blade[0-41]"); Slurm::Hostlist(3): names are separated by commas or white space.
A part behind the last bracket, which Slurm refuses in its configuration, is taken here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from meshwright.errors import SettingsError

MAX_HOSTS: Final = 65_536
_EXAMPLE: Final = "write it as node[01-16,20],gpu3 or rack[0-3]_blade[0-7]"
_ENTRY: Final = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_BRACKET: Final = re.compile(r"\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@dataclass(frozen=True)
class _Numbers:
    """The numbers `first` to `last`, written with at least `width` digits."""

    first: int
    last: int
    width: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def write(self) -> list[str]:
        return [f"{number:0{self.width}}" for number in range(self.first, self.last + 1)]


def parse_hostlist(text: str) -> tuple[str, ...]:
    """Returns the hosts of a hostlist, in its order; in a name with several brackets the last one counts fastest.

    Raises:
        SettingsError: it is none, or names more than 65,536 hosts.
    """
    hosts: list[str] = []
    for entry in split_entries(text):
        hosts += _expand(entry, MAX_HOSTS - len(hosts))
    return tuple(hosts)


def split_entries(text: str) -> tuple[str, ...]:
    """Returns the entries between commas and white space; those inside brackets separate nothing.

    Raises:
        SettingsError: a bracket is not closed, or stands inside another.
    """
    rest = _ENTRY.sub("", text)
    if rest.strip(", \t\r\n"):
        raise SettingsError(f"the hosts {_shorten(text)} have a bracket that opens or closes nothing; {_EXAMPLE}")
    return tuple(_ENTRY.findall(text))


def _expand(entry: str, most: int) -> list[str]:
    fixed, brackets = _BRACKET.split(entry)[::2], _BRACKET.split(entry)[1::2]
    choices = [_parse_bracket(bracket, entry) for bracket in brackets]
    count = math.prod(sum(numbers.count for numbers in ranges) for ranges in choices)
    if count > most:
        raise SettingsError(
            f"{_shorten(entry)} names {count} hosts; a list may name {MAX_HOSTS} in all; name the hosts of one job"
        )
    written = [[text for numbers in ranges for text in numbers.write()] for ranges in choices]
    return [_join(fixed, place) for place in product(*written)]


def _join(fixed: Sequence[str], numbers: Sequence[str]) -> str:
    return fixed[0] + "".join(number + part for number, part in zip(numbers, fixed[1:], strict=True))


def _parse_bracket(bracket: str, entry: str) -> list[_Numbers]:
    return [_parse_range(part.strip(), entry) for part in bracket.split(",")]


def _parse_range(part: str, entry: str) -> _Numbers:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise SettingsError(
            f"{_shorten(entry)} has {_shorten(part)} in brackets; it is a number or a range; {_EXAMPLE}"
        )
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise SettingsError(f"{_shorten(entry)} counts down from {first} to {last}; write {last}-{first}")
    return _Numbers(int(first), int(last), len(first) if first.startswith("0") else 1)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
