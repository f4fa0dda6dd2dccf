"""`make coverage`: the share of lines and branches of each package that the net covers by itself.

The net is every test that uses only public interfaces: HTTP, the command line, public Python names, processes, files.
These tests survive a rewrite, so that code outside their coverage is not protected in a rewrite. Reads the data file of
`coverage run`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import PurePath
from typing import Final

_PLACES: Final = ("client", "service")
_COUNTS: Final = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def main() -> int:
    """Prints a table with a row for each package, lowest coverage first."""
    command = [sys.executable, "-m", "coverage"]
    subprocess.run([*command, "combine", "-q"], check=True)
    told = subprocess.run([*command, "json", "-q", "-o", "-"], check=True, capture_output=True, text=True).stdout
    rooms: dict[str, list[int]] = defaultdict(lambda: [0] * len(_COUNTS))
    for path, file in json.loads(told)["files"].items():
        for name in (find_room(path), "all"):
            rooms[name] = [sum(pair) for pair in zip(rooms[name], map(file["summary"].get, _COUNTS), strict=True)]
    print("| room | lines | reached | branches | reached |\n| --- | --- | --- | --- | --- |")
    for name, (lines, reached, branches, taken) in sorted(rooms.items(), key=lambda room: share(*room[1][2:])):
        print(f"| {name} | {lines} | {share(reached, lines):.1%} | {branches} | {share(taken, branches):.1%} |")
    return 0


def find_room(path: str) -> str:
    """Returns the package of a module, or the module itself if it is at the top level."""
    parts = PurePath(path).parts
    start = next(place for place, part in enumerate(parts) if part in _PLACES)
    return "/".join(parts[start + 1 : start + 3]).removesuffix(".py")


def share(part: int, whole: int) -> float:
    """Returns part ÷ whole; 1 if the whole is 0."""
    return part / whole if whole else 1.0


if __name__ == "__main__":
    sys.exit(main())
