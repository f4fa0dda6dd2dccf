"""Every question to NVML × every error, for one card and for all: no card without a required answer is green.

The questions and the errors are the product's own lists, so that a new one is covered by itself. Each cell goes from
the driver's reply to the exit codes of `meshwright health`; `tests/process/test_unanswered_questions.py` has an agent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright.cli.health import EXIT_CODES, find_outcome
from meshwright.wire.health import select_hardware
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.facts.nvidia import read_nvidia
from meshwright_agent.facts.nvml import QUESTIONS, Query
from meshwright_agent.facts.sysfs import Roots
from meshwright_agent.health.events import Finding
from tests.fakes.nvml import NO_TABLE, FakeNvml
from tests.fakes.tree import RECORDED
from tests.fakes.well import WELL
from tests.unit.health.test_monitor import Scene

ERRORS = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
CODES = (*ERRORS, 12345)
NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED = 3, 13, 26
MARGINS = {"margin": 27, "slowdown_margin": -2, "shutdown_margin": -8}
FIELDS: Mapping[str, dict[str, Any]] = {
    **dict.fromkeys(("dgx-h100", "mig-a100", "pcie-l40s"), MARGINS),
    "pcie-a100": {**MARGINS, "remapped": None, "retirement_pending": 0},
}
"""Hosts that are asked each question between them."""
OF_ALL_CARDS = ("init", "count", "driver_version", "cuda_version", "shutdown")
"""Questions that are not about one card."""
BEFORE_A_CARD = ("init", "count", "handle")
UNHEARD = ("shutdown", "power_limit_watts", "power_default_watts")
"""A question after the look, and those of the power limits: their answers change no state."""


def write_key(question: Query) -> str:
    """Returns how the fake is told to fail this question and no other."""
    if question.field_id is not None:
        return f"field:{question.field_id}"
    shared = [each for each in QUESTIONS.values() if each.function == question.function]
    return question.function if len(shared) == 1 else f"{question.function}/{question.arguments[-1]}"


@dataclass(frozen=True)
class Host:
    """A recorded host of two cards, of which everything is well."""

    scene: Scene
    document: Mapping[str, Any]
    base: HostFacts

    @property
    def uuid(self) -> str:
        return str(self.document["gpus"][0]["uuid"])

    def read(self, fail: Mapping[str, int]) -> HostFacts:
        found = read_nvidia(FakeNvml(self.document, fail), self.scene.machine.roots, NO_TABLE)
        return replace(
            self.base, gpus=found.gpus, links=found.links, driver=found.driver, problems=found.problems,
            refused=found.refused,
        )  # fmt: skip


def build_host(name: str, folder: Path) -> Host:
    document = json.loads((RECORDED / name / "nvml.json").read_text())
    gpus = [{**gpu, **WELL, **FIELDS[name], "index": at} for at, gpu in enumerate(document["gpus"][:2])]
    for gpu in gpus:
        gpu["nvlinks"] = gpu["nvlinks"] and gpu["nvlinks"][:2]
    scene = Scene(folder, machine=name)
    return Host(scene, {**document, "gpus": gpus}, replace(scene.read(), kernel_log=None))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> list[Host]:
    return [build_host(name, tmp_path_factory.mktemp(name)) for name in FIELDS]


def find_host(hosts: list[Host], key: str) -> Host:
    """Returns a host that asks this question."""
    return next(host for host in hosts if host.read({key: 999}) != host.read({}))


NOTHING: Mapping[str, int] = {}


def find_green(host: Host, fail: Mapping[str, int] = NOTHING, places: Collection[int] = (0, 1)) -> list[str]:
    """Returns what is green on a fresh agent after one look: the host, devices of the cards in these places, checks."""
    return list(_find_green(host, fail, places))


def _find_green(host: Host, fail: Mapping[str, int], places: Collection[int]) -> Iterator[str]:
    host.scene.dump = None
    host.scene.start()
    facts = host.scene.look(host.read(fail))
    now = host.scene.clock.now()
    host.scene.registry.report("worker", Finding("healthy", "answers"), at=now)
    health = host.scene.registry.view(now)
    if health.state == "healthy":
        yield "the host"
    for gpu in facts.gpus:
        if gpu.index in places and host.scene.state(f"device:{gpu.key}") == "healthy":
            yield f"device:{gpu.key}"
    for style in EXIT_CODES:
        seen = select_hardware(health) if style == "slurm" else health
        if EXIT_CODES[style][find_outcome(style, seen, ())] == 0:
            yield f"health --format {style}"


def test_a_host_that_answers_everything_is_green(hosts: list[Host]) -> None:
    for host in hosts:
        devices = [f"device:{gpu.key}" for gpu in host.read({}).gpus]
        assert find_green(host) == ["the host", *devices, *(f"health --format {style}" for style in EXIT_CODES)]


def test_no_question_is_asked_that_is_not_on_the_list(hosts: list[Host]) -> None:
    listed = {question.function for question in QUESTIONS.values()}
    asked: set[str] = set()
    for host in hosts:
        nvml = FakeNvml(host.document)
        read_nvidia(nvml, Roots(host.scene.machine.roots.sysfs), NO_TABLE)
        asked |= nvml.asked
    assert asked == listed


@pytest.mark.parametrize(("name", "is_one"), [
    (name, is_one)
    for name, question in QUESTIONS.items() for is_one in (True, False)
    if question.parts and not (is_one and name in OF_ALL_CARDS)
])  # fmt: skip
def test_no_card_is_green_of_which_a_required_question_has_no_answer(
    hosts: list[Host], name: str, is_one: bool
) -> None:
    question = QUESTIONS[name]
    key = write_key(question)
    host = find_host(hosts, key)
    asked = {gpu.index for gpu in host.read({}).gpus if gpu.health and name in (*gpu.health.answers, *BEFORE_A_CARD)}
    green = {}
    for code in CODES:
        fail = {f"{key}:{host.uuid}" if is_one else key: code}
        if not is_absent(question, code, is_one=is_one):
            green[ERRORS.get(code, code)] = find_green(host, fail, {0} if is_one else asked)
    assert {code: places for code, places in green.items() if places} == {}
    assert len(green) >= len(CODES) - 4


@pytest.mark.parametrize(("key", "code"), [
    ("nvmlDeviceGetEnforcedPowerLimit", 10), ("nvmlDeviceGetPowerManagementDefaultLimit", 999),
    ("nvmlDeviceGetTemperature", DEPRECATED), ("nvmlDeviceGetTotalEccErrors/0", 4), ("nvmlDeviceGetTemperature", 4),
])  # fmt: skip
def test_what_says_nothing_of_a_card_drains_no_node(hosts: list[Host], key: str, code: int) -> None:
    """Without a permission the agent cannot tell, so that nothing is green either."""
    green = find_green(hosts[0], {key: code})
    health = select_hardware(hosts[0].scene.registry.view(hosts[0].scene.clock.now()))
    assert (find_outcome("slurm", health, ()), bool(green)) == (
        ("no_answer", False) if code == 4 else ("healthy", True)
    )


def is_absent(question: Query, code: int, *, is_one: bool) -> bool:
    """Tells whether an error says that there is no such thing: that of one card counts only where others lack it too.

    An empty slot for a MIG instance, and a field that an older driver has no number of, are the exceptions.
    """
    if question.function == "nvmlDeviceGetMigDeviceHandleByIndex":
        return code in question.absent_on
    if question.field_id is not None and code == 2:
        return not is_one
    return code in question.absent_on and not is_one


def test_only_what_says_that_there_is_no_such_thing_is_silent() -> None:
    """A new exception is a decision, not a slip."""
    general = {NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED}
    excepted = {name: question.absent_on - general for name, question in QUESTIONS.items()}
    assert {name: codes for name, codes in excepted.items() if codes} == {
        "mig_instance": {2, 6},  # an empty slot
        "mps_clients": {2},  # not required
        "fabric": {25},  # a driver that is older than the structure
    }


@pytest.mark.parametrize("field", [each for each in QUESTIONS.values() if each.field_id is not None and each.parts])
def test_a_call_for_a_field_that_fails_as_a_whole_is_no_answer_either(hosts: list[Host], field: Query) -> None:
    host = hosts[0]
    for code in set(CODES) - {NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, 2}:
        assert find_green(host, {field.function: code}) == []


@pytest.mark.parametrize("name", [name for name, each in QUESTIONS.items() if not each.parts and name not in UNHEARD])
def test_what_only_describes_a_card_costs_no_verdict_and_is_said(hosts: list[Host], name: str) -> None:
    question = QUESTIONS[name]
    host = find_host(hosts, write_key(question))
    for code in set(CODES) - question.absent_on - {2, 15, 16}:
        green = find_green(host, {write_key(question): code})
        assert "the host" not in green
        assert f"device:{host.read({}).gpus[0].key}" in green
    for code in (15, 16):  # a card that is lost says so, whatever it is asked
        if name not in (*OF_ALL_CARDS, "ancestor"):
            assert "health --format slurm" not in find_green(host, {write_key(question): code})
