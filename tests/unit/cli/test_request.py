"""`--request` of `plan` and `batch-size`: a request as JSON, with the options over its fields."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import CommandLine

MODEL = {"model": "llama3-8b", "training": {"global_batch_size": 64, "seq_len": 2048}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "request.json"


@pytest.fixture
def stdin(tmp_path: Path) -> Iterator[Path]:
    """A file that stands at descriptor 0."""
    path = tmp_path / "stdin"
    path.touch()
    before = os.dup(0)
    given = os.open(path, os.O_RDONLY)
    os.dup2(given, 0)
    yield path
    os.dup2(before, 0)
    os.close(before)
    os.close(given)


def keep(path: Path, **fields: object) -> str:
    path.write_text(json.dumps(fields))
    return str(path)


def test_the_fields_of_a_request_reach_the_agent(meshwright: CommandLine, file: Path) -> None:
    fields = {
        "mesh": [["x", -1]], "devices": {"count": 4, "exclude": [0, 1]}, "axis_types": {"x": "manual"},
        "allow_unused": True, "memory_strategy": "aggressive", "importance": {"x": 8.0},
    }  # fmt: skip
    printed = meshwright("plan", "--request", keep(file, **fields))
    assert printed.code == 0, printed.err
    assert {**meshwright.body(), **fields} == meshwright.body()


def test_options_win_over_the_fields(meshwright: CommandLine, file: Path) -> None:
    keep(file, mesh="dp:8", model="llama3-8b", training={"global_batch_size": 8, "remat": "none", "seq_len": 64})
    meshwright("plan", "dp:2,tp:4", "--request", str(file), "--seq-len", "256", "--model", "gpt2")
    body = meshwright.body()
    assert (body["mesh"], body["model"]) == ("dp:2,tp:4", "gpt2")
    assert body["training"] == {"global_batch_size": 8, "remat": "none", "seq_len": 256}


def test_a_request_comes_from_stdin(meshwright: CommandLine, stdin: Path) -> None:
    keep(stdin, mesh="dp:2,tp:4")
    assert meshwright("plan", "--request", "-").code == 0
    assert meshwright.body()["mesh"] == "dp:2,tp:4"


def test_a_request_is_answered_here_as_by_the_agent(meshwright: CommandLine, file: Path) -> None:
    searched = {**MODEL, "targets": ["v5e:4x4"], "axes": {"tp": 2}, "at_most": {"fsdp": 4}}
    asked = meshwright("search", "--request", keep(file, **searched), "--format=json")
    assert len(meshwright.asked) == 1
    assert meshwright("search", "--request", str(file), "--offline", "--format=json").out == asked.out
    assert len(meshwright.asked) == 1
    shapes = [plan["mesh_shape"] for plan in asked.json["plans"]]
    assert shapes
    assert all(shape["tp"] == 2 and shape.get("fsdp", 1) <= 4 for shape in shapes)


def test_a_request_of_a_batch_size_is_sent_and_answered_here_alike(meshwright: CommandLine, file: Path) -> None:
    request = keep(file, model="llama3-8b", target="v5e:4x4", mesh="fsdp:16", training={"seq_len": 512})
    asked = meshwright("batch-size", "--request", request, "--format=json")
    assert (asked.json["estimated"]["recommended"], meshwright.body()["mesh"]) == (64, "fsdp:16")
    here = meshwright("batch-size", "--request", request, "--offline", "--format=json")
    assert here.json["estimated"] == asked.json["estimated"]
    assert meshwright("batch-size", "--request", request, "--per-device-batch-size", "1").code == 2


@pytest.mark.parametrize("command", [("plan", "dp:8"), ("batch-size",)])
@pytest.mark.parametrize(("text", "said"), [
    ("{", "no JSON"), ("[8]", "its JSON is a list; it holds an object"), ("\xff\xfe", "byte 0xff"),
    ('{"mehs": "dp:8"}', "mehs: unknown field"),
    ('{"model": "gpt2", "training": {"global_batch_size": 8, "rematt": "full"}}', "training.rematt: unknown field"),
    ('{"model": "gpt2", "training": 8}', "training: "), ('{"model": "gpt2", "training": [1]}', "training: "),
    ('{"training": {"global_batch_size": 8}}', "write --model llama3-8b"),
])  # fmt: skip
def test_a_request_that_is_none_is_2_with_what_is_wrong(
    meshwright: CommandLine, file: Path, command: tuple[str, ...], text: str, said: str
) -> None:
    file.write_text(text, encoding="latin-1")
    printed = meshwright(*command, "--request", str(file), *(("--seq-len", "8") if "[1]" in text else ()))
    assert (printed.code, printed.out, meshwright.fake.requests) == (2, "", [])
    assert said in " ".join(printed.err.split())


def test_a_model_that_is_too_long_for_a_path_is_a_name_that_no_table_has(meshwright: CommandLine) -> None:
    printed = meshwright(
        "plan", "dp:1", "--offline", "--target", "h100:1", "--global-batch-size", "8", "--model", "a" * 300
    )
    assert (printed.code, "Traceback" in printed.err, "is no preset" in printed.err) == (2, False, True)
