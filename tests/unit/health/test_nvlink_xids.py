"""XIDs 144 to 150: lines of real logs, and rows of NVIDIA's table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.health.nvlink_xids import NVLINK5, NvlinkLine, judge_nvlink, parse_nvlink_line
from meshwright_agent.health.xids import judge_xid

REST = "0x00000000 0x00000000 0x00000000 0x00000000"
LINES = {
    f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 {REST})": (
        "NETIR_LINK_EVT",
        True,
        1,
        0x021425C6,
        0,
    ),
    f"RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 {REST})": ("RLW_RXPIPE", False, 13, 0x0409A0C2, 8),
    f"NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 {REST})": ("NETIR", True, -1, 0x000FE406, 0),
    "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]": ("NETIR_LINK_EVT", True, 1, 0xA, None),
    "pid=7, name=x, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)": ("SAW_MVB", False, 0, 1, 8),
}


@pytest.mark.parametrize(("text", "expected"), LINES.items())
def test_each_known_form_of_the_line_is_read(text: str, expected: tuple[object, ...]) -> None:
    assert parse_nvlink_line(text) == NvlinkLine(*expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "NVLink error", "NETIR_LINK_EVT Fatal", "Link 8 (0x1 0x2)"])
def test_other_words_are_no_such_line(text: str) -> None:
    assert parse_nvlink_line(text) is None


def line(unit: str, status: int, *, word: str = "Nonfatal", subcode: int = 0) -> str:
    return f"{unit} {word} XC0 i0 Link 08 (0x{subcode << 20:08x} 0x{status:08x} {REST})"


@pytest.mark.parametrize(
    ("code", "unit", "status", "word", "state"),
    [
        (144, "SAW_MVB", 0x1, "Nonfatal", None),
        (144, "SAW_MVB", 0x10, "Fatal", "unhealthy"),
        (145, "RLW_REMAP", 0x4, "Nonfatal", None),  # XID 154 decides
        (145, "RLW_REMAP", 0x80, "Fatal", "unhealthy"),
        (145, "RLW_RXPIPE", 0x2, "Nonfatal", "degraded"),
        (145, "RLW_TAGSTATE", 0x100000, "Fatal", "unhealthy"),
        (145, "RLW_SRC_TRACK", 0x2 | 0x20, "Fatal", "unhealthy"),  # of several bits the gravest
        (146, "TLW_RX/TLW_RX_PIPE0", 0x4, "Fatal", "unhealthy"),
        (147, "TREX", 0x80000000, "Nonfatal", None),
        (149, "NETIR_BER_EVENT", 0x3, "Nonfatal", None),
        (149, "NETIR_MFDE_EVENT", 0x5, "Fatal", "unhealthy"),
        (150, "MSE_WATCHDOG", 0x0, "Fatal", "unhealthy"),
    ],
)
def test_the_catalogues_action_decides(code: int, unit: str, status: int, word: str, state: str | None) -> None:
    assert judge_xid(code, line(unit, status, word=word)).state == state


@pytest.mark.parametrize(("subcode", "words"), [(2, "cables"), (15, "software"), (36, "other end"), (1, "once a day")])
def test_why_a_link_went_down_is_what_is_to_be_looked_at(subcode: int, words: str) -> None:
    rule = judge_xid(149, line("NETIR_LINK_EVT", 0, word="Fatal", subcode=subcode))
    assert rule.state == "unhealthy"
    assert words in rule.action
    assert "link 8" in rule.meaning


@pytest.mark.parametrize("subcode", [38, 40])
def test_a_link_that_went_down_by_software_asks_for_no_reset(subcode: int) -> None:
    rule = judge_xid(149, line("NETIR_LINK_EVT", 0, word="Fatal", subcode=subcode))
    assert rule.state == "degraded"
    assert "reset" not in rule.action


@given(st.sampled_from(NVLINK5), st.sampled_from(["SAW_MVB", "TLW_TX", "NEW_UNIT"]), st.integers(0, (1 << 32) - 1))
def test_a_line_that_the_table_does_not_know_is_judged_by_its_own_word(code: int, unit: str, status: int) -> None:
    if unit == "NEW_UNIT":
        assert judge_nvlink(code, line(unit, status, word="Fatal")).state == "unhealthy"
        assert judge_nvlink(code, line(unit, status)).state == "degraded"
    else:
        assert judge_nvlink(code, line(unit, status, word="Fatal")).state in {"unhealthy", "degraded"}
