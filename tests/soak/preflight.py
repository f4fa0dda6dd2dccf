"""`python -m tests.soak.preflight --hosts 8 --rounds 20`: each fault so often, another host each time; a table."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Sequence
from statistics import median

from tests.process.bad_hosts import FAULTS, STEADY, check, list_blamed
from tests.process.namespaces import start_hosts

CLEAN = "none"


def soak(count: int, rounds: int, faults: Sequence[str], timeout_s: int) -> bool:
    """Prints one row for each fault; returns whether all were named and nobody else."""
    is_good, chance = True, random.Random(0)
    print(f"| {count} hosts, fault | named | others blamed | median |\n|---|---|---|---|", flush=True)
    with start_hosts(count, **STEADY) as (network, agents):
        for name in faults:
            named, others, took_s = 0, 0, []
            for _ in range(rounds):
                bad, fault, began_s = chance.randrange(count), FAULTS.get(name), time.monotonic()
                with fault.make(network, agents, bad) if fault else contextlib.nullcontext():
                    _, report = check(agents, timeout_s)
                took_s.append(time.monotonic() - began_s)
                blamed, expected = set(list_blamed(report)), {bad} if fault else set()
                named += expected <= blamed and report["verdict"] == ("fault" if fault else "ok")
                others += bool(blamed - expected)
                for wrongly in blamed - expected:
                    print(f"round with host {bad} bad: {report['hosts'][wrongly]['findings']}", file=sys.stderr)
            is_good = is_good and named == rounds and not others
            print(f"| {name} | {named} of {rounds} | {others} of {rounds} | {median(took_s):.0f} s |", flush=True)
    return is_good


def main() -> int:
    """Returns 1 if a fault was not named, or another host was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--timeout", type=int, default=90)
    parser.add_argument("--faults", nargs="+", default=[CLEAN, *FAULTS], choices=[CLEAN, *FAULTS])
    given = parser.parse_args()
    return int(not soak(given.hosts, given.rounds, given.faults, given.timeout))


if __name__ == "__main__":
    sys.exit(main())
