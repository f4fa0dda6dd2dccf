"""How much each axis counts: by what is given, by name, by order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.planning.granules import (
    Weights,
    check_importance,
    weigh_axes,
)


def weigh(*names: str, sizes: tuple[int, ...] | None = None) -> Weights:
    return weigh_axes(names, sizes or (2,) * len(names))


@pytest.mark.parametrize("name", ["x", "fsdp2", "tp1", "mytensor", "", "größe"])
def test_a_name_that_nobody_knows_counts_as_fsdp_does(name: str) -> None:
    assert weigh("tp", name, "dp") == weigh("tp", "fsdp", "dp")
    assert weigh("ep", name) == Weights((1, 1 / 4), (1, 1 / 64))
    assert weigh(name, "dp") == Weights((1, 1 / 4), (1, 1 / 64))
    assert weigh(name, "zero").inside == (1 / 4, 1), "of one rank, the inner one counts more"


@given(st.permutations(["tp", "cp", "ep", "fsdp", "dp", "pp"]), st.lists(st.sampled_from("xyz"), unique=True))
def test_unknown_names_change_nothing_between_known_ones(names: list[str], unknown: list[str]) -> None:
    alone, joined = weigh(*names).inside, weigh(*names, *unknown).inside
    ranked = sorted(range(6), key=lambda place: alone[place])
    assert sorted(range(6), key=lambda place: joined[place]) == ranked


# ---- as given -------------------------------------------------------------------------------------------------------


@given(st.lists(st.just(0.0) | st.floats(1e-6, 1e12), min_size=1, max_size=5), st.sampled_from([0.5, 2.0, 1024.0]))
def test_only_ratios_count(figures: list[float], unit: float) -> None:
    names = [f"a{place}" for place in range(len(figures))]
    sizes = (2,) * len(names)
    one = weigh_axes(names, sizes, dict(zip(names, figures, strict=True)))
    other = weigh_axes(names, sizes, {name: unit * figure for name, figure in zip(names, figures, strict=True)})
    assert one.inside == pytest.approx(other.inside)
    assert max(one.inside) == (1 if any(figures) else 0)


@pytest.mark.parametrize(
    ("importance", "words"),
    [
        ({"dp": 1.0}, "axis 'tp' is left out"),
        ({}, "axis 'dp' is left out"),
        ({"dp": 1.0, "tp": 2.0, "pp": 3.0}, "axis 'pp' is not in the mesh"),
        ({"dp": 1.0, "TP": 2.0}, "axis 'TP' is not in the mesh"),
    ],
)
def test_importance_has_a_figure_for_each_axis_or_is_refused_with_one_that_has(
    importance: dict[str, float], words: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_importance(importance, ("dp", "tp"))
    assert words in caught.value.detail
    assert "(dp, tp)" in caught.value.detail
    assert caught.value.errors[0]["field"] == "importance"
    assert "such as dp:1,tp:2, or leave it out" in caught.value.hint
    assert check_importance({"dp": 1, "tp": 2}, ("dp", "tp")) == {"dp": 1, "tp": 2}
    assert check_importance(None, ("dp", "tp")) is None
