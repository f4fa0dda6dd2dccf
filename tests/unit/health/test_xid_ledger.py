from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from meshwright_agent.facts.health import Xid
from meshwright_agent.health.xid_ledger import XidLedger

AT = datetime(2026, 11, 1, tzinfo=UTC)
ONE = Xid(48, "0000:1b:00.0", 7)


def test_what_one_source_told_is_no_news_from_the_other_whichever_comes_first() -> None:
    for first, second in (("nvml", "kernel_log"), ("kernel_log", "nvml")):
        ledger = XidLedger()
        assert ledger.take(first, [ONE], AT) == (ONE,)  # type: ignore[arg-type]
        assert ledger.take(second, [ONE], AT + timedelta(seconds=2)) == ()  # type: ignore[arg-type]


def test_a_log_that_is_read_later_tells_when_it_was() -> None:
    ledger = XidLedger()
    ledger.take("nvml", [ONE], AT)
    assert ledger.take("kernel_log", [replace(ONE, age_s=29.0)], AT + timedelta(seconds=30)) == ()


@pytest.mark.parametrize(
    "other", [replace(ONE, code=63), replace(ONE, pci_bus_id="0000:43:00.0"), replace(ONE, age_s=60.0)]
)
def test_another_number_card_or_time_is_another_xid(other: Xid) -> None:
    ledger = XidLedger()
    ledger.take("nvml", [ONE], AT)
    assert ledger.take("kernel_log", [other], AT) == (other,)


def test_of_several_each_takes_one_and_the_rest_are_news() -> None:
    ledger = XidLedger()
    assert len(ledger.take("nvml", [ONE, ONE], AT)) == 2
    assert len(ledger.take("kernel_log", [ONE, ONE, ONE], AT)) == 1


def test_one_source_alone_may_tell_the_same_again() -> None:
    ledger = XidLedger()
    assert len(ledger.take("nvml", [ONE], AT) + ledger.take("nvml", [ONE], AT)) == 2
