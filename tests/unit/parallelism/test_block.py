"""The parallelism block of a config, and the one arithmetic on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.parallelism import data_parallel_coords, dp_world_size, parse_parallelism_conf

BLOCKS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.sampled_from(["fsdp2", "ddp", "none"]), "tensor": st.integers(1, 64), "domain": st.integers(1, 64),
    },
)  # fmt: skip


def nest(block: object) -> dict[str, Any]:
    return {"model": {"layers": 2}, "trainer": {"epochs": 3, "parallelism": block}}


@pytest.mark.parametrize(("block", "parsed"), [
    ({}, ("none", 1, 1)), ({"data": "fsdp2"}, ("fsdp2", 1, 1)), ({"data": "ddp", "tensor": 2}, ("ddp", 2, 1)),
    ({"data": "none", "domain": 4}, ("none", 1, 4)),
    ({"data": "fsdp2", "tensor": "2", "domain": " 4 "}, ("fsdp2", 2, 4)), ({"tensor": np.int64(8)}, ("none", 8, 1)),
    (OrderedDict(domain=2, tensor=3), ("none", 3, 2)), (MappingProxyType({"tensor": 2}), ("none", 2, 1)),
])  # fmt: skip
def test_a_block_is_read_with_its_defaults(block: Mapping[str, Any], parsed: tuple[str, int, int]) -> None:
    answer = parse_parallelism_conf(nest(block))
    assert answer == dict(zip(("data", "tensor", "domain"), parsed, strict=True))
    assert [type(value) for value in answer.values()] == [str, int, int]


@pytest.mark.parametrize(("conf", "there"), [
    ({}, "the config holds nothing"), (None, "the config is None"), ("x", "the config is 'x'"),
    ({"data": "fsdp2", "tensor": 2}, "the config holds 'data', 'tensor'"),
    ({"trainer": None}, "its trainer is None"), ({"trainer": {}}, "its trainer holds nothing"),
    ({"trainer": {"mode": "fsdp"}}, "its trainer holds 'mode'"),
    ({"trainer": {"parallelism": None}}, "parallelism is None"),
    ({"trainer": ["parallelism"]}, "trainer is ['parallelism']"),
    ({"trainer": {"parallelism": "fsdp2"}}, "parallelism is 'fsdp2'"),
])  # fmt: skip
def test_a_missing_block_is_named_with_what_stands_in_its_place(conf: Any, there: str) -> None:
    with pytest.raises(ValueError, match=r"trainer\.parallelism") as caught:
        parse_parallelism_conf(conf)
    assert there in str(caught.value)
    assert '{"trainer": {"parallelism": {"data": "fsdp2", "tensor": 2, "domain": 1}}}' in str(caught.value)


@pytest.mark.parametrize(("key", "value", "words"), [
    *(("tensor", value, "integer ≥ 1") for value in (0, -1, "0", "-2", "", "two", "2.0", "1_0", "²", "9" * 5000)),
    *(("domain", value, "integer ≥ 1") for value in (2.0, 1.5, True, False, None, [2], float("nan"), np.True_)),
    *(("data", value, "fsdp2, ddp, none") for value in (None, "", 2, ["ddp"], True, np.array(["ddp", "none"]))),
    ("data", "fsdp", "did you mean 'fsdp2'"), ("data", "DDP", "did you mean 'ddp'"),
    ("data", "None", "did you mean 'none'"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused_with_its_key(key: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=f"trainer.parallelism.{key} is ") as caught:
        parse_parallelism_conf(nest({"tensor": 1, key: value}))
    assert words in str(caught.value)
    assert repr(value)[:80] in str(caught.value)
    assert f"; write {key}: " in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("key", "near"), [
    ("tensr", "(did you mean 'tensor'?)"), ("Domain", "(did you mean 'domain'?)"), ("date", "(did you mean 'data'?)"),
    ("pipeline", "unknown key 'pipeline'; its keys"), (7, "unknown key 7; its keys"),
])  # fmt: skip
def test_an_unknown_key_is_named_with_those_near_to_it(key: object, near: str) -> None:
    with pytest.raises(ValueError, match=r"trainer\.parallelism has the unknown key") as caught:
        parse_parallelism_conf(nest({"data": "ddp", key: 2}))
    assert near in str(caught.value)
    assert "data, tensor, domain" in str(caught.value)


@given(block=BLOCKS, world_size=st.integers(1, 5000))
def test_ranks_that_do_not_divide_are_refused_with_a_number_that_works(block: dict[str, Any], world_size: int) -> None:
    each = block.get("tensor", 1) * block.get("domain", 1)
    if world_size % each == 0:
        assert dp_world_size(block, world_size) * each == world_size
        return
    with pytest.raises(ValueError, match="not divisible") as caught:
        dp_world_size(block, world_size)
    offered = str(caught.value).split("; use ")[1].split(" ranks")[0]
    for number in offered.split(" or "):
        assert dp_world_size(block, int(number)) * each == int(number)
    product = int(str(caught.value).rsplit("such as ", 1)[1])
    assert world_size % product == 0


@pytest.mark.parametrize(("block", "world_size", "error", "words"), [
    ({"tensor": 3}, 8, ValueError, "world_size 8 is not divisible by tensor 3 · domain 1 = 3"),
    ({"tensor": 16}, 8, ValueError, "use 16 ranks"), ({}, 0, ValueError, "world_size is 0; it is an integer ≥ 1"),
    ({}, -8, ValueError, "world_size is -8"), ({}, 8.0, TypeError, "float"),
    ({"tensor": 0}, 8, ValueError, "trainer.parallelism.tensor"),
    ({"tensr": 2}, 8, ValueError, "did you mean 'tensor'"),
    ({"trainer": {"parallelism": {"tensor": 2}}}, 8, ValueError, "this is the whole config"),
])  # fmt: skip
def test_a_wrong_block_or_size_is_refused(block: Any, world_size: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        dp_world_size(block, world_size)
    assert words in str(caught.value)


# ---- the sampler's coordinates ----


@given(block=BLOCKS, replicas=st.integers(1, 6))
def test_the_parts_of_the_data_divide_the_ranks_evenly(block: dict[str, Any], replicas: int) -> None:
    tensor, domain = (min(block.get(key, 1), 5) for key in ("tensor", "domain"))
    conf = nest({**block, "tensor": tensor, "domain": domain})
    world_size = replicas * tensor * domain
    shape = (replicas, tensor, domain)
    for rank in range(world_size):
        coordinate = np.unravel_index(rank, shape)[0]  # domain innermost
        assert data_parallel_coords(conf, rank=rank, world_size=world_size) == (coordinate, replicas)


@pytest.mark.parametrize(("rank", "world_size", "error", "words"), [
    (0, None, ValueError, "rank is 0 and world_size is None; both are given or neither"),
    (None, 8, ValueError, "rank is None and world_size is 8"), (8, 8, ValueError, "ranks are 0 to 7"),
    (-1, 8, ValueError, "rank is -1"), (0, 6, ValueError, "not divisible"), (0, 0, ValueError, "world_size is 0"),
    (1.0, 8, TypeError, "float"),
])  # fmt: skip
def test_a_wrong_rank_is_refused(rank: Any, world_size: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        data_parallel_coords(nest({"tensor": 4}), rank=rank, world_size=world_size)
    assert words in str(caught.value)


def test_a_process_by_itself_reads_everything_whatever_its_degrees() -> None:
    assert data_parallel_coords(nest({})) == (0, 1)
    assert data_parallel_coords(nest({"data": "fsdp2", "tensor": 2, "domain": 2})) == (0, 1)


def test_a_wrong_config_is_noticed_by_a_process_by_itself_too() -> None:
    with pytest.raises(ValueError, match=r"trainer\.parallelism is missing"):
        data_parallel_coords({"trainer": {}})
    with pytest.raises(ValueError, match=r"trainer\.parallelism\.tensor"):
        data_parallel_coords(nest({"tensor": "many"}))
