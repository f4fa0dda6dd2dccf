"""Whether device memory comes back when the worker has gone: what was in use before it, and what is after.

Rule: a baseline is taken only while no worker is there, and after one has gone not before its memory is back, of each
device by itself: one of which nobody could tell keeps its own; so that what a worker leaves behind does not become the
new normal. Knows no process and no driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshwright.wire.devices import ReturnedMemory

TOLERANCE_BYTES: Final = 64 * 2**20
"""Far below the 300 to 400 MB of a bare CUDA context, which is the least that a worker could leave; far above what a
driver's own bookkeeping was seen to vary by."""


class MemoryBaseline:
    """Memory in use without the worker, by device."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._generations: dict[str, int] = {}  # of the last worker whose memory was seen to be back
        self._missing: tuple[ReturnedMemory, ...] = ()

    def note(self, counted: Mapping[str, int], *, generation: int) -> None:
        """Takes what is in use (`facts.memory.count_unowned`) while no worker is there.

        Args:
            counted: by device.
            generation: of the worker that was there last.
        """
        owed = {device: used for device, used in counted.items() if self._generations.get(device) != generation}
        self._missing = tuple(each for each in self.compare(owed) or () if not each.is_back)
        taken = counted.keys() - {each.device for each in self._missing}
        self._known |= {device: counted[device] for device in taken}
        self._generations |= dict.fromkeys(taken, generation)

    def compare(self, counted: Mapping[str, int]) -> tuple[ReturnedMemory, ...] | None:
        """Returns for each device whether its memory is back; None where nothing is known to compare with."""
        known = {device: used for device, used in counted.items() if device in self._known}
        return tuple(self._judge(device, used) for device, used in known.items()) or None

    def misses(self, counted: Mapping[str, int]) -> bool:
        """Tells whether there is a device with a baseline of which nobody could tell now whose memory is in use."""
        return any(device not in counted for device in self._known)

    def _judge(self, device: str, used_bytes: int) -> ReturnedMemory:
        baseline = self._known[device]
        is_back = used_bytes <= baseline + TOLERANCE_BYTES
        return ReturnedMemory(device=device, baseline_bytes=baseline, used_bytes=used_bytes, is_back=is_back)

    def tell_missing(self) -> str:
        """Returns what the last worker left behind, in words; "" if nothing, or nobody could tell."""
        if not self._missing:
            return ""
        parts = [f"{each.device}: {each.used_bytes} bytes, {each.baseline_bytes} before it" for each in self._missing]
        return f"device memory is not back since the worker has gone: {'; '.join(parts)}"
