"""`create_mesh` on 8 CPU devices: shapes, the cache, axis types, and wrong input."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import AxisType

from meshwright._mesh_order import NUM_SLICES
from meshwright.mesh import create_mesh, parse_mesh_from_string
from tests.fakes.jax_devices import build_cpus, build_tpus


def test_defaults_give_all_devices_to_fsdp() -> None:
    mesh = create_mesh()
    assert dict(mesh.shape) == {"dp": 1, "fsdp": 8, "ep": 1, "tp": 1, "sp": 1}
    assert list(mesh.devices.flat) == jax.devices()


@pytest.mark.parametrize("use_jax", [False, True])
def test_axis_types_are_auto_on_every_path_unless_said_otherwise(use_jax: bool) -> None:
    assert set(create_mesh(use_jax=use_jax).axis_types) == {AxisType.Auto}
    mixed = create_mesh((2, 4), ("a", "b"), use_jax=use_jax, axis_types=("explicit", "auto"))
    assert mixed.axis_types == (AxisType.Explicit, AxisType.Auto)


def test_given_devices_are_remembered_too_and_keep_their_order() -> None:
    turned = jax.devices()[::-1]
    mesh = create_mesh((2, 4), ("a", "b"), devices=turned)
    assert list(mesh.devices.flat) == turned
    assert create_mesh((2, 4), ("a", "b"), devices=tuple(turned)) is mesh
    assert create_mesh((2, 4), ("a", "b")) is not mesh


def test_the_environment_may_tell_slices_and_the_same_call_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = create_mesh((4, 2), ("a", "b"), dcn_mesh_dims=None)
    monkeypatch.setenv(NUM_SLICES, "2")
    sliced = create_mesh((4, 2), ("a", "b"), dcn_mesh_dims=(1, 2))
    assert [[d.id for d in row] for row in sliced.devices] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert create_mesh((4, 2), ("a", "b"), dcn_mesh_dims=(1, -1), use_jax=True).devices.tolist() == (
        sliced.devices.tolist()
    ), "jax.make_mesh cannot split over granules"
    monkeypatch.delenv(NUM_SLICES)
    assert create_mesh((4, 2), ("a", "b")) is plain


@pytest.mark.parametrize("use_jax", [False, True])
@pytest.mark.parametrize("dcn", [(2, 1), (1, 2), (8, -1), (3, 5), (2,), (0, 1)])
def test_with_one_granule_a_split_has_no_effect_and_says_so(dcn: tuple[int, ...], use_jax: bool) -> None:
    with pytest.warns(UserWarning, match=r"all devices are in one granule .* dcn_mesh_dims has no effect here"):
        mesh = create_mesh((2, 4), ("one", "granule"), dcn, use_jax=use_jax)
    assert mesh.devices.tolist() == create_mesh((2, 4), ("one", "granule")).devices.tolist()


@pytest.mark.parametrize("dcn", [(1, 1), (-1, 1), (1, -1)])
def test_a_split_over_one_granule_that_is_none_is_not_warned_of(dcn: tuple[int, ...]) -> None:
    assert create_mesh((4, 2), ("a", "b"), dcn, use_jax=True).devices.shape == (4, 2)


def test_jax_is_left_to_it_where_it_can_and_agrees_on_equal_devices() -> None:
    ours, theirs = (create_mesh((2, 4), ("a", "b"), use_jax=use_jax) for use_jax in (False, True))
    assert ours.devices.tolist() == theirs.devices.tolist()
    assert ours == theirs


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: create_mesh((2, 3), ("a", "b")), ValueError, r"a:2,b:3 needs 6 devices.*; use a:2,b:4 or a:4,b:2$"),
    (lambda: create_mesh((4, 4), ("a", "b")), ValueError, "needs 16 devices; there are 8.*use a:4,b:2 or a:2,b:4$"),
    (lambda: create_mesh((-1, 3), ("a", "b")), ValueError, "make 3, which does not divide 8 devices.*use"),
    (lambda: create_mesh((-1, -1), ("a", "b")), ValueError, "at most one axis"),
    (lambda: create_mesh((8,), ("a", "b")), ValueError, "has 1 sizes, axis_names .* has 2"),
    (lambda: create_mesh(axis_types="sharded"), ValueError, "one of auto, explicit, manual"),
    (lambda: create_mesh(axis_types=1.5), TypeError, "axis_types is 1.5; it is one axis type or word"),  # type: ignore[arg-type]
    (lambda: create_mesh(axis_types=("auto", None)), TypeError, "NoneType"),  # type: ignore[arg-type]
    (lambda: create_mesh(axis_types=("auto", "sharded")), ValueError, "holds 'sharded'"),
    (lambda: create_mesh(axis_types=("auto",) * 3), ValueError, "has 3 entries, the mesh has 5 axes"),
    (lambda: create_mesh(axis_types=()), ValueError, "has 0 entries"),
    (lambda: create_mesh((2.0, 4), ("a", "b")), TypeError, "float"),  # type: ignore[arg-type]
    (lambda: create_mesh((0, 8), ("a", "b")), ValueError, "has size 0; .*use axis_dims="),
    (lambda: create_mesh((2, 4), ("a", "a")), ValueError, "stands 2 times"),
    (lambda: create_mesh((2, 4), ("a", "")), ValueError, "a name is a word"),
    (lambda: create_mesh((), ()), ValueError, "0 axes"),
    (lambda: create_mesh(backend="gpu", devices=jax.devices()), ValueError, "'gpu' and devices are of cpu"),
    (lambda: create_mesh(devices=[]), ValueError, "devices is empty"),
    (lambda: create_mesh(devices=jax.devices() + jax.devices()[:1]), ValueError, "more than once"),
    (lambda: create_mesh(backend="tpu"), RuntimeError, r"'tpu' was asked for; here are cpu \(8 devices\);.* 'cpu',"),
    (lambda: parse_mesh_from_string("a:3,b:-1", ("a", "b")), ValueError, "does not divide 8"),
    (lambda: parse_mesh_from_string("a:2,c:4", ("a", "b")), ValueError, "'c' is unknown"),
    (lambda: parse_mesh_from_string("2", ()), ValueError, "the mesh has 0 axes; .*use names="),
    (lambda: parse_mesh_from_string("2,4", ("a", "a")), ValueError, "'a' stands 2 times; .*use names="),
])  # fmt: skip
def test_wrong_input_is_refused_with_a_value_that_works(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


TYPES: list[tuple[Any, tuple[AxisType, AxisType]]] = [
    ("EXPLICIT", (AxisType.Explicit, AxisType.Explicit)), (AxisType.Manual, (AxisType.Manual, AxisType.Manual)),
    (["Manual"], (AxisType.Manual, AxisType.Manual)), ((AxisType.Explicit,), (AxisType.Explicit, AxisType.Explicit)),
    (("auto", AxisType.Explicit), (AxisType.Auto, AxisType.Explicit)),
]  # fmt: skip


@pytest.mark.parametrize(("types", "expected"), TYPES)
def test_axis_types_are_one_for_all_or_one_an_axis(types: Any, expected: tuple[AxisType, ...]) -> None:
    assert create_mesh((2, 4), ("a", "b"), axis_types=types).axis_types == expected


NAMED = [
    ("dp:2,tp:4", {"dp": 2, "tp": 4}), (" dp : 2 , tp : -1 ", {"dp": 2, "tp": 4}), ("2,4", {"dp": 2, "tp": 4}),
    ("-1, 4", {"dp": 2, "tp": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shape"), NAMED)
def test_a_text_names_its_axes_or_gives_them_by_position(text: str, shape: dict[str, int]) -> None:
    assert dict(parse_mesh_from_string(text, ("dp", "tp")).shape) == shape


@pytest.mark.parametrize(("text", "words"), [
    ("", "has 1 sizes"), (",4", "axis 'dp' has size ''"), ("dp:2,,tp:4", "empty entry"), ("dp:2,tp:4,", "empty entry"),
    ("dp:2,4", "entry '4' has no size"), ("dp:2,xp:4", "'xp' is unknown"), ("dp:2,dp:4", "'dp' stands 2 times"),
    ("dp:2", "'tp' is missing"), ("dp:2,tp:four", "axis 'tp' has size 'four'; a size is an integer"),
    ("dp:2,tp:4.0", "has size '4.0'"), ("dp:2,tp:", "has size ''"), ("dp:2:3,tp:4", "has size '2:3'"),
    ("dp:0,tp:4", "has size 0"), ("dp:-2,tp:4", "has size -2"), ("dp:-1,tp:-1", "at most one axis"),
    ("2,4,8", "has 3 sizes"), ("2", "has 1 sizes"), ("two,4", "has size 'two'"),
    ("9" * 5000 + ",1", "over 20 digits"),
])  # fmt: skip
def test_the_offending_piece_of_a_text_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse_mesh_from_string(text, ("dp", "tp"))
    assert "use '" in str(caught.value)


def test_an_uneven_mesh_is_told_at_the_line_that_asks() -> None:
    with pytest.warns(UserWarning, match="cross them unevenly") as told:
        create_mesh((3, 2), ("line", "b"), devices=build_cpus(2, 4)[:6])
    assert told[0].filename == __file__


def test_jax_is_not_asked_for_an_order_that_it_would_split() -> None:
    with pytest.raises(ValueError, match="allow_split_physical_axes=True"):
        create_mesh((2, 8), ("a", "b"), use_jax=True, allow_split_physical_axes=False, devices=build_tpus(4, 4))
