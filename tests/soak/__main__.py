"""`python -m tests.soak --minutes 30 [--write]`: the load, the samples, the table, and a verdict as the exit status."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import httpx

from tests.agents import RunningAgent, start_agent, wait_for
from tests.compiler.page import put_section
from tests.documents import ROOT
from tests.process.living import RELEASE_LIMIT_S, await_state, do_bench, end_leases
from tests.soak.load import Load
from tests.soak.samples import Sample, count_zombies, take_sample
from tests.soak.verdict import WARM_UP, Row, format_table, judge

PAGE: Final = ROOT / "docs/explanation/robustness.md"
LOG: Final = ROOT / "build/soak-agent.log"
SAMPLE_EVERY_S: Final = 2.0
SETTINGS: Final = {"MESHWRIGHT_PROBE_INTERVAL_S": "5", "MESHWRIGHT_LOG_LEVEL": "warning"}


@dataclass(frozen=True)
class Soaked:
    """What a soak found."""

    minutes: float
    load: Load
    samples: list[Sample]
    left: str
    """What was still there in the end and should not be; empty: nothing."""

    @property
    def rows(self) -> list[Row]:
        return judge(self.samples)

    @property
    def faults(self) -> list[str]:
        """Returns what is wrong, in words; nothing is what one wants."""
        grown = [f"{row.name} grew by {row.growth:.1f} {row.unit}" for row in self.rows if row.is_leak]
        return [*grown, *self.load.findings[:20], *([self.left] if self.left else [])]


def soak(minutes: float) -> Soaked:
    """Returns what so many minutes of load did to an agent of its own."""
    with start_agent(cpu_devices=4, module="tests.soak.small", **SETTINGS) as agent:
        await_state(agent, "driver", "healthy")
        _fill_leases(agent)
        load, samples, began_s = Load(agent), list[Sample](), time.monotonic()
        load.start()
        try:
            while time.monotonic() - began_s < minutes * 60:
                samples.append(take_sample(agent, began_s))
                time.sleep(min(SAMPLE_EVERY_S, minutes * 60 / 40))
        finally:
            load.stop()
        return Soaked(minutes, load, samples, _find_left(agent))


def _fill_leases(agent: RunningAgent) -> None:
    """Makes and ends more leases than `small` keeps."""
    with httpx.Client(base_url=agent.url, timeout=60) as http:
        for _ in range(110):
            lease = http.put(f"/leases/{uuid.uuid4().hex}", json={"purpose": "soak"}).raise_for_status().json()
            http.delete(f"/leases/{lease['id']}").raise_for_status()


def _find_left(agent: RunningAgent) -> str:
    """Returns what does not go away when the load does; and proves that the agent works still."""
    end_leases(agent)
    do_bench(agent)
    try:
        wait_for(lambda: count_zombies(agent.pid) == 0, agent, limit_s=10)
    except AssertionError:
        return f"{count_zombies(agent.pid)} zombies"
    before, mark, rest = agent.log_text().partition("Traceback")
    if not mark:
        return ""
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text(before + mark + rest)
    return f"a traceback in the agent's log, which is kept as {LOG.relative_to(ROOT)}: {mark}{rest[:5000]}"


def format_report(soaked: Soaked) -> str:
    """Returns the report as Markdown."""
    counts, load = soaked.load.counts, soaked.load
    asked = ", ".join(f"{_count(load, actor):,} {actor}" for actor in dict.fromkeys(name for name, _ in sorted(counts)))
    refused = sum(count for (_, outcome), count in counts.items() if outcome not in {"answered", "left"})
    late, worst = sum(each > RELEASE_LIMIT_S for each in load.releases_s), max(load.releases_s, default=0.0)
    verdict = f"Verdict: {'; '.join(soaked.faults) or 'nothing grows, every answer was expected.'}"
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    return (
        f"{soaked.minutes:g} minutes on {datetime.now(UTC):%Y-%m-%d}, {machine}, 4 virtual CPU devices. "
        f"Answers: {asked}; {refused:,} of them refusals that the load itself causes. Workers killed: {load.killed}. "
        f"{late} of {len(load.releases_s)} releases took more than {RELEASE_LIMIT_S:g} s, the worst {worst:.2f} s. "
        f"{len(soaked.samples)} samples, of which the first {WARM_UP:.0%} do not count.\n\n"
        f"{format_table(soaked.rows)}\n\n{verdict}\n"
    )


def _count(load: Load, actor: str) -> int:
    return sum(count for (name, _), count in load.counts.items() if name == actor)


def main() -> int:
    """Soaks, prints the report; returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    soaked = soak(options.minutes)
    report = format_report(soaked)
    print(report)
    if options.write:
        PAGE.write_text(put_section(PAGE.read_text(), "soak", f"\n{report}\n"))
    return 1 if soaked.faults else 0


if __name__ == "__main__":
    sys.exit(main())
