"""The soak's verdict can fail, and the soak itself runs: some seconds of it, with every actor at work."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.__main__ import format_report, soak
from tests.soak.load import ACTORS
from tests.soak.samples import Sample, count_events, count_rows
from tests.soak.verdict import WATCHED, format_table, judge, measure_slope

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


def test_growth_in_the_warm_up_does_not_count() -> None:
    samples = build_samples()
    early = [replace(sample, rss_bytes=30_000_000 + 300_000 * number) for number, sample in enumerate(samples[:99])]
    assert not any(row.is_leak for row in judge(early + samples[99:]))


@pytest.mark.parametrize(
    ("field", "rate", "name"),
    [
        ("rss_bytes", 20_000, "memory (RSS)"),
        ("descriptors", 0.02, "descriptors"),
        ("threads", 0.02, "threads"),
        ("children", 0.02, "child processes"),
        ("zombies", 0.02, "zombies"),
        ("store_bytes", 5_000, "database and its log"),
        ("orphans", 0.02, "events without a run"),
        ("most_events", 0.02, "most events of a run"),
    ],
)
def test_what_grows_slowly_and_steadily_is_a_leak(field: str, rate: float, name: str) -> None:
    rows = judge(build_samples(**{field: rate}))
    assert [row.name for row in rows if row.is_leak] == [name]
    assert "grows" in format_table(rows)


@pytest.mark.parametrize("table", ["runs", "plans"])
def test_a_table_that_grows_is_a_leak_also_when_it_is_a_small_one(table: str) -> None:
    samples = [
        replace(sample, rows={**STILL.rows, table: STILL.rows[table] + number // 3})
        for number, sample in enumerate(build_samples())
    ]
    assert [row.name for row in judge(samples) if row.is_leak] == [f"rows of {table}"]


def test_every_figure_of_a_sample_is_watched() -> None:
    assert len(WATCHED) == len(Sample.__dataclass_fields__) - len({"at_s", "rows"})


def test_documents_are_counted_by_kind_and_events_of_runs_apart(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.sqlite3") as connection:
        connection.execute("CREATE TABLE documents (kind, key)")
        connection.execute("CREATE TABLE events (stream)")
        connection.executemany("INSERT INTO documents VALUES (?, ?)", [("run", "a"), ("plan", "b"), ("plan", "c")])
        streams = ["run/a", "run/a", "run/gone", "health"]
        connection.executemany("INSERT INTO events VALUES (?)", [(stream,) for stream in streams])
    connection.close()
    assert count_rows(tmp_path / "a.sqlite3") == {"plan": 2, "run": 1, "health events": 1}
    assert count_events(tmp_path / "a.sqlite3") == (1, 2)


def test_the_slope_is_that_of_most_points() -> None:
    assert measure_slope([0, 1, 2, 3, 4], [0, 2, 4, 99, 8]) == 2


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="soak for longer"):
        judge(build_samples()[:12])


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_some_seconds_of_it_leave_nothing_behind_and_no_answer_unexplained() -> None:
    soaked = soak(minutes=0.4)
    assert soaked.load.findings == []
    assert soaked.left == ""
    assert {actor for actor, _ in soaked.load.counts} == set(ACTORS)
    assert soaked.load.killed >= 1
    assert "Workers killed" in format_report(soaked)
