"""What a request comes to, and what is refused."""

from __future__ import annotations

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.wire.bench import BenchRequest
from meshwright_agent.bench.scope import CASES, Scope, build_scope


def scope(count: int = 8, platform: str = "cpu", **fields: object) -> Scope:
    return build_scope(BenchRequest.model_validate(fields), platform=platform, indices=range(count))  # type: ignore[arg-type]


def test_an_empty_request_is_the_quick_suite_of_all_cases_on_all_devices() -> None:
    found = scope()
    assert (found.suite, found.cases, found.devices) == ("quick", CASES, tuple(range(8)))
    assert (str(found.mesh), found.axes, found.limit_s) == ("x:8", ("x",), 20.0)
    assert len(CASES) == 12


@pytest.mark.parametrize(("platform", "dtype"), [("cpu", "float32"), ("gpu", "bfloat16"), ("tpu", "bfloat16")])
def test_the_dtype_is_float32_on_cpu_and_bfloat16_elsewhere_unless_named(platform: str, dtype: str) -> None:
    assert scope(platform=platform).dtype == dtype
    assert scope(platform=platform, dtype="float16").dtype == "float16"


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_the_quick_suite_keeps_to_512_mib_a_device(platform: str) -> None:
    found = scope(platform=platform)
    assert max(3 * max(found.sizes_bytes), max(found.memory_bytes), 3 * 2 * max(found.matmul_sizes) ** 2) <= 512 * 2**20


def test_the_first_virtual_cpu_device_stands_for_all_unless_devices_are_named_or_the_suite_is_full() -> None:
    assert (scope().singles, scope().pairs) == ((0,), ((0, 1),))
    named = scope(devices=[3, 1])
    assert (named.devices, named.singles, named.pairs) == ((3, 1), (3, 1), ((3, 1), (1, 3)))
    assert scope(suite="full").singles == tuple(range(8))
    assert scope(platform="gpu").singles == tuple(range(8))


def test_what_is_named_replaces_the_suites_choice_and_stands_once() -> None:
    found = scope(cases=["matmul", "permute", "matmul"], sizes_bytes=[64, 8, 64], matmul_size=64, samples=5, max_s=2.5)
    assert (found.cases, found.sizes_bytes, found.memory_bytes) == (("matmul", "permute"), (64, 8), (64, 8))
    assert (found.matmul_sizes, found.samples, found.limit_s) == ((64,), 5, 2.5)


def test_a_mesh_is_filled_in_and_runs_over_each_axis_or_the_named_one() -> None:
    assert scope(mesh="dp:2,tp:-1").axes == ("dp", "tp")
    assert dict(scope(mesh="dp:2,tp:-1").mesh.axes) == {"dp": 2, "tp": 4}
    assert scope(mesh="dp:2,tp:4", axis="tp").axes == ("tp",)
    assert scope(axis="x").axes == ("x",)
    assert str(scope(devices=[4, 5], mesh="a:1,b:2").mesh) == "a:1,b:2"


@pytest.mark.parametrize(("fields", "field", "words"), [
    ({"devices": [0, 9]}, "devices", "device 9 is not there; this host has 8"),
    ({"devices": [-1]}, "devices", "device -1 is not there"),
    ({"devices": [1, 1]}, "devices", "device 1 is named 2 times"),
    ({"mesh": "dp:2,tp:2"}, "mesh", "mesh dp:2,tp:2 has 4 places for 8 devices"),
    ({"mesh": "dp:16"}, "mesh", "16 places for 8 devices"),
    ({"mesh": "dp:3,tp:-1"}, "mesh", "does not divide 8 devices"),
    ({"mesh": "dp:8", "devices": [0, 1]}, "mesh", "8 places for 2 devices"),
    ({"mesh": "dp:8", "axis": "tp"}, "axis", "axis 'tp' is not in mesh dp:8"),
    ({"axis": "tp"}, "axis", "axis 'tp' is not in mesh x:8"),
])  # fmt: skip
def test_what_is_not_there_is_refused_with_field_and_hint(fields: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        scope(**fields)
    assert caught.value.errors[0]["field"] == field
    assert caught.value.hint
