"""One manager for all of a process: who makes it, and what replaces it."""

from __future__ import annotations

import threading
import warnings

import jax
import pytest

from meshwright._devices.single import SharedManager
from meshwright.devices import CPUDetector, DeviceConfiguration, DeviceManager, MemoryStrategy

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@pytest.fixture(autouse=True)
def the_backend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no manager changes this process."""
    jax.devices()
    for name in (FRACTION, "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)


class Making:
    """Counts the managers that it makes, and gives a second thread `grace_s` to come in while it makes one."""

    def __init__(self, grace_s: float = 0.0) -> None:
        self.configs: list[DeviceConfiguration | None] = []
        self._grace_s = grace_s
        self._second = threading.Event()

    def __call__(self, config: DeviceConfiguration | None) -> DeviceManager:
        self.configs.append(config)
        if len(self.configs) > 1:
            self._second.set()
        self._second.wait(self._grace_s)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return DeviceManager(config, CPUDetector())


def test_what_is_no_configuration_is_refused_at_every_call() -> None:
    shared = SharedManager(Making())
    for _ in range(2):
        with pytest.raises(TypeError, match="config is a str"):
            shared.get("balanced")  # type: ignore[arg-type]
        shared.get()


def test_threads_that_come_at_once_get_one_manager() -> None:
    making = Making(grace_s=0.1)
    shared, barrier = SharedManager(making), threading.Barrier(16)
    found: list[DeviceManager] = []

    def ask() -> None:
        barrier.wait()
        found.append(shared.get())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(making.configs) == 1
    assert len({id(manager) for manager in found}) == 1
    assert len(found) == 16


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DeviceConfiguration(MemoryStrategy.AGGRESSIVE), rf"{FRACTION}=0\.9 \(it has 0\.75\)"),
        (DeviceConfiguration(platform_priority=["cpu"]), r"platform_priority=cpu \(it has none\)"),
    ],
)
def test_another_configuration_is_warned_of_and_the_manager_stays(config: DeviceConfiguration, words: str) -> None:
    shared = SharedManager(Making())
    manager = shared.get()
    with pytest.warns(RuntimeWarning, match=words) as caught:
        assert shared.get(config) is manager
    assert "force_reinit=True" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_configuration_that_was_changed_since_is_another_one() -> None:
    shared, config = SharedManager(Making()), DeviceConfiguration()
    manager = shared.get(config)
    config.memory_strategy = MemoryStrategy.CONSERVATIVE
    with pytest.warns(RuntimeWarning, match="force_reinit"):
        assert shared.get(config) is manager
    assert shared.get(config, force_reinit=True) is not manager


def test_force_reinit_replaces_the_manager() -> None:
    shared = SharedManager(Making())
    old = shared.get()
    new = shared.get(DeviceConfiguration(MemoryStrategy.AGGRESSIVE), force_reinit=True)
    assert new is not old
    assert shared.get() is new


def test_a_manager_that_could_not_be_made_leaves_the_old_one() -> None:
    shared = SharedManager()
    manager = shared.get()
    with pytest.raises(TypeError):
        shared.get("aggressive", force_reinit=True)  # type: ignore[arg-type]
    assert shared.get() is manager


def test_a_strategy_replaces_the_manager_only_if_it_is_another_one() -> None:
    making = Making()
    shared = SharedManager(making)
    first = shared.get(DeviceConfiguration(platform_priority=["cpu"]))
    assert shared.set_strategy(MemoryStrategy.BALANCED) is first
    second = shared.set_strategy(MemoryStrategy.AGGRESSIVE)
    assert second is not first
    assert second is shared.get()
    assert (second.config.memory_strategy, second.config.platform_priority) == (MemoryStrategy.AGGRESSIVE, ["cpu"])
    assert len(making.configs) == 2


def test_a_custom_strategy_needs_a_fraction() -> None:
    with pytest.raises(ValueError, match="memory_strategy is custom"):
        SharedManager(Making()).set_strategy(MemoryStrategy.CUSTOM)
