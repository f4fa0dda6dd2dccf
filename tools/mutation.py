"""`make mutation`: measures how many small faults, inserted one at a time into a package, its tests find.

It takes a seeded sample of cosmic-ray's mutants of each package, without mutants of type annotations, which tests
cannot detect. Each mutant is written to a copy of the project. The package's tests run there until the first failure.
Prints the diff of each undetected mutant, and the share of detected mutants.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT: Final = Path(__file__).resolve().parents[1]
SAMPLE: Final = 150
SEED: Final = 23
JOBS: Final = 2
COPIED: Final = ("client", "service", "tests", "deploy", "docs", "tools", "pyproject.toml", "Makefile", "Dockerfile")

FORKS: Final = multiprocessing.get_context("forkserver")
"""Loads the common imports of all tests once, which saves half of the time."""
FORKS.set_forkserver_preload(["fastapi", "httpx", "hypothesis", "numpy", "prometheus_client", "pytest", "uvicorn"])

Span = tuple[tuple[int, int], tuple[int, int]]
"""First and last (line, column)."""


@dataclass(frozen=True)
class Room:
    """Modules, and the pytest runs that should find their faults. A run starts if the previous one found nothing.

    Attributes:
        modules: patterns below the root.
        runs: arguments of pytest.
        exhaustive: files whose exhaustive tests run last. `make test` does not detect faults that only these find.
    """

    modules: tuple[str, ...]
    runs: tuple[tuple[str, ...], ...]
    exhaustive: tuple[str, ...] = ()


_ORDER: Final = ("assign", "colors", "granules", "importance", "order", "score", "torus", "dcn")

ROOMS: Final = {
    "leases": Room(
        ("service/meshwright_agent/leases.py",),
        (("tests/unit/leases",), ("tests/golden", "-k", "lease")),
        ("tests/process/test_leases.py",),
    ),
    "access": Room(
        ("service/meshwright_agent/auth.py",),
        (("tests/unit/test_auth.py", "tests/unit/routes/test_app.py"), ("tests/process/test_access.py",)),
        ("tests/process/test_access_tls.py",),
    ),
    "order": Room(
        tuple(f"client/meshwright/planning/{name}.py" for name in ("device_order", "granules", "torus")),
        (
            tuple(f"tests/unit/planning/test_{name}.py" for name in _ORDER),
            ("tests/unit/planning/test_mesh.py", "tests/unit/planning/test_any_topology.py", "tests/unit/mesh"),
            ("tests/golden", "-k", "plan or fingerprints"),
        ),
        ("tests/unit/planning", "tests/unit/mesh"),
    ),
    "health": Room(
        ("service/meshwright_agent/health/*.py",),
        (("tests/unit/health",), ("tests/golden", "-k", "health")),
        ("tests/process/test_agent_health.py", "tests/process/test_health_events.py"),
    ),
}


@dataclass(frozen=True)
class Mutant:
    """A module below the root, and its code with one fault."""

    module: str
    code: str

    def write_diff(self) -> str:
        """Returns the diff of the mutant, with one line of context."""
        before = (ROOT / self.module).read_text().splitlines()
        lines = difflib.unified_diff(before, self.code.splitlines(), self.module, self.module, lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if tests fail without a fault."""
    parser = argparse.ArgumentParser(prog="make mutation", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}; default: all")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help=f"mutants of a room; default: {SAMPLE}")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.rooms if name not in ROOMS]:
        parser.error(f"there is no room {unknown[0]}; give some of {', '.join(ROOMS)}")
    for name in asked.rooms or ROOMS:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            copies = [copy_project(Path(folder) / str(number)) for number in range(JOBS)]
            if not measure(name, copies, draw_mutants(ROOMS[name], asked.sample)):
                print(f"{name}: its tests fail without any fault", file=sys.stderr)
                return 1
    return 0


def draw_mutants(room: Room, count: int) -> list[Mutant]:
    """Returns `count` mutants, drawn from all mutants that cosmic-ray's operators make of the package's modules."""
    places = [
        (path, name, number)
        for pattern in room.modules
        for path in sorted(ROOT.glob(pattern))
        for name, number in list_mutations(path.read_text())
    ]
    drawn = random.Random(SEED).sample(places, min(count, len(places)))
    return [
        Mutant(str(path.relative_to(ROOT)), mutate_code(path.read_text(), get_operator(name)(), number))
        for path, name, number in drawn
    ]


def list_mutations(code: str) -> Iterator[tuple[str, int]]:
    """Yields the operators that change this code, each with the index of the changed place."""
    tree, hidden = get_ast(code), list_annotations(code)
    for name in operator_names():
        if get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        spans = (span for node in ast_nodes(tree) for span in operator.mutation_positions(node))
        for number, (start, end) in enumerate(spans):
            if not any(first <= start and end <= last for first, last in hidden):
                yield name, number


def list_annotations(code: str) -> list[Span]:
    """Returns the positions of type annotations."""
    parts = [
        part
        for node in ast.walk(ast.parse(code))
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(part, ast.expr)
    ]
    return [((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)) for part in parts]


def copy_project(folder: Path) -> Path:
    """Copies the files that the tests need to the folder, and returns the folder."""
    for name in (*COPIED, *(path.name for path in ROOT.glob("*.md"))):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def measure(name: str, copies: Sequence[Path], mutants: Sequence[Mutant]) -> bool:
    """Prints the faults that the package's tests find. Returns False if the tests fail without a fault."""
    room, began_s = ROOMS[name], time.perf_counter()
    if not all(passes(copies[0], arguments, 3600) for arguments in list_runs(room)):
        return False
    limit_s = 3 * (time.perf_counter() - began_s) + 10
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def find(mutant: Mutant) -> int | None:
        copy = free.get()
        write_module(copy / mutant.module, mutant.code)
        try:
            found = (at for at, arguments in enumerate(list_runs(room)) if not passes(copy, arguments, limit_s))
            return next(found, None)
        finally:
            write_module(copy / mutant.module, (ROOT / mutant.module).read_text())
            free.put(copy)

    survivors = late = 0
    with ThreadPoolExecutor(len(copies)) as pool:
        for mutant, found in zip(mutants, pool.map(find, mutants), strict=True):
            if found is None or found == len(room.runs):
                survivors += found is None
                late += found is not None
                print("found by an exhaustive test" if found else "not found", mutant.module)
                print(mutant.write_diff(), flush=True)
    killed, count = len(mutants) - survivors, len(mutants)
    print(
        f"{name}: {killed} of {count} mutants found, {killed / count:.0%}; {late} by exhaustive tests alone", flush=True
    )
    return True


def list_runs(room: Room) -> list[tuple[str, ...]]:
    """Returns the arguments of each run of pytest, the exhaustive tests last."""
    runs = [("-m", "not exhaustive", *arguments) for arguments in room.runs]
    return [*runs, ("-m", "exhaustive", *room.exhaustive)] if room.exhaustive else runs


def write_module(path: Path, code: str) -> None:
    """Writes a module, and deletes its bytecode, which Python validates only by second and size."""
    path.write_text(code)
    Path(cache_from_source(path)).unlink(missing_ok=True)


def passes(copy: Path, arguments: Sequence[str], limit_s: float) -> bool:
    """Returns whether these tests pass in this copy within the time limit; also True without matching tests."""
    process = FORKS.Process(target=run_tests, args=(copy, arguments))
    process.start()
    try:
        process.join(limit_s)
        return process.exitcode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def run_tests(copy: Path, arguments: Sequence[str]) -> None:
    """Runs pytest in a copy of the project until the first failure, then exits. Call it in a separate process."""
    os.setsid()
    os.chdir(copy)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    paths = [str(copy / name) for name in ("client", "service", ".")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    loaded = "ignore::pytest.PytestAssertRewriteWarning"  # some of its plugins are already loaded
    sys.exit(pytest.main(["-q", "-x", "-W", loaded, "-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments]))


if __name__ == "__main__":
    sys.exit(main())
