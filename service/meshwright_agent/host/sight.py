"""What the watch knows of the host, as one value, and the last of them, kept through restarts of the agent.

Rule: what an earlier agent saw is shown with the age that it has, as `cached`, and only where the same would be seen
again: since the machine's start, with the same jax, settings and variables. It is no look: health waits for one. It is
written when something else was seen than what is kept, not because it was seen again: a look every 30 s would wear out
a flash disk in writing ages.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from meshwright.errors import StoreUnavailableError
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.settings import Settings
from meshwright_agent.store.database import Store
from meshwright_agent.store.sights import TABLE as SIGHT

log = logging.getLogger(__name__)

_PACKAGES: Final = ("meshwright", "jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
"""Whose versions decide what the worker would show."""
_VARIABLES: Final = ("CUDA_", "JAX_", "LIBTPU_", "NVIDIA_VISIBLE", "TPU_", "XLA_")
"""How variables begin that decide which devices JAX sees, and as what."""
KEPT_FOR: Final = timedelta(hours=1)
"""How much older than the last look what is kept may be. That is seen only after an agent was killed, by who asks
before the first look or while the driver hangs: such a fact is up to an hour younger than it says."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
LAST_LIMIT_S: Final = 1.0
"""How long a stop may wait for the last write: devices are given back after it."""
_CHIP_FLEETING: Final = {
    "used_bytes": True,
    "processes": {"__all__": {"used_bytes"}},
    "health": {
        "temperature_celsius",
        "margin_celsius",
        "slowdowns",
        "pcie_generation",
        "performance_state",
        "is_computing",
        "answers",
    },
}
_FLEETING: Final[dict[str, Any]] = {
    "facts_at": True,
    "jax_at": True,
    "facts": {
        "cpu": {"available_bytes"},
        "gpus": {"__all__": _CHIP_FLEETING},
        "holders": True,
        "kernel_log": True,
    },
    "jax": {"devices": {"__all__": {"memory_stats"}}},
}
"""What differs from look to look while nothing happens: times, memory in use, temperatures, clocks. Counters of errors
are not among it: the next agent tells from them what grew since."""


@dataclass(frozen=True)
class Sight:
    """What the watch knows; replaced as a whole, so that a reader never sees half of a look.

    Attributes:
        jax: what the device worker's `describe` answered.
        jax_generation: of the worker that answered; 0: of an earlier life of the agent.
        is_recalled: true while JAX's view is that of an earlier life.
    """

    facts: HostFacts | None = None
    facts_at: datetime | None = None
    jax: dict[str, Any] | None = None
    jax_at: datetime | None = None
    jax_generation: int = 0
    is_recalled: bool = False

    def with_facts(self, facts: HostFacts, at: datetime) -> Sight:
        """Returns the sight after a look at the facts; a recalled view of other devices, or by another driver, ends."""
        if self.is_recalled and self.facts is not None and _outline(self.facts) != _outline(facts):
            return Sight(facts, at)
        return replace(self, facts=facts, facts_at=at)

    def with_jax(self, view: dict[str, Any], at: datetime, generation: int) -> Sight:
        """Returns the sight after a look at JAX's devices."""
        return Sight(self.facts, self.facts_at, view, at, generation)


def _outline(facts: HostFacts) -> object:
    """Returns what of the facts JAX's view depends on."""
    return facts.driver.version, [gpu.key for gpu in facts.gpus], [tpu.key for tpu in facts.tpus]


_SIGHT: Final = TypeAdapter(Sight)


def dump_sight(sight: Sight) -> str:
    """Returns a sight as JSON text, without what is of its moment alone: who held a device, what the kernel said."""
    facts = None if sight.facts is None else replace(sight.facts, holders=None, kernel_log=None)
    return _SIGHT.dump_json(replace(sight, facts=facts)).decode()


def hash_lasting(sight: Sight) -> str:
    """Returns a hash of what a sight says beside what is fleeting: equal hashes, nothing has happened in between."""
    return hashlib.sha256(_SIGHT.dump_json(sight, exclude=_FLEETING)).hexdigest()


def parse_sight(text: str) -> Sight:
    """Returns the sight of an earlier life that `dump_sight` wrote.

    Raises:
        pydantic.ValidationError: the text is no such thing.
    """
    return replace(_SIGHT.validate_json(text), jax_generation=0, is_recalled=True)


def build_sight_key(settings: Settings, environ: Mapping[str, str], boot_id: str) -> str:
    """Returns what must be the same for an earlier sight to hold; empty where the machine's start is not known."""
    if not boot_id:
        return ""
    parts = [
        boot_id,
        settings.cpu_devices,
        [str(root) for root in (settings.sysfs_root, settings.proc_root, settings.dev_root)],
        {name: _read_version(name) for name in _PACKAGES},
        sorted((name, value) for name, value in environ.items() if name.startswith(_VARIABLES)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class SightKeeper:
    """Keeps the last sight in the store.

    Args:
        store: where.
        key: of `build_sight_key`; with an empty one nothing is kept or recalled.
    """

    def __init__(self, store: Callable[[], Store], key: str) -> None:
        self._store = store
        self._key = key
        self._kept = Sight()
        self._kept_hash = ""

    async def recall(self) -> Sight | None:
        """Returns what an earlier life saw, None if that does not hold any more.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        text = await self._store().read_sight(self._key) if self._key else None
        if text is None:
            return None
        try:
            return parse_sight(text)
        except ValidationError as error:
            log.warning("what an earlier agent saw of this host cannot be read and is forgotten: %s", error)
            self._store().note_forgotten(SIGHT, str(error))
            return None

    async def keep(self, sight: Sight) -> None:
        """Writes a sight that holds a view of JAX's, where it says something new or what is kept has become old."""
        if self._is_worth_keeping(sight) and (hash_lasting(sight) != self._kept_hash or self._is_old(sight)):
            await self._write(sight)

    async def keep_last(self, sight: Sight) -> None:
        """Writes the last sight of this life, so that the next tells true ages; a disk that hangs keeps nobody."""
        if self._is_worth_keeping(sight):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LIMIT_S):
                    await self._write(sight)

    def _is_worth_keeping(self, sight: Sight) -> bool:
        return bool(self._key) and sight.jax is not None and not sight.is_recalled and sight != self._kept

    def _is_old(self, sight: Sight) -> bool:
        """Tells whether what is kept was seen long before; also after the clock was set back."""
        return abs(_seen_at(sight) - _seen_at(self._kept)) >= KEPT_FOR

    async def _write(self, sight: Sight) -> None:
        try:
            await self._store().put_sight(self._key, dump_sight(sight))
            self._kept, self._kept_hash = sight, hash_lasting(sight)
        except StoreUnavailableError as error:
            log.debug("the last sight was not kept: %s", error)  # the board says that the store fails


def _seen_at(sight: Sight) -> datetime:
    """Returns when the newest part of a sight was seen; of nothing, long ago."""
    return max((at for at in (sight.facts_at, sight.jax_at) if at is not None), default=_NEVER)
