"""XIDs 144 to 150, the NVLinks of Blackwell: what the unit, the interrupt word and the error status in the line mean.

Rule: the catalogue's immediate action decides: a reset is a fault, nothing is an event, and what the driver's recovery
action (XID 154, which NVML tells as well) is to settle is left to it. A line that says more than the table knows is
judged by its own word, Fatal or Nonfatal. Knows no log.

Source: NVIDIA, Xid catalogue, sheet "XID 144-150 Decode" of Xid-Catalog.xlsx (docs.nvidia.com/deploy/xid-errors/
analyzing-xid-catalog.html), read in the table that github.com/leptonai/gpud makes of it (components/accelerator/nvidia/
xid/catalog_generated.go, of 2025-10-29); lines as in its pull requests 1160 and 1174.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from meshwright_agent.health.rules import RESET, XidRule

Verdict = Literal["reset", "later", "driver", "nothing"]
"""RESET_GPU at once, or as the second action; XID_154_EVAL; IGNORE."""

NVLINK5: Final = range(144, 151)
_UNITS: Final = dict(zip(NVLINK5, ("SAW", "RLW", "TLW", "TREX", "NVLPW", "NETIR", "MSE"), strict=True))
_LINE: Final = re.compile(
    r"\b([A-Z][A-Z0-9_]+)(?:/[A-Z0-9_]+)?\s+(Nonfatal|Fatal)\s+XC\s?\d\s+i\s?\d+\s+Link\s+(-?\d{1,3})"
    r"(?:\s+[(\[]0x([0-9a-fA-F]{1,8})(?:\s+0x([0-9a-fA-F]{1,8}))?)?"
)
_SUPPORT: Final = "ask NVIDIA's support if it happens again"


@dataclass(frozen=True)
class NvlinkLine:
    """What the driver prints after the number.

    Attributes:
        unit: "NETIR_LINK_EVT".
        link: -1 is none of them.
        interrupt, status: the first two words in brackets; None: they are not there.
    """

    unit: str
    is_fatal: bool
    link: int
    interrupt: int | None = None
    status: int | None = None

    @property
    def subcode(self) -> int | None:
        """Bits 20 to 25 of the interrupt word: why a link went down."""
        return None if self.interrupt is None else self.interrupt >> 20 & 0x3F


_BITS: Final[Mapping[str, Mapping[Verdict, int]]] = {
    "SAW_MVB": {"reset": 0x12, "nothing": 0x2D},
    "RLW_CTRL": {"nothing": 0x80000000},
    "RLW_REMAP": {"reset": 0xC0, "driver": 0x3F, "nothing": 0x80000300},
    "RLW_RSPCOL": {"reset": 0x2, "nothing": 0x80000001},
    "RLW_RXPIPE": {"later": 0x7, "nothing": 0x80000008},
    "RLW_SRC_TRACK": {"reset": 0x31, "driver": 0xC, "nothing": 0x80000002},
    "RLW_TAGSTATE": {"reset": 0x120002, "nothing": 0x80010001},
    **{
        unit: {"reset": 0x4, "nothing": 0x80000003}
        for unit in ("TLW_CTRL", "TLW_RX", "TLW_RX_PIPE0", "TLW_RX_PIPE1", "TLW_TX", "TLW_TX_PIPE0", "TLW_TX_PIPE1")
    },
    "TREX": {"nothing": 0x80000001},
    "NVLPW_CTRL": {"nothing": 0x80000000},
    "NVLPW": {"nothing": 0x80000000},
}
"""Unit → what each bit of its error status asks for."""

_VALUES: Final[Mapping[str, Mapping[Verdict, frozenset[int]]]] = {
    "NETIR_BER_EVENT": {"nothing": frozenset(range(4))},
    "NETIR_MFDE_EVENT": {"reset": frozenset({1, 4, 5, 7}), "nothing": frozenset({3})},
    "NETIR": {"reset": frozenset({0})},
    "NETIR_INT": {"reset": frozenset({0})},
    "MSE_WATCHDOG": {"reset": frozenset({0})},
}
"""Unit → what its error status, as a number, asks for."""

_LINK_DOWN: Final = frozenset({"NETIR_LINK_EVT", "NETIR_LINK_DOWN"})
_SIGNAL, _SOFTWARE, _PEER = (
    "have the link's signal and cables looked at",
    "look at what software or a user did to the link",
    "look at the device at the link's other end",
)
_CAUSES: Final[Mapping[int, tuple[Verdict, str]]] = {
    0: ("reset", "look for the report of the link's other end"),
    1: ("reset", "report it to NVIDIA if it is seen more than once a day"),
    **dict.fromkeys((2, 4, 10, 42, 43), ("reset", _SIGNAL)),
    **dict.fromkeys((15, 17, 22), ("reset", _SOFTWARE)),
    **dict.fromkeys((16, 18), ("reset", f"{_SOFTWARE}, and {_SIGNAL}")),
    **dict.fromkeys((21, *range(32, 38)), ("reset", _PEER)),
    38: ("nothing", _SOFTWARE),
    40: ("nothing", "look at the host"),
}
"""Why a link went down (`NvlinkLine.subcode`) → what the catalogue does at once, and what it has looked at."""


def parse_nvlink_line(text: str) -> NvlinkLine | None:
    """Returns what a line of XIDs 144 to 150 says; None for a text of another form.

    Known are "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x021425c6 0x00000000 …)", and of drivers before R575
    "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]".
    """
    found = _LINE.search(text)
    if found is None:
        return None
    interrupt, status = (None if word is None else int(word, 16) for word in (found[4], found[5]))
    return NvlinkLine(found[1], found[2] == "Fatal", int(found[3]), interrupt, status)


def judge_nvlink(code: int, text: str) -> XidRule:
    """Returns what one of XIDs 144 to 150 means, by the words beside it as far as there are any."""
    line = parse_nvlink_line(text)
    if line is None:
        return XidRule(f"NVLink error ({_UNITS[code]})", "degraded", f"look at the kernel log's line; {_SUPPORT}")
    where = f" of link {line.link}" if line.link >= 0 else ""
    meaning = f"{'fatal ' if line.is_fatal else ''}NVLink error ({line.unit}{where})"
    verdict, advice = _find_verdict(line)
    match verdict:
        case "reset":
            return XidRule(meaning, "unhealthy", f"{RESET}; {advice}")
        case "later":
            return XidRule(meaning, "degraded", f"reset the GPU at the next chance; {advice}")
        case "driver":
            return XidRule(meaning, None, f"restart the job; the driver's recovery action says what else; {advice}")
        case "nothing" if not line.is_fatal:
            return XidRule(meaning, None, advice)
        case "nothing":
            return XidRule(meaning, "degraded", advice)
    if line.is_fatal:
        return XidRule(meaning, "unhealthy", f"{RESET}; {_SUPPORT}")
    return XidRule(meaning, "degraded", f"reset the GPU at the next chance; {_SUPPORT}")


def _find_verdict(line: NvlinkLine) -> tuple[Verdict | None, str]:
    """Returns what the catalogue asks for, and what it has looked at; None where it has no such row."""
    if line.unit in _LINK_DOWN:
        return _CAUSES.get(-1 if line.subcode is None else line.subcode, (None, _SUPPORT))
    if line.status is None:
        return None, _SUPPORT
    if line.unit in _VALUES:
        found = [verdict for verdict, values in _VALUES[line.unit].items() if line.status in values]
        return (found[0] if found else None), _SIGNAL if line.unit == "NETIR_BER_EVENT" else _SUPPORT
    bits = _BITS.get(line.unit, {})
    order: tuple[Verdict, ...] = ("reset", "later", "driver", "nothing")  # of several bits the gravest counts
    return next((verdict for verdict in order if line.status & bits.get(verdict, 0)), None), _SUPPORT
