from __future__ import annotations

import pytest

from meshwright.testing import FakeAgent
from meshwright.wire.batch_size import BatchSize, BatchSizeTable
from tests.unit.cli.conftest import CommandLine


def test_sizes_notes_and_the_derivation_of_the_roofline_are_shown(meshwright: CommandLine) -> None:
    meshwright.fake = FakeAgent("h100:8")
    printed = meshwright("batch-size")
    assert printed.code == 0
    assert printed.out.startswith("h100 (")
    assert ["64", "320", "298"] in [line.split() for line in printed.out.splitlines()]
    assert "roofline (bfloat16): 295 tokens a device, 989 TFLOP/s over 3.35 TB/s" in printed.out
    assert "  source: " in printed.out


def test_text_of_an_agent_is_not_read_as_markup(meshwright: CommandLine) -> None:
    table = BatchSizeTable(min_batch_size=1, optimal_batch_size=2, critical_batch_size=3, notes="[bold]:smile:[/bold]")
    meshwright.fake.answer("POST", "/batch-size", BatchSize(hardware_type="cpu", basis="live", table=table))
    assert "\n[bold]:smile:[/bold]\n" in meshwright("batch-size").out


def test_hardware_without_a_figure_gets_no_guessed_roofline(meshwright: CommandLine) -> None:
    assert "roofline: no figure of this hardware is known" in meshwright("batch-size", "--hardware", "unknown").out


@pytest.mark.parametrize(
    ("batch", "code", "phrase"),
    [(1, 1, "below minimum"), (100, 0, "below critical"), (512, 0, "batch 512: ")],
)
def test_a_batch_below_the_minimum_is_1(meshwright: CommandLine, batch: int, code: int, phrase: str) -> None:
    printed = meshwright("batch-size", "--hardware", "h100", "--batch", str(batch))
    assert printed.code == code
    assert phrase in printed.out


def test_the_verdict_counts_with_json_too(meshwright: CommandLine) -> None:
    printed = meshwright("batch-size", "--hardware", "h100", "--batch", "1", "--json")
    assert (printed.code, printed.json["validation"]["valid"]) == (1, False)


@pytest.mark.parametrize("arguments", [("--hardware", "h1000"), ("--batch", "0"), ("--batch", "many")])
def test_a_wrong_value_is_2(meshwright: CommandLine, arguments: tuple[str, ...]) -> None:
    assert meshwright("batch-size", *arguments).code == 2
