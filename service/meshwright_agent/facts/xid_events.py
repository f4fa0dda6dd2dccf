"""XIDs as NVML's events: what its event set of all cards tells. Runs in the listener; opens the cards and holds them.

Rule: what is open here is open until `close`, and blocks a reset of the cards as long: who listens must be able to end
this process. An event is of the card whose handle it carries, told by the address of the handle, since a card that has
fallen off the bus answers nothing. MIG instances have no events of their own: their card tells them.

Source: NVIDIA, NVML API Reference Guide, "Event Handling Methods" (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from meshwright_agent.facts.health import Xid
from meshwright_agent.facts.sysfs import parse_pci_address

_TIMEOUT: Final = 10
"""NVML_ERROR_TIMEOUT: nothing happened, which is no error."""
MOST_EVENTS: Final = 256
"""An answer; the next one has the others."""


class CannotListenError(RuntimeError):
    """No card here tells XIDs by events; the message says why."""


class XidEvents:
    """The events of all cards; `open` it first.

    Args:
        nvml: the module `pynvml`, or what behaves like it; None: there is none.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._cards: dict[int | None, str] = {}

    @property
    def is_open(self) -> bool:
        """True while cards are held open."""
        return self._set is not None

    def open(self) -> tuple[str, ...]:
        """Registers for the XIDs of each card that tells them; returns their PCI addresses. Open already: the same.

        Raises:
            CannotListenError: NVML is not here or does not start, or no card tells XIDs.
        """
        if self.is_open:
            return tuple(self._cards.values())
        if self._nvml is None:
            raise CannotListenError("the package nvidia-ml-py is not installed")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise CannotListenError(f"NVML does not start: {error}") from error
        try:
            self._register()
        except BaseException:
            self.close()
            raise
        return tuple(self._cards.values())

    def _register(self) -> None:
        errors = []
        try:
            self._set = self._nvml.nvmlEventSetCreate()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise CannotListenError(f"NVML makes no event set: {error}") from error
        for index in range(count):
            try:
                self._register_card(index)
            except self._nvml.NVMLError as error:
                errors.append(f"GPU {index}: {error}")
        if not self._cards:
            raise CannotListenError("no card tells XIDs by events: " + ("; ".join(errors) or "there is none"))

    def _register_card(self, index: int) -> None:
        """Registers for one card; one that knows no such events (vGPUs, old cards) is left out."""
        wanted = self._nvml.nvmlEventTypeXidCriticalError
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        if not self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
            return
        bus_id = self._nvml.nvmlDeviceGetPciInfo(handle).busId
        self._nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        address = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
        self._cards[_locate(handle)] = parse_pci_address(address)

    def wait(self, limit_s: float) -> tuple[Xid, ...]:
        """Returns the XIDs that came within `limit_s`, as soon as there is one; nothing if there was none.

        Raises:
            pynvml.NVMLError: the events end here, as when a card is lost; `close` and open anew.
        """
        found: list[Xid] = []
        while len(found) < MOST_EVENTS:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0 if found else int(limit_s * 1000))
            except self._nvml.NVMLError as error:
                if error.value == _TIMEOUT or found:
                    break
                raise
            address = self._cards.get(_locate(event.device))
            if event.eventType & self._nvml.nvmlEventTypeXidCriticalError and address is not None:
                found.append(Xid(code=int(event.eventData), pci_bus_id=address, sequence=0))
        return tuple(found)

    def close(self) -> None:
        """Lets the cards go; what NVML has to say against it does not matter any more."""
        events, self._set, self._cards = self._set, None, {}
        for function, arguments in (("nvmlEventSetFree", (events,)), ("nvmlShutdown", ())):
            try:
                if arguments != (None,):
                    getattr(self._nvml, function)(*arguments)
            except self._nvml.NVMLError:
                continue


def _locate(handle: Any) -> int | None:
    """Returns where a handle points to: two handles of one card are two objects with the same address."""
    return ctypes.cast(handle, ctypes.c_void_p).value
