"""What a wrong request is told: one sentence a field, in the words of JSON, with a value that works."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from meshwright.errors import InvalidMeshError, InvalidRequestError, RequestError
from meshwright.testing import FakeAgent
from meshwright.wire.base import Wire
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.bench import BenchRequest
from meshwright.wire.health import Acknowledgement
from meshwright.wire.leases import LeaseRequest
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.model import ModelSpec
from meshwright.wire.problem import translate_validation

REST: dict[type[BaseModel], dict[str, Any]]
REST = {LeaseRequest: {"purpose": "job 7"}, PlanRequest: {"mesh": "dp:2"}, BenchRequest: {}}
"""What a request needs beside its devices."""
REQUESTS: list[type[BaseModel]] = [PlanRequest, BenchRequest, LeaseRequest, BatchSizeRequest, Acknowledgement]


def refuse(model: type[BaseModel], body: dict[str, Any]) -> RequestError:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return translate_validation([{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()])


def test_a_mesh_of_a_bench_is_a_string_and_nothing_is_said_of_other_forms() -> None:
    (error,) = refuse(BenchRequest, {"mesh": {"dp": 8}}).errors
    assert error == {"field": "mesh", "message": "it should be a string, got {'dp': 8}"}


@pytest.mark.parametrize(("body", "field", "message"), [
    ({"devices": {"count": 0}}, "devices.count", "input should be greater than or equal to 1, got 0"),
    ({"devices": {"mood": 1}}, "devices.mood", "unknown field"),
    ({"devices": [0, 1.5]}, "devices.1", "it should be an integer or a string, got 1.5"),
    ({"devices": {"exclude": [None]}}, "devices.exclude.0", "it should be an integer or a string, got None"),
    ({"devices": 8}, "devices", "it should be a list or an object, got 8"),
    ({"topology": "a"}, "topology", "it should be an object or a list, got 'a'"),
    ({"topology": [8]}, "topology.0", "it should be an object, got 8"),
    ({"axis_types": {"dp": 1}}, "axis_types.dp", "it should be a string, got 1"),
])  # fmt: skip
def test_of_a_union_only_the_branch_that_fits_the_value_is_told(body: dict[str, Any], field: str, message: str) -> None:
    assert list(refuse(PlanRequest, {"mesh": "dp:2", **body}).errors) == [{"field": field, "message": message}]


@pytest.mark.parametrize(("body", "hint"), [
    ({"sizes_bytes": [0]}, "set sizes_bytes.0 to 4 or more"), ({"samples": 2000}, "set samples to 1000 or less"),
    ({"max_s": 0}, "set max_s to more than 0.0, such as 1.0"), ({"cases": ["matmull"]}, "set cases.0 to 'matmul'"),
    ({"dtype": "float33"}, "set dtype to 'float32'"), ({"dtype": 8}, "set dtype to one of these, such as 'float32'"),
    ({"suite": "x"}, "set suite to one of these, such as 'quick'"),
    ({"samples": "64"}, "write samples without quotes: 64"),
    ({"samples": 64.0}, "write samples without a fraction: 64"), ({"max_s": "20"}, "write max_s without quotes: 20"),
    ({"sizes_bytes": 4096}, "write sizes_bytes as a list: [4096]"),
    ({"cases": "matmul, all_reduce"}, 'write cases as a list: ["matmul", "all_reduce"]'),
    ({"sizes_bytes": []}, "give sizes_bytes 1 or more entries, or leave it out"),
    ({"sizes_bytes": [4] * 33}, "give sizes_bytes up to 32 entries"), ({"axis": "x" * 65}, "write up to 64 characters"),
    ({"samples": []}, "GET /docs, and docs/reference/requests.md, show every field"),
    ({"color": 1}, "GET /docs, and docs/reference/requests.md, show every field"),
    ({"samples": 1, "matmul_size": 1}, "set matmul_size to 8 or more; set samples to 3 or more"),
])  # fmt: skip
def test_the_hint_holds_a_value_that_works_where_the_schema_knows_one(body: dict[str, Any], hint: str) -> None:
    assert refuse(BenchRequest, body).hint == hint


@pytest.mark.parametrize(("field", "hint"), [
    ("num_expert", "write num_experts in place of model.num_expert"),
    ("zzz", "docs/reference/requests.md lists the dimensions of a model"),
])  # fmt: skip
def test_an_unknown_dimension_of_a_model_is_told_the_nearest_and_the_page(field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught, FakeAgent().client() as client:
        client.plan("dp:8", model={**SIZES, field: 4}, training={"global_batch_size": 8})
    assert caught.value.hint.startswith(hint)


SIZES = {
    "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
}  # fmt: skip
NUMBERED = "use [4] for device 4"
NAMED = "use [0, 1] for devices 0 and 1"


@pytest.mark.parametrize(("model", "value", "message", "hint"), [
    (LeaseRequest, 4, "'all' or a list", NUMBERED), (LeaseRequest, "4", "'all' or a list", NUMBERED),
    (LeaseRequest, "al", "'all' or a list", NAMED), (LeaseRequest, None, "'all' or a list", NAMED),
    (PlanRequest, 4, "a list or an object", f'{NUMBERED}, or {{"count": 4}} for 4 devices'),
    (PlanRequest, 1.5, "a list or an object", f'{NAMED}, or {{"count": 2}} for 2 devices'),
    (BenchRequest, 4, "a list", NUMBERED), (BenchRequest, {"count": 4}, "a list", NAMED),
])  # fmt: skip
def test_devices_of_another_type_are_told_each_form_with_what_was_meant(
    model: type[BaseModel], value: object, message: str, hint: str
) -> None:
    error = refuse(model, {"devices": value, **REST[model]})
    assert message in error.detail
    assert f"got {value!r}" in error.detail
    assert error.hint.startswith(hint)


@pytest.mark.parametrize("model", [LeaseRequest, PlanRequest, BenchRequest])
@given(value=st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)))
def test_each_form_of_devices_in_a_hint_is_taken(model: type[BaseModel], value: object) -> None:
    try:
        model.model_validate({"devices": value, **REST[model]})
    except ValidationError as error:
        hint = translate_validation(error.errors()).hint
        forms = re.findall(r'\[.*?\]|\{.*?\}|"all"', hint)
        assert forms
        for form in forms:
            model.model_validate({"devices": json.loads(form), **REST[model]})


@pytest.mark.parametrize("char", ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize(("model", "field", "rest"), [
    (LeaseRequest, "purpose", {}), (Acknowledgement, "reason", {"component": "device:0"}), (ModelSpec, "name", SIZES),
])  # fmt: skip
def test_text_that_is_shown_is_one_line_and_the_hint_has_such_a_line(
    model: type[BaseModel], field: str, rest: dict[str, Any], char: str
) -> None:
    error = refuse(model, {field: f"job {char} 7", **rest})
    assert [found["field"] for found in error.errors] == [field]
    assert "one line without control characters" in error.detail
    assert char not in error.detail + error.hint
    line = json.loads(error.hint.removeprefix(f"write {field} on one line: "))
    assert line == "job 7"
    model.model_validate({field: line, **rest})
    model.model_validate({field: "作業\u3000７ – job\xa07", **rest})


def test_a_rule_in_words_is_told_with_the_value_and_without_its_class() -> None:
    since = {"type": "value_error", "loc": ("query", "since"), "msg": "Value error, a time with its zone", "input": "x"}
    assert translate_validation([since]).detail == "since: a time with its zone, got 'x'"


def test_host_names_of_a_topology_are_one_line() -> None:
    with FakeAgent().client() as client:
        reply = client.devices()
    host = reply.host.model_copy(update={"name": "a\nb"})
    error = refuse(PlanRequest, {"mesh": "dp:-1", "topology": reply.model_copy(update={"host": host}).model_dump()})
    rule = "has a line break or another control character; a name is one line"
    assert error.detail == f"topology: host name 'a\\nb' {rule}"


def test_a_header_and_a_parameter_are_named_and_not_called_the_body() -> None:
    for place, name in (("header", "last-event-id"), ("query", "memory-fraction")):
        found = {
            "type": "string_too_short", "loc": (place, name), "msg": "String should have at least 1 character",
            "input": "", "ctx": {"min_length": 1},
        }  # fmt: skip
        error = translate_validation([found])
        assert [entry["field"] for entry in error.errors] == [name]
        assert error.hint == "write 1 or more characters"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(model=st.sampled_from(REQUESTS), data=st.data(), value=json_values)
def test_whatever_is_wrong_has_a_field_a_message_and_a_hint(
    model: type[BaseModel], data: st.DataObject, value: object
) -> None:
    name = data.draw(st.sampled_from([*model.model_fields, "color"]))
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        refused = translate_validation(error.errors())
        fields = [entry["field"] for entry in refused.errors]
        assert fields
        assert len(fields) == len(set(fields))
        assert all(entry["message"] for entry in refused.errors)
        assert all(has_place({name: value}, field) for field in fields)
        assert refused.hint
        assert isinstance(refused, InvalidRequestError | InvalidMeshError)


def has_place(value: Any, field: str) -> bool:
    """Returns whether a dotted path leads to something in a body, or to a field that an object of it lacks."""
    if not isinstance(value, dict | list):
        return False
    for place, part in value.items() if isinstance(value, dict) else enumerate(value):
        name = str(place)[:80]
        if field == name or (field.startswith(f"{name}.") and has_place(part, field[len(name) + 1 :])):
            return True
    return isinstance(value, dict) and field in FIELDS


def list_fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields).union(*map(list_fields, model.__subclasses__()))


FIELDS = list_fields(Wire)
