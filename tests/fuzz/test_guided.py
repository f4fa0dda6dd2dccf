"""No input breaks a parser: thousands of them, led by what they reach. Every one of facts and access is on the list."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from types import ModuleType

import pytest

import meshwright_agent.access
import meshwright_agent.facts
from tests.fuzz import scale
from tests.fuzz.access import PARSERS
from tests.fuzz.guided import Target, describe, fuzz
from tests.fuzz.targets import FACTS, TARGETS

pytestmark = pytest.mark.exhaustive

INPUTS = 100


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_parser(name: str) -> None:
    found = fuzz(TARGETS[name], inputs=scale(INPUTS))
    assert not found.broken, describe(found.broken)
    assert found.tried == scale(INPUTS)
    assert len(found.edges) >= 1, "nothing of ours was run"


@pytest.mark.parametrize(
    ("room", "known"), [(meshwright_agent.facts, FACTS), (meshwright_agent.access, PARSERS)], ids=["facts", "access"]
)
def test_every_parser_of_these_rooms_is_fuzzed(room: ModuleType, known: Mapping[str, Target]) -> None:
    there = set()
    for info in pkgutil.iter_modules(room.__path__):
        module = importlib.import_module(f"{room.__name__}.{info.name}")
        functions = inspect.getmembers(module, inspect.isfunction)
        there |= {
            f"{info.name}.{name}"
            for name, function in functions
            if name.startswith("parse_") and function.__module__ == module.__name__
        }
    assert there == set(known), "add the parser to tests/fuzz, with seeds as they are met in life"


# ---- the fuzzer itself ----------------------------------------------------------------------------------------------


def break_on(word: bytes) -> Target:
    """A target that breaks where `word` stands in its input, byte by byte deeper: chance alone would not find it."""
    from meshwright_agent.worker.protocol import FrameBuffer

    def run(data: bytes) -> None:
        for line in FrameBuffer().feed(data):
            if line == word:
                raise RuntimeError("found")

    return Target(run, (b"aa\nbb\n",))


def test_it_finds_a_fault_that_is_there_tells_the_input_and_finds_it_again() -> None:
    found = fuzz(break_on(b"bb:"), inputs=20_000, most_broken=1)
    ((data, error),) = found.broken
    assert b"bb:\n" in data
    assert str(error) == "found"
    assert repr(data)[:50] in describe(found.broken)
    assert fuzz(break_on(b"bb:"), inputs=20_000, most_broken=1).broken[0][0] == data


def test_what_a_contract_allows_is_no_fault_and_everything_else_is() -> None:
    def refuse(data: bytes) -> None:
        raise KeyError if data else ValueError

    assert not fuzz(Target(refuse, (b"x",), (KeyError, ValueError)), inputs=50).broken
    assert fuzz(Target(refuse, (b"x",), (ValueError,)), inputs=50).broken


def test_inputs_that_reach_something_new_are_kept() -> None:
    found = fuzz(TARGETS["worker protocol, frames"], inputs=500)
    assert 5 < len(found.corpus) < 500
