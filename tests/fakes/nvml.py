"""A fake NVML: answers from a recorded document as the module `pynvml` does, and fails where it is told to.

`check_against_pynvml` holds it to the real module: same functions, same parameters, same constants.
"""

# ruff: noqa: N802, N803, N815 — the names are those of pynvml

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml

from meshwright.wire.devices import DeviceProcess

Document = Mapping[str, Any]


NO_TABLE: Any = SimpleNamespace(
    describe=lambda pid, used=None: DeviceProcess(pid=pid, used_bytes=used), is_whole=True, is_unlisted=lambda _: False
)
"""A table of processes that knows no name, of a machine whose driver lists them all."""


class FakeHandle(dict[str, Any]):
    """A card's entry that points somewhere, as a real handle does: `ctypes.cast` to void* gives its address."""

    def __init__(self, entry: Document, index: int) -> None:
        super().__init__(entry, index=index)
        self._as_parameter_ = ctypes.c_void_p(0x1000 + index)


class FakeNvml:
    """Cards and MIG instances of a document; a handle is the card's own entry in it.

    Args:
        document: {"driver", "cuda", "gpus": [...], "ancestors": {"0-1": level}}, where pairs that are not listed
            are SYSTEM apart; each GPU has "name", "uuid", "bus_id", "memory" [total, used], "capability",
            "architecture", "compute_mode", "mig_mode" or null, "processes" [[pid, bytes or null]], "mps_clients"
            likewise, "nvlinks" ["switch", a bus id, or null for one that is down], "link_speed" in MB/s, "remote_types"
            of those links where they are not to be told from it, "fabric" {"state", "status", "health", "clique",
            "cluster": hex} or null, "instances" [entry or null for an empty slot], and "minor" where the number of its
            file is not its index. Of its health, if it is to tell any: "temperature", "thresholds" {threshold:
            degrees}, "clocks" (mask), "power" [enforced, default, in mW], "ecc" [volatile, aggregate], "remapped"
            [correctable, uncorrectable, pending, failed], "retirement_pending", "pcie" [width, most, generation, most],
            "performance_state", "recovery", "margin", "slowdown_margin", "shutdown_margin", "link_errors" {counter: of
            each link}.
        fail: function → error code; "function:uuid" for one card, "function/17" where 17 is the argument that tells its
            calls apart, "field:230" for a field whose reply has the code. A document may have its own, as "fail".
    """

    NVMLError = pynvml.NVMLError
    NVML_NVLINK_MAX_LINKS = 36
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    nvmlMemory_v2 = 0x02000028
    c_nvmlGpuFabricInfo_v2_t = pynvml.c_nvmlGpuFabricInfo_v2_t

    def __init__(self, document: Document, fail: Mapping[str, int] | None = None) -> None:
        self._document = document
        self._fail = dict(document.get("fail", {}) if fail is None else fail)
        self.asked: set[str] = set()
        self.is_open = False

    def change_gpu(self, index: int, **fields: Any) -> None:
        """Changes fields of a card's entry, as if that happened between two reads."""
        gpus = list(self._document["gpus"])
        gpus[index] = {**gpus[index], **fields}
        self._document = {**self._document, "gpus": gpus}

    def fail(self, fail: Mapping[str, int]) -> None:
        """Fails from now on where it is told to, and nowhere else."""
        self._fail = dict(fail)

    def _check(self, function: str, handle: Document | None = None, argument: int | None = None) -> None:
        self.asked.add(function)
        if not self.is_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        names = [function, function if argument is None else f"{function}/{argument}"]
        for name in (*names, *(f"{name}:{(handle or {}).get('uuid')}" for name in names)):
            if name in self._fail:
                raise pynvml.NVMLError(self._fail[name])

    def _field(self, function: str, handle: Document, name: str, argument: int | None = None) -> Any:
        self._check(function, handle, argument)
        if handle.get(name) is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle[name]

    def nvmlInit(self) -> None:
        self.asked.add("nvmlInit")
        if "nvmlInit" in self._fail:
            raise pynvml.NVMLError(self._fail["nvmlInit"])
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self._check("nvmlShutdown")
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check("nvmlSystemGetDriverVersion")
        return str(self._document["driver"])

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._check("nvmlSystemGetCudaDriverVersion_v2")
        return int(self._document["cuda"])

    def nvmlDeviceGetCount(self) -> int:
        self._check("nvmlDeviceGetCount")
        return len(self._document["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Document:
        self._check("nvmlDeviceGetHandleByIndex", self._document["gpus"][index])
        return FakeHandle(self._document["gpus"][index], index)

    def nvmlDeviceGetName(self, handle: Document) -> str:
        return str(self._field("nvmlDeviceGetName", handle, "name"))

    def nvmlDeviceGetUUID(self, handle: Document) -> str:
        return str(self._field("nvmlDeviceGetUUID", handle, "uuid"))

    def nvmlDeviceGetPciInfo(self, handle: Document) -> SimpleNamespace:
        return SimpleNamespace(busId=self._field("nvmlDeviceGetPciInfo", handle, "bus_id").encode())

    def nvmlDeviceGetMemoryInfo(self, handle: Document, version: int | None = None) -> SimpleNamespace:
        assert version == self.nvmlMemory_v2
        total, used = self._field("nvmlDeviceGetMemoryInfo", handle, "memory")
        return SimpleNamespace(total=total, used=used)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Document) -> tuple[int, int]:
        major, minor = self._field("nvmlDeviceGetCudaComputeCapability", handle, "capability")
        return major, minor

    def nvmlDeviceGetArchitecture(self, device: Document) -> int:
        return int(self._field("nvmlDeviceGetArchitecture", device, "architecture"))

    def nvmlDeviceGetMinorNumber(self, handle: Document) -> int:
        self._check("nvmlDeviceGetMinorNumber", handle)
        return int(handle.get("minor", handle["index"]))

    def nvmlDeviceGetComputeMode(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetComputeMode", handle, "compute_mode"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Document) -> list[SimpleNamespace]:
        listed = self._field("nvmlDeviceGetComputeRunningProcesses", handle, "processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in listed]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Document) -> list[SimpleNamespace]:
        listed = self._field("nvmlDeviceGetMPSComputeRunningProcesses", handle, "mps_clients")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in listed]

    def nvmlDeviceGetMigMode(self, device: Document) -> list[int]:
        return list(self._field("nvmlDeviceGetMigMode", device, "mig_mode"))

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Document) -> int:
        self._check("nvmlDeviceGetMaxMigDeviceCount", device)
        return len(device.get("instances", ()))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Document, index: int) -> Document:
        self._check("nvmlDeviceGetMigDeviceHandleByIndex", device)
        instance: Document | None = device["instances"][index]
        if instance is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return instance

    def nvmlDeviceGetGpuInstanceId(self, device: Document) -> int:
        return int(self._field("nvmlDeviceGetGpuInstanceId", device, "gpu_instance_id"))

    def nvmlDeviceGetComputeInstanceId(self, device: Document) -> int:
        return int(self._field("nvmlDeviceGetComputeInstanceId", device, "compute_instance_id"))

    def nvmlDeviceGetNvLinkState(self, device: Document, link: int) -> int:
        links = self._field("nvmlDeviceGetNvLinkState", device, "nvlinks", link)
        if link >= len(links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(links[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Document, link: int) -> int:
        links = self._field("nvmlDeviceGetNvLinkRemoteDeviceType", handle, "nvlinks")
        if handle.get("remote_types"):
            return int(handle["remote_types"][link])
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if links[link] == "switch" else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Document, link: int) -> SimpleNamespace:
        links = self._field("nvmlDeviceGetNvLinkRemotePciInfo", device, "nvlinks")
        return SimpleNamespace(busId=links[link].encode())

    def nvmlDeviceGetGpuFabricInfoV(self, device: Document, gpuFabricInfo: Any) -> int:
        fabric = self._field("nvmlDeviceGetGpuFabricInfoV", device, "fabric")
        info = gpuFabricInfo._obj  # only byref() has one: the real function takes a pointer
        assert info.version == pynvml.nvmlGpuFabricInfo_v2
        info.clusterUuid[:] = bytes.fromhex(fabric.get("cluster", "00" * 16).replace("-", ""))
        info.state, info.status = fabric["state"], fabric.get("status", 0)
        info.cliqueId, info.healthMask = fabric.get("clique", 0), fabric.get("health", 0)
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetFieldValues(self, handle: Document, fieldIds: Sequence[int]) -> list[SimpleNamespace]:
        known = {
            self.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: "link_speed",
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "recovery",
            pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: "slowdown_margin",
            pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: "shutdown_margin",
        }
        self._check("nvmlDeviceGetFieldValues", handle)
        return [self._build_field(handle, asked, handle.get(known[asked])) for asked in fieldIds]

    def _build_field(self, handle: Document, asked: int, value: int | None) -> SimpleNamespace:
        """Returns a field of 32 bits as NVML's union has it: read as unsigned, whatever its sign."""
        names = (f"field:{asked}", f"field:{asked}:{handle.get('uuid')}")
        code = next((self._fail[name] for name in names if name in self._fail), 0)
        if code == 0 and value is None:
            code = pynvml.NVML_ERROR_NOT_SUPPORTED
        return SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=0 if code else (value or 0) & 0xFFFFFFFF))

    def nvmlDeviceGetMarginTemperature(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetMarginTemperature", handle, "margin"))

    def nvmlDeviceGetTemperature(self, handle: Document, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(self._field("nvmlDeviceGetTemperature", handle, "temperature"))

    def nvmlDeviceGetTemperatureThreshold(self, handle: Document, threshold: int) -> int:
        known = {
            pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: "slowdown",
            pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: "off",
        }
        name = "nvmlDeviceGetTemperatureThreshold"
        return int(self._field(name, handle, "thresholds", threshold)[known[threshold]])

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetCurrentClocksThrottleReasons", handle, "clocks"))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetEnforcedPowerLimit", handle, "power")[0])

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetPowerManagementDefaultLimit", handle, "power")[1])

    def nvmlDeviceGetTotalEccErrors(self, handle: Document, errorType: int, counterType: int) -> int:
        assert errorType == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        place = {pynvml.NVML_VOLATILE_ECC: 0, pynvml.NVML_AGGREGATE_ECC: 1}[counterType]
        return int(self._field("nvmlDeviceGetTotalEccErrors", handle, "ecc", counterType)[place])

    def nvmlDeviceGetRemappedRows(self, device: Document) -> tuple[int, ...]:
        return tuple(self._field("nvmlDeviceGetRemappedRows", device, "remapped"))

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Document) -> int:
        return int(self._field("nvmlDeviceGetRetiredPagesPendingStatus", device, "retirement_pending"))

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetCurrPcieLinkWidth", handle, "pcie")[0])

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetMaxPcieLinkWidth", handle, "pcie")[1])

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetCurrPcieLinkGeneration", handle, "pcie")[2])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetMaxPcieLinkGeneration", handle, "pcie")[3])

    def nvmlDeviceGetPerformanceState(self, handle: Document) -> int:
        return int(self._field("nvmlDeviceGetPerformanceState", handle, "performance_state"))

    def nvmlDeviceGetNvLinkErrorCounter(self, device: Document, link: int, counter: int) -> int:
        names = {
            pynvml.NVML_NVLINK_ERROR_DL_REPLAY: "replay",
            pynvml.NVML_NVLINK_ERROR_DL_RECOVERY: "recovery",
            pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT: "crc",
        }
        assert self.nvmlDeviceGetNvLinkState(device, link)
        return int(self._field("nvmlDeviceGetNvLinkErrorCounter", device, "link_errors")[names[counter]])

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Document, device2: Document) -> int:
        self._check("nvmlDeviceGetTopologyCommonAncestor", device1)
        pair = f"{device1['index']}-{device2['index']}"
        return int(self._document["ancestors"].get(pair, pynvml.NVML_TOPOLOGY_SYSTEM))


for _name, _value in vars(pynvml).items():
    if _name.startswith("NVML_ERROR_"):
        setattr(FakeNvml, _name, _value)


def check_against_pynvml(fake: type) -> list[str]:
    """Returns where the fake differs from the real module; nothing is what a test wants."""
    names = [name for name in vars(fake) if name.lower().startswith(("nvml", "c_nvml"))]
    return [difference for name in names if (difference := _compare(name, getattr(fake, name)))]


def _compare(name: str, own: Any) -> str:
    real = getattr(pynvml, name, None)
    if real is None:
        return f"{name} is not in pynvml"
    if not inspect.isfunction(own):
        return "" if own == real or own is real else f"{name} is {own!r}, in pynvml {real!r}"
    (_, *ours), theirs = (list(inspect.signature(each).parameters.values()) for each in (own, real))
    same = [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]
    return "" if same else f"{name}: parameters {ours} are not {theirs}"
