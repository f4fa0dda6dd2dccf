"""The checks of a card, without one: nvidia-smi is read right, what differs is told, a record survives its run.

What CPUs can go through goes through on a real agent, so that the checks work at the first try where a card is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.planning.request import answer_request
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.verification import Verification
from meshwright_agent.facts.model import build_json
from tests.device.__main__ import CHECKS, Check, main, run_check
from tests.device.bed import Bed
from tests.device.facts import compare_cards
from tests.device.record import PAGE, Finding, Record, format_page, read_record
from tests.device.smi import SmiCard, parse_smi
from tests.device.training import compare_step, compare_time
from tests.fakes.machines import Machine, plant_machine

pytestmark = pytest.mark.exhaustive

SMI = Path(__file__).with_name("smi.xml").read_text()
TOLD = {
    "temperature": 34, "thresholds": {"slowdown": 90, "off": 95}, "clocks": 1, "ecc": [0, 0], "pcie": [16, 16, 5, 5],
}  # fmt: skip
CPU = Bed("cpu", tries=1)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """The host of smi.xml, whose driver tells of its health."""
    found = plant_machine("pcie-h100nvl", tmp_path)
    assert found.nvml is not None
    for index in range(2):
        found.nvml.change_gpu(index, **TOLD)
    return found


def compare(machine: Machine, cards: tuple[SmiCard, ...]) -> list[Finding]:
    return list(compare_cards(machine.view().model_dump(mode="json"), build_json(machine.read()), cards))


def read_cards(**changes: Any) -> tuple[SmiCard, ...]:
    cards = parse_smi(SMI, dict.fromkeys(("GPU-41009000-5b1e-4c0a-9d6f-000000041000", UUID), "9.0"))
    return (replace(cards[0], **changes), *cards[1:])


UUID = "GPU-41009001-5b1e-4c0a-9d6f-000000041001"


def wrong(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.ok is False]


def test_what_nvidia_smi_prints_is_read_in_base_units() -> None:
    first, second = read_cards()
    assert (first.pci_bus_id, first.memory_bytes, first.used_bytes) == ("0000:01:00.0", 95830 << 20, 4 << 20)
    assert (first.temperature_celsius, first.pcie_width) == (33, 16)
    assert (first.mig, first.uncorrectable_count, first.slowdowns) == (False, 0, ())
    assert (first.compute_pids, second.compute_pids) == ((4711,), ())


def test_what_a_card_does_not_have_is_not_told_rather_than_none_of_it() -> None:
    card = parse_smi(SMI.replace("33 C", "N/A").replace(">0<", ">N/A<").replace("event_reason", "x"))[0]
    assert (card.temperature_celsius, card.uncorrectable_count, card.slowdowns) == (None,) * 3


def test_a_host_whose_agent_says_what_nvidia_smi_says_has_nothing_wrong(machine: Machine) -> None:
    findings = compare(machine, read_cards())
    assert wrong(findings) == []
    assert sum(finding.ok is True for finding in findings) == 2 * 14


@pytest.mark.parametrize(("change", "name"), [
    ({"uuid": "GPU-other"}, "uuid"), ({"pci_bus_id": "0000:02:00.0"}, "PCI address"),
    ({"uncorrectable_count": 3}, "uncorrectable ECC errors"), ({"pcie_width": 8}, "PCIe lanes"),
    ({"used_bytes": 500 << 20}, "memory in use"), ({"temperature_celsius": 60}, "temperature"),
    ({"mig": True}, "GPU-41009000-5b1e-4c0a-9d6f-000000041000 MIG instances"),
])  # fmt: skip
def test_each_field_that_differs_is_told(machine: Machine, change: dict[str, Any], name: str) -> None:
    assert wrong(compare(machine, read_cards(**change))) == [name]


def test_a_step_is_held_against_what_was_said_of_it() -> None:
    asked = PlanRequest(mesh="dp:1", target="h200:1", model="llama3.2-1b", training={"global_batch_size": 4})
    plan = answer_request(asked).plans[0]
    assert plan.memory is not None
    assert plan.step_time is not None
    held = plan.memory.per_device_bytes
    ran = {
        "fingerprint": plan.fingerprint, "is_finite": True, "losses": [11.0, 10.5],
        "steps_s": [plan.step_time.total_s], "compile_s": 1.0, "device": "NVIDIA H200", "jax": "0",
        "peak_bytes": held, "compiled_peak_bytes": held,
    }  # fmt: skip
    found = Verification(status="verified", peak_memory_bytes=held)
    assert wrong(list(compare_step("it", plan, found, ran))) == []
    worse = {**ran, "fingerprint": "other", "losses": [11.0, 11.5], "peak_bytes": held * 2, "steps_s": [9.0]}
    who = ("compile-only", "the card's own compile", "the plan")
    differs = ["it: the plan's mesh", "it: loss", *(f"it: memory by {each} ÷ measured" for each in who)]
    assert wrong(list(compare_step("it", plan, found, worse))) == differs
    assert wrong(list(compare_time("it", plan, ran))) == []
    assert wrong(list(compare_time("it", plan, worse))) == ["it: step time by the plan ÷ measured"]


def test_the_page_shows_the_record_of_the_newest_card() -> None:
    record = read_record(Path(__file__).with_name("h100.jsonl"))
    assert format_page(record) in PAGE.read_text(), "python -m tests.device --from tests/device/h100.jsonl --write"


def find_one(_bed: Bed) -> Iterator[Finding]:
    yield Finding("figure", 3.5e12, True, "B/s", "≥ 1 | GB/s")


def find_and_fall(bed: Bed) -> Iterator[Finding]:
    yield from find_one(bed)
    raise ValueError("first line\nthe agent's log")


def find_for_ever(bed: Bed) -> Iterator[Finding]:
    yield from find_one(bed)
    while True:
        pass


def build_record(path: Path) -> Record:
    return Record(path, tell=lambda _line: None)


def test_what_was_found_is_kept_whatever_becomes_of_the_check(tmp_path: Path) -> None:
    record = build_record(tmp_path / "run.jsonl")
    record.note_run({"on": "a card"})
    run_check("good", Check(find_one), CPU, record, 60.0)
    assert record.is_good
    run_check("falls", Check(find_and_fall), CPU, record, 60.0)
    run_check("hangs", Check(find_for_ever, limit_s=0.2), CPU, record, 60.0)
    run_check("cards", Check(find_one, on_cpu=False), CPU, record, 60.0)
    run_check("late", Check(find_one), CPU, record, 1.0)
    record.begin("cut")
    with record.path.open("a") as file:
        file.write('{"check": "cut", "find')
    read = read_record(record.path)
    assert read.checks == record.checks
    assert read.run["on"] == "a card"
    states = {name: (len(one.findings), one.done.state) for name, one in read.checks.items()}
    assert states == {
        "good": (1, "done"), "falls": (1, "failed"), "hangs": (1, "failed"), "cards": (0, "skipped"),
        "late": (0, "skipped"), "cut": (0, "cut short"),
    }  # fmt: skip
    assert read.checks["falls"].done.reason == "ValueError: first line"
    assert "longer than 0 s" in read.checks["hangs"].done.reason
    assert not read.is_good
    again = Record(read.path, read.run, read.checks, tell=lambda _line: None)
    run_check("cut", Check(find_one), CPU, again, 60.0)
    assert read_record(record.path).checks["cut"].done.state == "done"


def test_a_host_without_a_card_is_skipped_as_a_whole_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.device.__main__.explain_no_card", lambda: "NVML finds no card")
    assert main(["--out", str(tmp_path / "run.jsonl")]) == 0
    assert "skipped, all of it: NVML finds no card" in capsys.readouterr().out
    assert not (tmp_path / "run.jsonl").exists()
    assert main(["--only", "nothing"]) == 2


SLOW = "batch"
"""Its compiles take longer than all others together, and of a CPU nobody measures the memory."""


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.on_cpu and name != SLOW])
def test_a_check_holds_on_virtual_cpu_devices(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")  # LLVM's part is half of a step's compile
    record = build_record(tmp_path / "run.jsonl")
    run_check(name, CHECKS[name], CPU, record, 240.0)
    checked = record.checks[name]
    assert checked.done.state == "done", checked.done.reason
    assert any(finding.ok is True for finding in checked.findings)
    assert wrong(checked.findings) == []
