"""Searches on the command line: what may be chosen, comparisons, prices, and the plan for when a device fails."""

from __future__ import annotations

import json

import pytest
import typer

from meshwright.cli.search import read_price, read_search
from tests.unit.cli.conftest import CommandLine

MODEL = ("--model", "llama3-8b", "--batch", "64", "--seq", "4096")
COMPARED = ("plan", "--local", "--targets", "v5e:4x8,v5p:4x4x4,v5e:2x2", *MODEL)


def test_rules_are_sizes_bounds_and_choices() -> None:
    assert read_search(None) is None
    assert read_search("tp=8, pp<=2 ,remat=full+minimal,moments=float32+bfloat16") == {
        "axes": {"tp": 8},
        "at_most": {"pp": 2},
        "remat": ("full", "minimal"),
        "moment_dtypes": ("float32", "bfloat16"),
    }
    assert read_search("tp<=8,tp=4") == {"axes": {"tp": 4}, "at_most": {"tp": 8}}


@pytest.mark.parametrize(
    "rules", ["", "tp", "xp=2", "tp=0", "tp>=2", "remat=half", "moments=int8", "remat=", "tp=2,tp=4"]
)
def test_a_rule_that_is_none_names_the_option_and_one_that_works(rules: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        read_search(rules)
    assert refused.value.param_hint == "--search"


def test_a_price_is_one_for_all_or_one_a_target() -> None:
    assert read_price(None) is None
    assert read_price("4.2") == 4.2
    assert read_price("2*v6e:16x16=2.7, v5p:8x8x8=4.2") == {"2*v6e:16x16": 2.7, "v5p:8x8x8": 4.2}


@pytest.mark.parametrize("text", ["", "free", "-1", "0", "4.2,2.1", "v5p:8x8x8=4,v5p:8x8x8=5", "v5p:8x8x8=", "1e9"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        read_price(text)
    assert refused.value.param_hint == "--price"


def test_targets_are_compared_in_a_table_with_what_is_said_of_each(meshwright: CommandLine) -> None:
    printed = meshwright(*COMPARED)
    assert printed.code == 0
    rows = [line.split()[:2] for line in printed.out.splitlines()[2:5]]
    assert rows[:2] == [["v5p:4x4x4", "64"], ["v5e:4x8", "32"]]
    assert rows[2] == ["v5e:2x2", "nothing_fits"]
    assert "v5p:4x4x4: the best" in printed.out
    assert "times the step of v5p:4x4x4" in printed.out
    assert "on v5e:2x2" in printed.out  # why nothing fits there needs no --explain
    assert "on v5p:4x4x4" not in printed.out
    assert "on v5p:4x4x4" in meshwright(*COMPARED, "--explain").out


@pytest.mark.parametrize("options", [(), ("--json",), ("--export", "jax")])
def test_a_target_that_does_not_exist_is_1_and_named_with_what_comes_near(
    meshwright: CommandLine, options: tuple[str, ...]
) -> None:
    printed = meshwright("plan", "--local", "--targets", "h1oo:8,v5p:4x4x4", *MODEL, *options)
    assert printed.code == 1
    assert "target h1oo:8: no chip and no slice is called h1oo" in printed.err
    assert "did you mean h100?" in printed.err
    assert "v5p:4x4x4" in printed.out or "PartitionSpec" in printed.out  # the others are answered all the same
    if not options:
        rows = [line.split()[:2] for line in printed.out.splitlines()[2:4]]
        assert rows == [["v5p:4x4x4", "64"], ["h1oo:8", "unknown_target"]]


def test_prices_turn_the_order_round(meshwright: CommandLine) -> None:
    out = json.loads(meshwright(*COMPARED, "--price", "v5p:4x4x4=9,v5e:4x8=0.1,v5e:2x2=0.1", "--json").out)
    assert [each["target"] for each in out["comparison"]] == ["v5e:4x8", "v5p:4x4x4", "v5e:2x2"]
    assert out["plans"][0]["target"] == "v5e:4x8"


def test_targets_beside_a_target_are_refused(meshwright: CommandLine) -> None:
    printed = meshwright(*COMPARED, "--target", "v5e:4x4")
    assert printed.code == 2
    assert "target stands beside targets" in printed.err


def test_the_plan_for_when_a_device_fails_is_told_at_the_end(meshwright: CommandLine) -> None:
    asked = ("plan", "--local", "--target", "4*h100:8", *MODEL, "--fallback", "--top", "1")
    printed = meshwright(*asked)
    told = json.loads(meshwright(*asked, "--json").out)["fallback"]
    assert f"when a device fails: {told['message']}" in printed.out.replace("\n", " ").replace("  ", " ")
    assert told["lost"] == "a host of 8 devices"


@pytest.mark.parametrize(
    ("model", "mesh", "target", "said"),
    [
        ("llama3-8b", "fsdp:2,tp:16", "4*h100:8", "% less"),
        ("llama3-70b", "fsdp:8", "v5e:2x4", "no mesh of these devices fits"),
    ],
)
def test_a_given_mesh_is_told_beside_the_best_of_its_devices(
    meshwright: CommandLine, model: str, mesh: str, target: str, said: str
) -> None:
    asked = ("plan", "--local", "--model", model, "--batch", "64", "--mesh", mesh, "--target", target)
    (line,) = [line for line in meshwright(*asked, "--audit").out.splitlines() if line.startswith("the best of these")]
    assert line.endswith(said)
    assert "the best of these" not in meshwright(*asked).out


def test_a_price_of_tokens_stands_in_the_table(meshwright: CommandLine) -> None:
    printed = meshwright("plan", "--local", "--target", "v5e:4x4", *MODEL, "--price", "1.2")
    assert "per 1M tokens" in printed.out.splitlines()[0]


def test_code_and_export_are_one_of_them(meshwright: CommandLine) -> None:
    printed = meshwright("plan", "--local", "--target", "v5e:4x4", *MODEL, "--code", "--export", "jax")
    assert printed.code == 2
    assert "--code" in printed.err
