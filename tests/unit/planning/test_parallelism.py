"""What names of axes mean."""

from __future__ import annotations

import pytest

from meshwright.planning.parallelism import ROLE_NAMES, ROLES, Role, find_role


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("dp", "data"),
        ("replica", "data"),
        ("fsdp", "fsdp"),
        ("tp", "tensor"),
        ("mdl", "tensor"),
        ("sp", "context"),
        ("cp", "context"),
        ("ep", "expert"),
        ("pp", "pipeline"),
        ("stage", "pipeline"),
    ],
)
def test_a_name_that_trainers_use_has_a_role_in_any_case(name: str, role: Role) -> None:
    assert find_role(name) == find_role(name.upper()) == role


@pytest.mark.parametrize("name", ["x", "t", "tpu", "fsdp2", "dp ", "", "data_parallel"])
def test_a_name_that_nobody_knows_is_never_the_nearest(name: str) -> None:
    assert find_role(name) is None


def test_every_role_has_names_in_lower_case_and_no_name_has_two_roles() -> None:
    names = [name for each in ROLE_NAMES.values() for name in each]
    assert set(ROLE_NAMES) == set(ROLES)
    assert len(names) == len(set(names))
    assert names == [name.lower() for name in names]


def test_roles_stand_in_the_order_of_their_traffic() -> None:
    assert ROLES == ("pipeline", "data", "fsdp", "expert", "context", "tensor")
