"""Every parser of text that is not ours: driver, sysfs, /proc, environment, the worker's socket; with seeds from life.

Rule: what a parser of facts returns must be writable as JSON, since the probe sends it so. `tests/fuzz/test_guided.py`
fails where `facts/` has a parser that is not here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from meshwright._devices.cpu import parse_device_count
from meshwright._devices.tpu import parse_accelerator_type
from meshwright.errors import InvalidMeshError, InvalidRequestError, ProblemError, RequestError
from meshwright.spec import MeshSpec
from meshwright.targets import TargetSpec
from meshwright.topology.visible import parse_information, parse_visible
from meshwright.wire.mesh import PlanRequest
from meshwright_agent.bodies import parse_body
from meshwright_agent.facts import (
    cgroups,
    cpu,
    gpu_health,
    kernel_log,
    model,
    nvidia,
    nvlink,
    owners,
    pci_health,
    sysfs,
    tpu,
)
from meshwright_agent.worker.protocol import (
    Call,
    Cancel,
    Failure,
    FrameBuffer,
    FrameError,
    Hello,
    Progress,
    Refusal,
    Result,
    Stopped,
    build_error,
    format_frame,
    parse_frame,
)
from tests.fakes.machines import RECORDED
from tests.fakes.tree import split_entries
from tests.fuzz.access import ACCESS
from tests.fuzz.guided import Target

Parse = Callable[[str], object]
STREAM_BYTES: Final = 512
LINE_BYTES: Final = 128


# ---- how bytes become what a parser takes ---------------------------------------------------------------------------


def check_json(value: object) -> None:
    """Passes for what the probe can send."""
    json.dumps(value, allow_nan=False, default=_to_plain)


def _to_plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    assert isinstance(value, frozenset | set), f"a parser returned a {type(value).__name__}"
    return sorted(value)


def take_text(parse: Parse) -> Callable[[bytes], None]:
    """Returns what gives a parser the text of a file as `read_text` would."""
    return lambda data: check_json(parse(data.decode(errors="replace").strip("\0 \t\r\n")))


def take_environment(parse: Callable[[Mapping[str, str]], object]) -> Callable[[bytes], None]:
    """Returns what gives a parser an environment as the kernel hands it over: NAME=value, separated by NUL."""
    return lambda data: check_json(parse(_read_environment(data)))


def _read_environment(data: bytes) -> dict[str, str]:
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals and name}


def take_numbers(count: int, parse: Callable[..., object]) -> Callable[[bytes], None]:
    """Returns what gives a parser numbers as a driver would, of 8 bytes each, low byte first."""

    def run(data: bytes) -> None:
        padded = data.ljust(8 * count, b"\0")
        check_json(parse(*(int.from_bytes(padded[8 * n : 8 * n + 8], "little", signed=True) for n in range(count))))

    return run


def take_document(parse: Callable[[Any], object]) -> Callable[[bytes], None]:
    """Returns what gives a parser a JSON document; what is none is none of its business."""

    def run(data: bytes) -> None:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return
        parse(document)

    return run


# ---- seeds ----------------------------------------------------------------------------------------------------------


def _read_files(ending: str, most: int = 12) -> tuple[bytes, ...]:
    """Returns what files of recorded machines hold whose path ends so."""
    found: dict[str, None] = {}
    for tree in sorted(RECORDED.glob("*/tree.txt")):
        found |= dict.fromkeys(text for path, text in split_entries(tree.read_text()) if path.endswith(ending))
    return tuple(text.encode() for text in list(found)[:most]) or (b"",)


def _read_environments() -> Iterator[bytes]:
    for path in sorted(RECORDED.glob("*/environ.json")):
        yield "\0".join(f"{name}={value}" for name, value in json.loads(path.read_text()).items()).encode()


FRAMES: Final = tuple(
    map(
        format_frame,
        (
            Hello(1, "device", 7, 1, {"jax": "0.10.2", "device_count": 8}),
            Refusal(1, "RuntimeError", "no device", "Traceback"),
            Call(1, "bench", {"suite": "quick", "sizes_bytes": [4096]}),
            Cancel(1),
            Progress(1, 1, {"done": 0, "total": 1, "message": "all_reduce"}),
            Result(1, 1, {"records": [{"case": "all_reduce", "samples_s": [1e-3]}]}),
            Failure(1, 1, "run_failed", 500, "it failed", "try again", [{"field": "mesh"}], ["line"], 1.0),
            Stopped(1, 1),
        ),
    )
)
ENVIRONMENTS: Final = tuple(_read_environments())
SXID: Final = b"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
FAILURE: Final = rb"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: installed here has\x0aNVRM: fallen off the bus and more"
MESSAGE: Final = b"NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


# ---- what is more than one call -------------------------------------------------------------------------------------


def run_frame(line: bytes) -> None:
    """Reads one line as the agent does; what was read can be said again."""
    frame = parse_frame(line)
    format_frame(frame)
    if isinstance(frame, Failure):
        assert isinstance(build_error(frame), ProblemError)


def run_stream(data: bytes) -> None:
    """Reads a stream whole and in small pieces: the same lines, or refused both times."""
    data, size = data[:STREAM_BYTES], 1 + len(data) % 7
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert _cut_lines([data]) == _cut_lines(pieces)


def _cut_lines(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    buffer, lines = FrameBuffer(LINE_BYTES), list[bytes]()
    try:
        for piece in pieces:
            lines.extend(buffer.feed(piece))
    except FrameError:
        return lines, False
    return lines, True


def run_kernel_log(data: bytes) -> None:
    """Reads a log of the kernel from a file in memory."""
    descriptor = os.memfd_create("kmsg")
    try:
        os.write(descriptor, data)
        check_json(kernel_log.read_kernel_log(Path(f"/proc/self/fd/{descriptor}"), after=None, now_s=1e6))
    finally:
        os.close(descriptor)


def run_fabric(data: bytes) -> None:
    """Takes what the fabric manager's structure holds: 16 bytes of cluster, then numbers."""
    padded = data.ljust(32, b"\0")
    numbers = [int.from_bytes(padded[16 + 4 * n : 20 + 4 * n], "little") for n in range(4)]
    clique, state, status, health = numbers
    text = padded[32:].decode(errors="replace")
    check_json(
        nvlink.parse_fabric(
            cluster=padded[:16], clique=clique, state=state, status=status, health=health, status_text=text
        )
    )


def run_container(data: bytes) -> None:
    """Takes environment, cgroup and mountinfo, separated by a form feed."""
    environ, cgroup, mountinfo = [*data.split(b"\f"), b"", b""][:3]
    check_json(
        cpu.parse_container(
            _read_environment(environ), cgroup.decode(errors="replace"), mountinfo.decode(errors="replace")
        )
    )


# ---- the list -------------------------------------------------------------------------------------------------------

FACTS: Final[Mapping[str, Target]] = {
    "cgroups.parse_cgroup": Target(
        take_text(cgroups.parse_cgroup),
        (
            b"0::/kubepods.slice/kubepods-pod3b0fce5d_0f0e_4b8e_9d6f_2b1f0a9c7d11.slice/cri-containerd-"
            + b"ab" * 32
            + b".scope",
            b"4:memory:/docker/" + b"cd" * 32 + b"\n1:name=systemd:/slurm/uid_1000/job_42/step_0",
        ),
    ),
    "cpu.parse_os_release": Target(take_text(cpu.parse_os_release), _read_files("os-release")),
    "cpu.parse_container": Target(run_container, (b"A=b\f0::/kubepods/x\f1 2 0:1 / / rw - overlay overlay rw",)),
    "cpu.parse_quota": Target(take_text(cpu.parse_quota), (b"max 100000", b"200000 100000", b"-1 100000")),
    "cpu.parse_cgroup": Target(
        take_text(lambda text: cpu.parse_cgroup(text, "memory")),
        (b"0::/user.slice\n", b"4:memory:/docker/ab\n3:cpu,cpuacct:/x", *_read_files("self/cgroup")),
    ),
    "gpu_health.parse_slowdowns": Target(take_numbers(1, gpu_health.parse_slowdowns), (b"\x44", b"\0" * 8)),
    "kernel_log.parse_xid": Target(
        take_text(kernel_log.parse_xid), (MESSAGE, MESSAGE.replace(b"'<unknown>'", b"1896"))
    ),
    "kernel_log.parse_failure": Target(take_text(kernel_log.parse_failure), (FAILURE, FAILURE.replace(b"0000:", b""))),
    "kernel_log.parse_sxid": Target(take_text(kernel_log.parse_sxid), (SXID, SXID.replace(b"Link 30 ", b""))),
    "model.parse_host_facts": Target(
        take_document(model.parse_host_facts), (b'{"machine":{},"cpu":{},"gpus":[],"tpus":[]}',), (ValidationError,)
    ),
    "nvidia.parse_cuda_version": Target(take_numbers(1, nvidia.parse_cuda_version), (b"\xf0\x2e",)),
    "nvidia.parse_profile": Target(take_text(nvidia.parse_profile), (b"NVIDIA A100-SXM4-40GB MIG 1g.5gb",)),
    "nvlink.parse_link_rate": Target(take_numbers(1, nvlink.parse_link_rate), (b"\x67\x67", b"\xff" * 8)),
    "nvlink.parse_fabric": Target(run_fabric, (b"\1" * 16 + b"\1\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0ok",)),
    "owners.parse_fileless": Target(take_text(owners.parse_fileless), _read_files("/stat")),
    "owners.parse_parent": Target(take_text(owners.parse_parent), _read_files("/stat")),
    "owners.parse_command": Target(
        take_text(owners.parse_command), (b"python3\0-m\0train\0--token\0x", *_read_files("cmdline"))
    ),
    "pci_health.parse_aer_total": Target(take_text(pci_health.parse_aer_total), (b"Undefined 0\nTOTAL_ERR_FATAL 2",)),
    "sysfs.parse_int": Target(take_text(sysfs.parse_int), (b"-1", b"42")),
    "sysfs.parse_fields": Target(take_text(sysfs.parse_fields), _read_files("meminfo", 3) + _read_files("cpuinfo", 2)),
    "sysfs.parse_kib": Target(take_text(sysfs.parse_kib), (b"16331752 kB",)),
    "sysfs.parse_cpu_list": Target(take_text(sysfs.parse_cpu_list), (b"0-3,8", b"0", *_read_files("cpulist"))),
    "sysfs.parse_pci_address": Target(take_text(sysfs.parse_pci_address), (b"00000000:1B:00.0",)),
    "sysfs.parse_distances": Target(take_text(sysfs.parse_distances), (b"10 21", *_read_files("distance"))),
    "tpu.parse_kind": Target(take_text(tpu.parse_kind), (b"v5litepod-8", b"v5p-128")),
    "tpu.parse_slice": Target(take_environment(tpu.parse_slice), ENVIRONMENTS),
    "tpu.parse_shape": Target(take_text(tpu.parse_shape), (b"2,2,1", b"4x4x4")),
    "tpu.parse_flags": Target(take_text(tpu.parse_flags), (b"true,false,true",)),
    "tpu.parse_flag": Target(take_text(tpu.parse_flag), (b"true",)),
}
"""Parsers of `meshwright_agent.facts`, by module and name."""

OTHERS: Final[Mapping[str, Target]] = {
    "kernel log": Target(run_kernel_log, (b"4,1,1000000,-;" + MESSAGE + b"\n SUBSYSTEM=pci\n", b"6,2,2,-;x\n")),
    "worker protocol, frames": Target(run_frame, FRAMES, (FrameError,)),
    "worker protocol, stream": Target(run_stream, (b"".join(FRAMES), FRAMES[0])),
    "request body": Target(
        lambda data: parse_body(data, PlanRequest),
        (b'{"mesh":"dp:2,tp:-1","target":"v5p:2x2x1"}', b'{"mesh":{"dp":2},"devices":[0,1]}'),
        (RequestError,),
    ),
    "mesh text": Target(
        lambda data: MeshSpec.parse(data.decode(errors="replace")), (b"dp:2,fsdp:-1,tp:4",), (InvalidMeshError,)
    ),
    "target text": Target(
        lambda data: TargetSpec.parse(data.decode(errors="replace")),
        (b"2*v5e:16x16", b"64*h100:8"),
        (InvalidRequestError,),
    ),
    "CPU devices of the environment": Target(
        take_environment(parse_device_count),
        (b"XLA_FLAGS=--xla_force_host_platform_device_count=8", b"JAX_NUM_CPU_DEVICES=8"),
        (ValueError,),
    ),
    "accelerator type": Target(take_text(parse_accelerator_type), (b"v5litepod-16", b"v4-8")),
    "driver's information file": Target(
        lambda data: parse_information("0000:1b:00.0", data.decode(errors="replace")),
        (b"Model: NVIDIA H100\nGPU UUID: GPU-1\n",),
    ),
    "visible GPUs": Target(
        lambda data: parse_visible(_read_environment(data), ()),
        (b"CUDA_VISIBLE_DEVICES=0,1\0CUDA_DEVICE_ORDER=PCI_BUS_ID",),
        (ValueError,),
    ),
}
"""What else reads text or bytes that others wrote."""

TARGETS: Final[Mapping[str, Target]] = {
    **{f"facts.{name}": target for name, target in FACTS.items()},
    **ACCESS,
    **OTHERS,
}
