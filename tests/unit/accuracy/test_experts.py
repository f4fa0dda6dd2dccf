"""Published mixtures of experts on TPUs: the rows are what was published, and no one constant meets them."""

from __future__ import annotations

import pytest

from tests.accuracy.experts import ExpertRun, find_error, find_routed, price_experts, read_expert_runs

RUNS = read_expert_runs()


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "devices"),
    [
        # Published beside the seconds: tokens/s of a device, or of a chip of two.
        ("llama4-maverick-v5p-128", 1321.725, 128),
        ("qwen3-235b-a22b-tpu7x-256", 4245.89, 256),
        ("deepseek3-671b-tpu7x-128", 2425.75, 128),
        ("deepseek3-671b-tpu7x-256", 2446.25, 256),
        ("gpt-oss-120b-tpu7x-64", 10975.31, 64),
        ("gpt-oss-120b-tpu7x-256", 10810.77, 256),
    ],
)
def test_batch_and_seconds_come_to_the_published_tokens(name: str, tokens_per_s: float, devices: int) -> None:
    (run,) = (each.run for each in RUNS if each.run.id == name)
    assert run.step_s is not None
    assert run.tokens / run.step_s / devices == pytest.approx(tokens_per_s, rel=1e-3)


def test_devices_are_those_of_the_targets() -> None:
    assert [each.run.devices for each in RUNS] == [128, 512, 4, 256, 512, 128, 512]


def test_each_is_predicted_too_fast() -> None:
    assert all(find_error(each) < -0.05 for each in RUNS)


@pytest.mark.parametrize("each", RUNS, ids=lambda each: each.run.id)
def test_the_constant_that_would_meet_a_run_meets_it(each: ExpertRun) -> None:
    assert float(price_experts(each, routed=find_routed(each)).total_s) == pytest.approx(each.run.step_s, rel=1e-3)


def test_no_one_constant_meets_them_all() -> None:
    needed = [find_routed(each) for each in RUNS]
    assert max(needed) > 20 * min(needed)
