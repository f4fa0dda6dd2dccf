"""The soak's verdict can fail, and the soak itself runs: some seconds of it, with every actor at work."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.soak.__main__ import format_report, soak
from tests.soak.load import ACTORS
from tests.soak.samples import Sample
from tests.soak.verdict import format_table, judge

STILL = Sample(0, 60_000_000, 30, 4, 2, 0, 2_000_000, 0, 6, {"runs": 100, "plans": 16})


def build_samples(**growth_a_sample: float) -> list[Sample]:
    """300 noisy samples, two seconds apart, in which some figures grow."""
    chance = random.Random(1)
    samples = []
    for number in range(300):
        noisy = replace(STILL, at_s=2.0 * number, rss_bytes=STILL.rss_bytes + chance.randrange(2_000_000))
        grown = {name: getattr(noisy, name) + int(number * rate) for name, rate in growth_a_sample.items()}
        samples.append(replace(noisy, **grown))
    return samples


def test_noise_and_a_peak_are_no_leak() -> None:
    samples = build_samples()
    samples[250] = replace(samples[250], rss_bytes=200_000_000, descriptors=900)
    assert [row.name for row in judge(samples) if row.is_leak] == []


@pytest.mark.parametrize(("field", "rate", "name"), [
    ("rss_bytes", 20_000, "memory (RSS)"), ("descriptors", 0.02, "descriptors"), ("threads", 0.02, "threads"),
    ("children", 0.02, "child processes"), ("zombies", 0.02, "zombies"), ("store_bytes", 5_000, "database and its log"),
    ("orphans", 0.02, "events without a run"), ("most_events", 0.02, "most events of a run"),
])  # fmt: skip
def test_what_grows_slowly_and_steadily_is_a_leak(field: str, rate: float, name: str) -> None:
    rows = judge(build_samples(**{field: rate}))
    assert [row.name for row in rows if row.is_leak] == [name]
    assert "grows" in format_table(rows)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_some_seconds_of_it_leave_nothing_behind_and_no_answer_unexplained() -> None:
    soaked = soak(minutes=0.25)
    assert (soaked.load.findings, soaked.left) == ([], "")
    assert {actor for actor, _ in soaked.load.counts} == set(ACTORS)
    assert soaked.load.killed >= 1
    assert "Workers killed" in format_report(soaked)
