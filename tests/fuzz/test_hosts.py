"""Hosts with spoiled files and drivers that fail: a look never raises, and what it tells can be sent and shown."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright_agent.facts.model import build_json, parse_host_facts
from meshwright_agent.facts.probe import read_host_facts
from tests.fakes.machines import RECORDED, Machine, build_roots, plant_machine, show
from tests.fakes.nvml import FakeNvml
from tests.fuzz import scale
from tests.fuzz.changes import vary

pytestmark = pytest.mark.exhaustive

SPOILED = 40
DRIVERS = 60
MACHINES = ("cpu-vm", "dgx-h100", "mig-a100", "tpu-v5p-4")
WITH_DRIVER = ("dgx-h100", "mig-a100", "gb200-nvl72", "pcie-l40s")
ERRORS = sorted(
    {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
)
WORDS = ("", " ", "GPU-", "../../..", "N/A", "ERROR!", "x" * 500, "0000:00:00.0", "MIG-", "٣", "NVIDIA H100 MIG ")
SPOILED_FIELDS = ("name", "uuid", "bus_id", "compute_mode", "architecture", "memory", "link_speed", "capability")
NUMBERS = (0, 1, -1, 10**6, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def look(machine: Machine) -> None:
    """Looks at a host as the probe does, sends it as the probe does, and shows it as the agent does."""
    sent = json.dumps(build_json(read_host_facts(machine.roots, nvml=machine.nvml)), allow_nan=False)
    facts = parse_host_facts(json.loads(sent))
    show(facts).model_dump_json()


def list_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", MACHINES)
def test_no_text_in_any_file_of_a_host_breaks_a_look(name: str, tmp_path: Path) -> None:
    machine, chance = plant_machine(name, tmp_path), random.Random(name)
    files = list_files(tmp_path)
    corpus = sorted({path.read_bytes() for path in files})
    for _ in range(scale(SPOILED)):
        path = chance.choice(files)
        before, noise = path.read_bytes(), vary(chance, [*corpus, path.read_bytes()])
        path.write_bytes(noise)
        try:
            look(machine)
        except Exception as error:
            raise AssertionError(f"{path.relative_to(tmp_path)} = {noise!r:.300}") from error
        finally:
            path.write_bytes(before)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WITH_DRIVER)
def test_no_error_of_the_driver_anywhere_breaks_a_look(name: str, tmp_path: Path) -> None:
    plant_machine(name, tmp_path)
    document, chance = json.loads((RECORDED / name / "nvml.json").read_text()), random.Random(name)
    functions = [function for function in vars(FakeNvml) if function.startswith("nvml") and function != "nvmlShutdown"]
    functions = [function for function in functions if callable(getattr(FakeNvml, function))]
    for _ in range(scale(DRIVERS)):
        failing = {function: chance.choice(ERRORS) for function in chance.sample(functions, chance.randint(1, 6))}
        look_with(document, failing, tmp_path)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WITH_DRIVER)
def test_nothing_that_a_driver_says_breaks_a_look(name: str, tmp_path: Path) -> None:
    plant_machine(name, tmp_path)
    document, chance = json.loads((RECORDED / name / "nvml.json").read_text()), random.Random(name)
    for _ in range(scale(DRIVERS)):
        told = json.loads(json.dumps(document))
        for _ in range(chance.randint(1, 4)):
            spoil(told, chance)
        look_with(told, {}, tmp_path)


def look_with(document: Any, failing: dict[str, int], folder: Path) -> None:
    try:
        look(Machine(build_roots(folder), FakeNvml(document, failing)))
    except Exception as error:
        raise AssertionError(f"failing {failing}, saying {json.dumps(document)[:1500]}") from error


def spoil(told: Any, chance: random.Random) -> None:
    """Puts another word or number in the place of one that a card tells of itself."""
    card = chance.choice(list(list_cards(told)))
    name = chance.choice([name for name in SPOILED_FIELDS if name in card])
    if isinstance(card[name], str):
        card[name] = chance.choice(WORDS)
    elif isinstance(card[name], list):
        card[name][chance.randrange(len(card[name]))] = chance.choice(NUMBERS)
    else:
        card[name] = chance.choice(NUMBERS)


def list_cards(told: Any) -> Iterator[dict[str, Any]]:
    for gpu in told["gpus"]:
        yield gpu
        yield from (part for part in gpu.get("instances", ()) if part)
