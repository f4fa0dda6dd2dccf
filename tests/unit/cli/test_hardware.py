from __future__ import annotations

import pytest

from meshwright.topology.targets import list_targets
from meshwright.wire.devices import Targets
from tests.unit.cli.conftest import CommandLine


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_every_chip_has_a_line_and_the_grammar_stands_beneath(meshwright: CommandLine) -> None:
    printed = meshwright("hardware")
    assert (printed.code, printed.err) == (0, "")
    first = [row[0] for row in rows(printed.out) if row]
    assert set(first) >= {chip.chip for chip in list_targets().chips}
    assert "96 named: v5p-8 to v5p-17920" in printed.out
    assert "gb200:72 is an NVLink domain" in printed.out
    assert "any number a host" in printed.out
    assert printed.out.rstrip().splitlines()[-1].startswith("[granules*]chip[:shape]")


def test_it_asks_no_agent(meshwright: CommandLine) -> None:
    assert meshwright("hardware", "v5p").code == 0
    assert meshwright.asked == []
    assert meshwright.fake.requests == []


def test_a_tpu_shows_its_rule_and_its_slices(meshwright: CommandLine) -> None:
    printed = meshwright("hardware", "TPU v4")
    assert "multiples of 4" in printed.out
    assert ["v4-512", "v4:4x8x8", "256", "64", "rings", "xyz,", "may", "be", "twisted"] in rows(printed.out)
    assert ["v4-8", "v4:2x2x1", "4", "1", "no", "rings"] in rows(printed.out)
    assert "source: cloud.google.com" in printed.out


def test_a_gpu_shows_its_hosts_and_what_joins_them(meshwright: CommandLine) -> None:
    printed = meshwright("hardware", "v100")
    assert "v100:8    8 × NV1, 8 × NV2, 12 × SYS" in printed.out
    assert "source: github.com/NVIDIA/nccl-tests/issues/78" in printed.out


@pytest.mark.parametrize(("arguments", "chip"), [((), None), (("v5litepod",), "v5e")])
def test_json_is_what_the_agent_answers(meshwright: CommandLine, arguments: tuple[str, ...], chip: str | None) -> None:
    printed = meshwright("hardware", *arguments, "--format=json")
    assert printed.out == list_targets(chip).model_dump_json() + "\n"
    assert Targets.model_validate_json(printed.out) == list_targets(chip)


def test_a_chip_that_no_table_knows_is_2(meshwright: CommandLine) -> None:
    printed = meshwright("hardware", "h1000")
    assert (printed.code, printed.out) == (2, "")
    assert "did you mean h100" in printed.err
    assert meshwright("hardware", "v4", "v5e").code == 2
