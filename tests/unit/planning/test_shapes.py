from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.parallelism import search_shapes
from meshwright.spec import MeshSpec

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def offer(mesh: str, count: int) -> list[str]:
    return [str(shape) for shape in search_shapes(MeshSpec.parse(mesh), count)]


@given(SIZES, st.integers(1, 64))
def test_every_shape_on_offer_uses_all_devices_and_keeps_the_axes(sizes: list[int], count: int) -> None:
    spec = MeshSpec(tuple((f"a{i}", size) for i, size in enumerate(sizes)))
    shapes = search_shapes(spec, count)
    assert shapes
    assert all(shape.names == spec.names and shape.device_count == count for shape in shapes)


def test_the_nearest_shape_changes_as_little_as_can_be() -> None:
    assert offer("dp:3,tp:2", 8)[0] == "dp:4,tp:2"
    assert offer("dp:2,tp:8", 8)[0] in {"dp:1,tp:8", "dp:2,tp:4"}
    assert offer("dp:-1,tp:3", 8) == ["dp:2,tp:4", "dp:4,tp:2"]
    assert offer("dp:1152921504606846976", 8) == ["dp:8"]
