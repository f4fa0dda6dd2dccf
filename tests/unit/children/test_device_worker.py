"""The device worker: one that cannot start, what it reads of a device, and the signs that a preflight gives."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from meshwright.errors import UnavailableError
from meshwright_agent.children import device, preflight
from meshwright_agent.clock import SystemClock
from meshwright_agent.supervisor.supervisor import ChildSpec, Supervisor
from tests.fakes.codes import has_code


async def test_a_jax_that_cannot_start_fails_with_its_own_words_and_traceback() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "no_such_platform"}
    spec = ChildSpec("device", "meshwright_agent.children.device", lambda: environment)
    supervisor = Supervisor(spec, clock=SystemClock())
    with pytest.raises(
        UnavailableError, match=r"it cannot work: RuntimeError: .*no_such_platform", check=has_code("worker_failed")
    ) as caught:
        await supervisor.call("devices", {}, deadline_s=60.0)
    await supervisor.close()
    assert any("Traceback" in line for line in caught.value.log)


class TpuLike:
    """The members that a jax.Device of a TPU has and a CPU's has not."""

    id, device_kind, platform, process_index, local_hardware_id = 5, "TPU v5 lite", "tpu", 1, 1
    coords, core_on_chip, slice_index = (1, 2, 0), 0, 0

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_in_use": 1024, "bytes_limit": 2048}


class RocmLike:
    """One whose allocator tells nothing."""

    id, device_kind, platform, process_index, local_hardware_id = 0, "AMD Instinct MI300X", "rocm", 0, 0

    def memory_stats(self) -> dict[str, int]:
        raise RuntimeError("UNIMPLEMENTED")


def test_coordinates_and_memory_are_told_where_the_platform_has_them() -> None:
    tpu, rocm = device.read_device(TpuLike()), device.read_device(RocmLike())
    assert (tpu["coords"], tpu["core_on_chip"], tpu["slice_index"]) == ([1, 2, 0], 0, 0)
    assert tpu["memory_stats"] == {"bytes_in_use": 1024, "bytes_limit": 2048}
    assert (rocm["platform"], rocm["coords"], rocm["memory_stats"]) == ("gpu", None, None)


def test_no_sign_of_a_preflight_follows_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    def send(value: object) -> None:
        said.append(value)
        time.sleep(0.1)
        said.append(value)

    monkeypatch.setattr(preflight, "HEARTBEAT_S", 0.001)
    with preflight.Heartbeat(SimpleNamespace(progress=send)):  # type: ignore[arg-type]
        while len(said) < 3:  # the thread is about to say the fourth
            time.sleep(0.001)
    assert len(said) == 4
