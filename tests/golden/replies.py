"""Requests and their replies as text, so that two runs on two machines give the same files.

Rules; nothing else is changed or left out:

1. Fields of `VOLATILE` that have a value have `<their name>` instead: times, ages, numbers of processes and events.
2. In texts a mark stands for what this machine, its installation and this run are called (names of hosts and folders,
   addresses, versions), and for times, ages, process and lease ids, and free space.
3. Floats have 6 significant digits.
4. Keys are in alphabetical order, but for `ORDERED`, whose order says something; components of /health are in the
   order of their names.
5. Texts of several lines are lists of lines, and what fits into a line stands in one.
"""

from __future__ import annotations

import difflib
import json
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
WIDTH: Final = 280
"""Of a line: a device of a plan is one, and a component of /health."""

VOLATILE: Final = frozenset(
    {"age_s", "at", "expires_in_s", "last_seq", "libtpu", "observed_at", "pid", "request_id", "seq", "since"}
)
ORDERED: Final = frozenset({"mesh_shape", "axis_types"})
_IN_TEXTS: Final = (
    (re.compile(r"\d+(?:\.\d+)? (?:ms|s|min|h)(?= (?:ago|left|at most)\b)"), "<age>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| UTC|\+00:00)?"), "<time>"),
    (re.compile(r"(?<=\bsince )\d\d:\d\d:\d\d(?= UTC)"), "<time>"),
    (re.compile(r"(?<=\bpid )\d+"), "<pid>"),
    (re.compile(r"\d+ MiB(?= are free\b)"), "<space>"),
    (re.compile(r"(?<=\blease-)[0-9a-f]{16,32}\b"), "<id>"),
)


@dataclass(frozen=True)
class Golden:
    """A request of a group. `asked` is as in the group's file, without its name and its host."""

    group: str
    name: str
    host: str
    asked: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"

    @property
    def path(self) -> Path:
        """The file with its reply."""
        return FOLDER / "replies" / self.group / f"{self.name}.json"

    def read(self) -> str:
        """Returns what is recorded; nothing, if nothing is."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    def write(self, reply: Mapping[str, Any], words: Mapping[str, str]) -> str:
        """Returns the text of its file. `words`: what a host calls itself → the mark that stands for it."""
        document = {"host": self.host, **self.asked, **normalise(reply, words)}
        return dump(document) + "\n"


def read_requests() -> list[Golden]:
    """Returns the requests of all groups, in the order of their files."""
    found = [
        Golden(path.stem, asked.pop("name"), asked.pop("host"), asked)
        for path in sorted((FOLDER / "requests").glob("*.json"))
        for asked in json.loads(path.read_text(encoding="utf-8"))
    ]
    names = [str(each) for each in found]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    return found


def diff(golden: Golden, text: str) -> str:
    """Returns how a reply differs from the recorded one, as a unified diff; empty: it does not."""
    recorded, now = golden.read().splitlines(), text.splitlines()
    return "\n".join(difflib.unified_diff(recorded, now, f"recorded {golden}", f"now {golden}", lineterm=""))


def normalise(value: Any, words: Mapping[str, str], field: str = "") -> Any:
    """Returns a reply by the rules of this module."""
    match value:
        case None:
            return None
        case _ if field in VOLATILE:
            return f"<{field}>"
        case dict():
            names = value if field in ORDERED else sorted(value)
            return {name: normalise(value[name], words, name) for name in names}
        case list():
            parts = sorted(value, key=operator.itemgetter("name")) if field == "components" else value
            return [normalise(each, words) for each in parts]
        case str():
            return _normalise_text(value, words)
        case float():
            return float(f"{value:.6g}")
        case _:
            return value


def _normalise_text(text: str, words: Mapping[str, str]) -> str | list[str]:
    for word, mark in words.items():
        text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", mark, text)
    for pattern, mark in _IN_TEXTS:
        text = pattern.sub(mark, text)
    return text.splitlines() if "\n" in text else text


def dump(value: Any, indent: str = "") -> str:
    """Returns JSON in which everything that fits into a line stands in one; the document itself never does."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (indent and len(indent) + len(line) <= WIDTH):
        return line
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {dump(each, deeper)}" for name, each in value.items()]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + dump(each, deeper) for each in value) + f"\n{indent}]"
