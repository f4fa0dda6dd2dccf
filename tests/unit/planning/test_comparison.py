"""One question on several targets: each answered as if alone, in order, and what fails beside the rest."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.request import answer_request
from meshwright.wire.mesh import Plans, SearchRequest

TRAINING = {"seq_len": 4096, "global_batch_size": 128}


def ask(*targets: str, **fields: Any) -> Plans:
    asked = {"targets": targets, "model": "llama3-8b", "training": TRAINING, "include_devices": False, **fields}
    return answer_request(SearchRequest.model_validate(asked))


def test_each_target_gets_the_answer_that_it_gets_alone_the_fastest_first() -> None:
    found = ask("v5e:4x8", "4*h100:8", "v5p:4x4x4")
    alone = {target: ask(target).plans[0] for target in ("v5e:4x8", "4*h100:8", "v5p:4x4x4")}
    assert {plan.target: plan for plan in found.plans} == alone
    seconds = [plan.step_time.total_s for plan in found.plans if plan.step_time]
    assert seconds == sorted(seconds)
    assert len(seconds) == 3
    assert [each.target for each in found.comparison] == [plan.target for plan in found.plans]
    assert found.comparison[0].message == "the best"
    words = f"{seconds[1] / seconds[0]:.2f} times the step of {found.plans[0].target}"
    assert found.comparison[1].message.startswith(words)


def test_with_prices_the_cheapest_tokens_come_first() -> None:
    prices = {"v5p:4x4x4": 100.0, "v5e:4x8": 0.1}
    found = ask("v5p:4x4x4", "v5e:4x8", price_per_device_hour=prices)
    assert [each.target for each in found.comparison] == ["v5e:4x8", "v5p:4x4x4"]
    assert found.comparison[0].message == "the least price of tokens"
    first, second = (plan.price_per_million_tokens or 0.0 for plan in found.plans)
    assert f"{second / first:.2f} times its price of tokens" in found.comparison[1].message
    # A price for one alone says nothing of the other, so that time decides, and the verdict says so.
    found = ask("v5p:4x4x4", "v5e:4x8", price_per_device_hour={"v5p:4x4x4": 100.0})
    assert [each.target for each in found.comparison] == ["v5p:4x4x4", "v5e:4x8"]
    assert found.comparison[0].message == "the fastest; not compared by price of tokens: no price for v5e:4x8"


def test_at_the_same_price_of_tokens_the_fastest_comes_first() -> None:
    found = ask("4*h100:8", "8*h100:8", price_per_device_hour={"4*h100:8": 1.95, "8*h100:8": 2.0})
    first, second = found.plans
    assert first.target == "8*h100:8"
    assert (first.price_per_million_tokens or 0) > (second.price_per_million_tokens or 0)
    assert found.comparison[0].message == "the least price of tokens, the fastest within 4% of it"


def test_near_targets_are_told_to_be_near() -> None:
    found = ask("v5p:4x4x4", "2*v5p:2x4x4")
    assert "their intervals overlap" in found.comparison[1].message
    found = ask("v5p:4x4x4", "v5e:4x4")
    assert "overlap" not in found.comparison[1].message


def test_the_fallback_is_that_of_the_best() -> None:
    found = ask("h100:8", "4*h100:8", fallback=True)
    assert [plan.target for plan in found.plans] == ["4*h100:8", "h100:8"]
    assert found.fallback is not None
    assert found.fallback == ask("4*h100:8", fallback=True).fallback


PRICES = [(("v5p:4x4x4", "v5e:4x8"), {"v5e:8x8": 1}), (("h100:8",), {"h200:8": 1}), ((), {"x": 1})]
PRICES += [(("h100", "h100:8"), {"h100": 1, "h100:8": 2})]


@pytest.mark.parametrize(("targets", "prices"), PRICES)
def test_a_price_of_no_target_and_two_of_one_are_refused(targets: tuple[str, ...], prices: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ask(*targets, price_per_device_hour=prices)
    assert [error["field"] for error in refused.value.errors] == ["price_per_device_hour"]
    assert refused.value.hint


def test_what_is_wrong_with_every_target_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="is no preset"):
        ask("v5p:4x4x4", "v5e:4x8", model="llama3-9b")
