"""The net, `make coverage`, speaks only of what users see, so that it survives a rebuilding of the insides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NET = ("golden", "process", "contract", "faults", "deploy")
FACADES = {
    *("tests/process/supervised.py", "tests/process/bad_children/sitecustomize.py"),
    *("tests/fakes/altered.py", "tests/fakes/faulty_child.py"),
}
"""Those that know an inside, and say so."""
INTERNAL = re.compile(
    r"\bmeshwright_agent\.\w+|\bimport meshwright_agent\b"
    r"|\bmeshwright\.(?:[\w.]+\.)?_\w+|\bmeshwright\.(?:planning|topology|compiling)\b"
)


def list_words(node: ast.AST) -> list[str]:
    """Returns what a node names: modules with what is taken from them, or a text, which may be a program."""
    match node:
        case ast.Import(names):
            return [f"import {alias.name}" for alias in names]
        case ast.ImportFrom(str(module), names):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Constant(str(text)):
            return [text]
    return []


def find_internals(source: str) -> list[tuple[int, str]]:
    """Returns line and name of each inside that is imported or stands in a text."""
    named = [(getattr(node, "lineno", 0), word) for node in ast.walk(ast.parse(source)) for word in list_words(node)]
    found = [(line, INTERNAL.search(word)) for line, word in named]
    return sorted((line, match[0]) for line, match in found if match)


def list_files() -> Iterator[Path]:
    """Yields the files of the net, and those of tests that they import."""
    left = [ROOT / "tests/conftest.py", *(path for room in NET for path in (ROOT / "tests" / room).rglob("*.py"))]
    seen = set(left)
    while left:
        yield (path := left.pop())
        words = (word for node in ast.walk(ast.parse(path.read_text())) for word in list_words(node))
        names = (word for word in words if word.startswith("tests."))
        paths = {ROOT / f"{part.replace('.', '/')}.py" for name in names for part in (name, name.rpartition(".")[0])}
        new = {path for path in paths - seen if path.is_file()}
        seen |= new
        left += new


def test_no_file_of_the_net_names_an_inside() -> None:
    paths = {path.relative_to(ROOT).as_posix(): path for path in list_files()}
    found = {name: find_internals(path.read_text()) for name, path in paths.items()}
    wrong = [f"{name}:{line} {inside}" for name, each in found.items() if name not in FACADES for line, inside in each]
    assert not wrong, f"tests of users' view: ask over HTTP, by command or public names\n{chr(10).join(wrong)}"
    assert all(found[name] for name in FACADES)
