"""What names of axes mean."""

from __future__ import annotations

import pytest

from meshwright.planning.parallelism import Role, find_role


@pytest.mark.parametrize(("name", "role"), [
    ("dp", "data"), ("replica", "data"), ("fsdp", "fsdp"), ("tp", "tensor"), ("mdl", "tensor"), ("sp", "context"),
    ("cp", "context"), ("ep", "expert"), ("pp", "pipeline"), ("stage", "pipeline"),
])  # fmt: skip
def test_a_name_that_trainers_use_has_a_role_in_any_case(name: str, role: Role) -> None:
    assert find_role(name) == find_role(name.upper()) == role


@pytest.mark.parametrize("name", ["x", "t", "tpu", "fsdp2", "dp ", "", "data_parallel"])
def test_a_name_that_nobody_knows_is_never_the_nearest(name: str) -> None:
    assert find_role(name) is None
