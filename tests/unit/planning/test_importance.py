"""How much each axis counts: by what is given, by name, by order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.granules import Weights, weigh_axes


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
