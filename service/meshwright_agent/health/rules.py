"""What a number of NVIDIA's drivers can mean for a part: the shape of every row of the tables beside this file.

Rule: words that two tables share stand here. Knows no number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meshwright.wire.health import State

RESET: Final = "drain the GPU, then reset it (nvidia-smi --gpu-reset -i N) or reboot the host"
RMA: Final = "RMA the card"


@dataclass(frozen=True)
class XidRule:
    """What one XID or SXID means.

    Attributes:
        meaning: NVIDIA's words, shortened.
        state: of the device or switch while the fault stands; None: it is an event and no fault.
        action: what to do, as a sentence for an operator.
    """

    meaning: str
    state: State | None
    action: str = ""
