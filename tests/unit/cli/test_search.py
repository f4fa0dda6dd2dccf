"""Searches on the command line: comparisons, prices, and the plan for when a device fails."""

from __future__ import annotations

import json

import pytest

from meshwright.cli import search
from tests.unit.cli.conftest import CommandLine

MODEL = ("--model", "llama3-8b", "--global-batch-size", "64", "--seq-len", "4096")
COMPARED = ("search", "--offline", "--target", "v5e:4x8", "--target", "v5p:4x4x4", "--target", "v5e:2x2", *MODEL)


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


def test_why_nothing_fits_is_said_before_the_rejected_meshes(
    meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for name, call in (("print_notices", search.print_notices), ("build_table", search.build_table)):
        monkeypatch.setattr(search, name, lambda *args, name=name, call=call: (said.append(name), call(*args))[1])
    printed = meshwright("search", "--offline", "--target", "v5e:2x2", *MODEL)
    assert printed.code == 1
    assert said == ["print_notices", "build_table"]
    assert "weights, gradients and moments are 37.4" in printed.err


def test_targets_whose_best_mesh_has_one_fingerprint_keep_their_own_figures(meshwright: CommandLine) -> None:
    asked = ("search", "--offline", "--target", "h100:8", "--target", "h200:8", *MODEL)
    plans = meshwright(*asked, "--format=json").json["plans"]
    assert plans[0]["fingerprint"] == plans[1]["fingerprint"]
    lines = meshwright(*asked).out.splitlines()
    for plan in plans:
        [row] = [line for line in lines if line.startswith(f"{plan['target']} ")]
        assert f"{plan['tokens_per_s']:,.0f}" in row


@pytest.mark.parametrize("options", [(), ("--format=json",), ("--export", "jax")])
def test_a_target_that_does_not_exist_is_1_and_named_with_what_comes_near(
    meshwright: CommandLine, options: tuple[str, ...]
) -> None:
    printed = meshwright("search", "--offline", "--target", "h1oo:8", "--target", "v5p:4x4x4", *MODEL, *options)
    assert printed.code == 1
    assert "target h1oo:8: no chip and no slice is called h1oo" in printed.err
    assert "did you mean h100?" in printed.err
    assert "v5p:4x4x4" in printed.out or "PartitionSpec" in printed.out  # the others are answered all the same
    if not options:
        rows = [line.split()[:2] for line in printed.out.splitlines()[2:4]]
        assert rows == [["v5p:4x4x4", "64"], ["h1oo:8", "unknown_target"]]


@pytest.mark.parametrize("options", [(), ("--format=json",)])
def test_an_export_that_cannot_be_written_is_an_error(meshwright: CommandLine, options: tuple[str, ...]) -> None:
    model = ("--model", "llama3-8b", "--global-batch-size", "64", "--seq-len", "8192")  # the best mesh has pp:3
    printed = meshwright("search", "--offline", "--target", "3*h100:8", *model, "--export", "maxtext", *options)
    assert printed.code == 1
    assert "export maxtext: 3 stages do not divide the 32 layers" in (printed.out if options else printed.err)
    assert options or (printed.out.strip(), f"\n{printed.err}".count("\nerror: ")) == ("", 1)


def test_the_plan_for_when_a_device_fails_is_told_at_the_end(meshwright: CommandLine) -> None:
    asked = ("search", "--offline", "--target", "4*h100:8", *MODEL, "--fallback")
    printed = meshwright(*asked)
    told = json.loads(meshwright(*asked, "--format=json").out)["fallback"]
    assert f"when a device fails: {told['message']}" in printed.out.replace("\n", " ").replace("  ", " ")
    assert "a host of 8 devices" in told["message"]


@pytest.mark.parametrize(("model", "mesh", "target", "said"), [
    ("llama3-8b", "fsdp:2,tp:16", "4*h100:8", "% less"),
    ("llama3-70b", "fsdp:8", "v5e:2x4", "no mesh of 8 devices holds this training step"),
])  # fmt: skip
def test_a_given_mesh_is_told_beside_the_best_of_its_devices(
    meshwright: CommandLine, model: str, mesh: str, target: str, said: str
) -> None:
    asked = ("plan", mesh, "--offline", "--model", model, "--global-batch-size", "64", "--target", target)
    printed = meshwright(*asked, "--audit")
    assert said in printed.out + printed.err
    plain = meshwright(*asked)
    assert "the best of these" not in plain.out
    assert said not in plain.out + plain.err


@pytest.mark.parametrize(("arguments", "said"), [
    (("search",), "--model: what is trained? write --model llama3-8b"),
    (("search", "--global-batch-size", "64"), "--model: what is trained? write --model llama3-8b"),
    (("search", "--model", "gpt2"), "--global-batch-size: how many"),
    (("plan", "fsdp:8", "--model", "gpt2", "--seq-len", "64"), "--global-batch-size: how many"),
    (("search", "--model", "gpt2", "--global-batch-size", "0"), "set --global-batch-size to 1 or more"),
    (("search", "--model", "gpt2", "--global-batch-size", "8", "--seq-len", "0"), "set --seq-len to 1 or more"),
    (("plan",), "MESH: a plan needs a mesh"),
    (("plan", "dp:8", "--offline", "--target", "h100:8", "--audit"), "--model llama3-8b, --global-batch-size 64\n"),
    (("runs", "list", "--state", "done"), "'--state': 'done' is not one of"),
    (("--timeout", "10s", "health"), "unable to parse string as a number, got '10s'"),
    (("compile", "a:b", "--plan", "/dev/null"), "'/dev/null' holds no plan: Invalid JSON"),
])  # fmt: skip
def test_an_error_names_the_option_that_is_missing_or_wrong(
    meshwright: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    printed = meshwright(*arguments)
    assert printed.code == 2
    assert said in printed.err
