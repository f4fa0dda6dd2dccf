"""The one device manager of a process.

Rule: the first call creates it. A second configuration replaces it only on request. Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from meshwright._devices.manager import DeviceManager, check_types, describe_effect, set_strategy
from meshwright._devices.starting import read_configuration
from meshwright._warning import warn
from meshwright.environment import DeviceConfiguration, MemoryStrategy


class SharedManager:
    """Holds one manager, and makes it at the first question.

    Args:
        make: makes a manager of a configuration.
    """

    def __init__(self, make: Callable[[DeviceConfiguration | None], DeviceManager] = DeviceManager) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._manager: DeviceManager | None = None

    def get(self, config: DeviceConfiguration | None = None, force_reinit: bool = False) -> DeviceManager:
        """Returns the manager; a new one at first, and with `force_reinit`."""
        check_types(config, None)
        with self._lock:
            if self._manager is None or force_reinit:
                self._manager = self._make(config)
            elif config is not None and describe_effect(config) != self._manager.effect:
                warn(_describe_conflict(describe_effect(config), self._manager.effect))
            return self._manager

    def set_strategy(self, strategy: MemoryStrategy) -> DeviceManager:
        """Returns the manager with this memory strategy; a new one with otherwise the same, where it had another."""
        with self._lock:
            present = read_configuration(os.environ) if self._manager is None else self._manager.config
            config = set_strategy(present, strategy)
            is_new = self._manager is None or describe_effect(config) != self._manager.effect
            return self.get(config, force_reinit=is_new)


def _describe_conflict(asked: Mapping[str, str], present: Mapping[str, str]) -> str:
    names = [name for name in {**asked, **present} if asked.get(name) != present.get(name)]
    changes = ", ".join(f"{name}={asked.get(name) or 'none'} (it has {present.get(name) or 'none'})" for name in names)
    return (
        f"another configuration was asked for: {changes}; this process has a device manager already, one for all, and "
        f"keeps it; give the configuration at the first call, or force_reinit=True to replace the manager"
    )
