"""How large the project is, beside a limit for each figure: `python tools/size.py`, or `make size`.

A code line is a line that is neither docstring, comment, blank nor import. Modules are files with code, without
`__init__.py` and `__main__.py`. The exit status is 1 where a figure passes its limit. Lower a limit in the commit that
makes the figure smaller; raise one only with the reason in the commit message.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import typer

from meshwright import errors
from meshwright.cli import app
from meshwright_agent.health.monitor import KINDS
from meshwright_agent.metrics import METRICS
from meshwright_agent.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[1]
CLIENT: Final = ROOT / "client" / "meshwright"
PLANNER: Final = ("planning", "topology", "compiling", "_verify", "verify.py")

LIMITS: Final = {
    "code lines": 30_790,
    "code lines of the service": 9_310,
    "code lines of planner, topology, compiler, verify": 11_930,
    "code lines of the rest of the client": 9_560,
    "modules": 267,
    "modules of the service": 64,
    "modules of planner, topology, compiler, verify": 94,
    "modules of the rest of the client": 109,
    "code lines of tests and tools": 42_860,
    "settings": 28,
    "metrics": 20,
    "component kinds": 9,
    "error codes": 19,
    "fields in OpenAPI": 575,
    "most options of a command": 23,
}

_NO_CODE: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """Code lines and modules of some files."""

    lines: int
    modules: int


def count_lines(source: str) -> int:
    """Returns the code lines of a module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def measure(*paths: Path) -> Size:
    """Returns the size of files, and of all Python files under folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    counts = {file: count_lines(file.read_text()) for file in files}
    named = [file for file, count in counts.items() if count and file.name not in {"__init__.py", "__main__.py"}]
    return Size(sum(counts.values()), len(named))


def list_commands(command: click.Command, name: str = "meshwright") -> Iterator[tuple[str, int]]:
    """Yields each command with the number of its options."""
    yield name, sum(parameter.param_type_name == "option" for parameter in command.params)
    for word, child in getattr(command, "commands", {}).items():
        yield from list_commands(child, f"{name} {word}")


def list_codes(root: type[errors.ProblemError] = errors.ProblemError) -> Iterator[str]:
    """Yields the error codes of a class and those below it."""
    for child in root.__subclasses__():
        yield from filter(None, [child.code])
        yield from list_codes(child)


def list_figures() -> dict[str, int]:
    """Returns all figures by the names of `LIMITS`."""
    service = measure(ROOT / "service")
    planner = measure(*(CLIENT / name for name in PLANNER))
    client = measure(ROOT / "client")
    document: dict[str, Any] = json.loads((ROOT / "tests" / "contract" / "openapi.json").read_text())
    schemas = document["components"]["schemas"].values()
    return {
        "code lines": service.lines + client.lines,
        "code lines of the service": service.lines,
        "code lines of planner, topology, compiler, verify": planner.lines,
        "code lines of the rest of the client": client.lines - planner.lines,
        "modules": service.modules + client.modules,
        "modules of the service": service.modules,
        "modules of planner, topology, compiler, verify": planner.modules,
        "modules of the rest of the client": client.modules - planner.modules,
        "code lines of tests and tools": measure(ROOT / "tests", ROOT / "tools").lines,
        "settings": len(Settings.model_fields),
        "metrics": len(METRICS),
        "component kinds": len(KINDS),
        "error codes": len(set(list_codes())),
        "fields in OpenAPI": sum(len(schema.get("properties", {})) for schema in schemas),
        "most options of a command": max(count for _, count in list_commands(typer.main.get_command(app))),
    }


def main() -> int:
    """Prints the table; returns 1 where a limit is passed."""
    figures = list_figures()
    width = max(map(len, figures))
    print(f"{'':{width}}   now      limit")
    for name, figure in figures.items():
        mark = "   <- over" if figure > LIMITS[name] else ""
        print(f"{name:{width}} {figure:>7,} {LIMITS[name]:>10,}{mark}")
    return int(any(figure > LIMITS[name] for name, figure in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
