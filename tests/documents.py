"""Markdown documents as data: fenced blocks, tables under headings, links; and how printed output is compared.

A fence's info string says what a block is, invisibly to readers:

    console              commands after `$ `, each followed by what it prints; run, and compared for shape
    python               run, in the order of the document, in one process
    python file=train.py written to that file before anything runs
    text                 right after a python block: what that block prints; elsewhere just a picture
    sh                   for readers; not run

Pure: runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

_FENCE: Final = re.compile(
    r"^(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=ticks)[ \t]*$", re.MULTILINE | re.DOTALL
)
_HEADING: Final = re.compile(r"^(#{1,6}) +(.+?)[ #]*$", re.MULTILINE)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

_UNITS: Final = r"(?: ?(?:[kKMGT]i?B(?:/s)?|B(?:/s)?|[kMGTP]?FLOP/s|ns|µs|ms|s|min|h|d)\b)?"
_MASKS: Final = (
    (re.compile(r"\brun-[0-9a-f]{8,}…?"), "run-R"),
    (re.compile(r"\b(?<!mw1-)[0-9a-f]{16}\b"), "R"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z| UTC)?"), "AT"),
    (re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?" + _UNITS), "N"),
    (re.compile(r"(?<= )\?(?= |$)", re.MULTILINE), "N"),
    (re.compile(r"[─-]{3,}"), "──"),
    (re.compile(r"\s+"), ""),
)
"""What differs between two machines or two runs: ids, times, figures with their units, spaces and rules."""


@dataclass(frozen=True)
class Block:
    """A fenced block. `line`: of its first line of content, counted from 1."""

    document: str
    line: int
    language: str
    options: dict[str, str]
    text: str
    follows: str
    """The text between the block before it and this one."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a console block, and what it prints."""

    document: str
    line: int
    text: str
    output: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Document:
    """One Markdown file of the repository."""

    name: str
    text: str = field(repr=False)

    @classmethod
    def read(cls, name: str) -> Document:
        return cls(name, (ROOT / name).read_text(encoding="utf-8"))

    def blocks(self, language: str = "") -> tuple[Block, ...]:
        return tuple(block for block in self._list_blocks() if language in ("", block.language))

    def _list_blocks(self) -> Iterator[Block]:
        before = 0
        for match in _FENCE.finditer(self.text):
            language, *options = match["info"].split() or [""]
            line = self.text.count("\n", 0, match.start("body")) + 1
            pairs = dict(option.split("=", 1) for option in options)
            yield Block(self.name, line, language, pairs, match["body"], self.text[before : match.start()])
            before = match.end()

    def commands(self) -> tuple[Command, ...]:
        """The commands of all console blocks, in order."""
        return tuple(command for block in self.blocks("console") for command in parse_console(block))

    def table(self, heading: str, first: str = "") -> list[list[str]]:
        """The rows of the table under a heading whose head begins with `first`, without that head.

        Cells as written, backquotes removed.
        """
        tables = [rows for rows in _list_tables(self.section(heading)) if first in ("", rows[0][0])]
        assert tables, f"{self.name} has no table {first!r} under {heading!r}"
        return tables[0][2:]

    def section(self, heading: str) -> str:
        """The text from a heading to the next of its rank or higher."""
        found = [match for match in _HEADING.finditer(self._blank_fences()) if match[2].replace("`", "") == heading]
        assert len(found) == 1, f"{self.name} has {len(found)} headings {heading!r}"
        rank, start = len(found[0][1]), found[0].end()
        ends = [m.start() for m in _HEADING.finditer(self._blank_fences(), start) if len(m[1]) <= rank]
        return self.text[start : ends[0] if ends else None]

    def anchors(self) -> set[str]:
        """The names that links to headings use, as GitHub makes them."""
        titles = [match[2].lower() for match in _HEADING.finditer(self._blank_fences())]
        return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}

    def links(self) -> list[str]:
        return _LINK.findall(self._blank_fences())

    def _blank_fences(self) -> str:
        """The text with blocks made blank, so that offsets stay and comments in code are no headings."""
        return _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), self.text)


def _list_tables(text: str) -> list[list[list[str]]]:
    tables = re.findall(r"(?:^\|.*\n?){2,}", text, re.MULTILINE)
    return [[parse_row(line) for line in table.splitlines()] for table in tables]


def parse_row(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
    return [cell.strip().replace("`", "").replace("\\|", "|") for cell in cells]


def parse_console(block: Block) -> list[Command]:
    """Commands begin with `$ `, and go on on the next line after a backslash."""
    commands: list[Command] = []
    for offset, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            commands.append(Command(block.document, block.line + offset, line[2:], ""))
            continue
        assert commands, f"{block}: a console block begins with `$ `"
        last = commands[-1]
        if last.text.endswith("\\") and not last.output:
            commands[-1] = Command(last.document, last.line, f"{last.text}\n{line}", "")
        else:
            commands[-1] = Command(last.document, last.line, last.text, f"{last.output}{line}\n")
    return commands


def read_settings() -> dict[str, str]:
    """Returns the agent's variables and their defaults, as its page has them (a test holds that page to the code)."""
    return {row[0]: row[2] for row in Document.read("docs/reference/settings.md").table("All settings")}


def list_printed(blocks: Sequence[Block]) -> dict[int, Block]:
    """Returns, by the index of a python block, the text block right after it."""
    return {
        index: after
        for index, (before, after) in enumerate(pairwise(blocks))
        if before.language == "python" and after.language == "text" and not after.follows.strip()
    }


def mask(text: str, masks: Sequence[tuple[re.Pattern[str], str]] = _MASKS) -> str:
    """Returns a text's shape: figures, ids, times and where lines are folded are the same for all."""
    for pattern, stand_in in masks:
        text = pattern.sub(stand_in, text)
    return text


def has_shape(actual: str, expected: str, *, has_figures: bool = False) -> bool:
    """Whether what was printed looks like what is documented; `…` in the document stands for anything.

    Args:
        actual: what was printed.
        expected: what is documented.
        has_figures: figures are the same on every machine, as those of plans without an agent.
    """
    masks = _MASKS[-2:] if has_figures else _MASKS
    pattern = ".*".join(re.escape(part) for part in mask(expected, masks).split("…"))
    return re.fullmatch(pattern, mask(actual, masks), re.DOTALL) is not None
