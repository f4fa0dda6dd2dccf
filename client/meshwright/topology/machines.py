"""GPU hosts: how many GPUs one has, and what joins them. Data; the chips themselves stand in `chips.csv`.

Rule: the wiring is that of the published board or host; a number of GPUs that no listed form has is refused. PCIe cards
are taken to stand in the common host of two sockets, half of them at each, every card at a host bridge of its own; a
real host may have switches, so agents read it from the driver. Of boards with NVSwitch, 1, 2 (and, where there is no
board of its own, 4) are parts that clouds sell. Knows no device that is really here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final

from meshwright.topology.chips import Chip
from meshwright.topology.links import NVLINK_BYTES_PER_S

Wiring = Callable[[int, int, int], str]
"""(one GPU, another, GPUs of the host) → the kind of their link, as `nvidia-smi topo -m` names it."""

XGMI: Final = "XGMI"
"""AMD's link between GPUs, as `rocm-smi --showtopo` names it."""


@dataclass(frozen=True)
class Wire:
    """What joins two GPUs of a host, by their places. `bytes_per_s`: one way; None: not known."""

    a: int
    b: int
    kind: str
    count: int | None
    bytes_per_s: float | None


@dataclass(frozen=True)
class Machine:
    """One form of host.

    Attributes:
        chip: what it holds.
        gpu_count: how many.
        text: what it is, in words.
        wiring: what joins two of them.
        source: where the wiring is published.
        domain_hosts: how many such hosts one NVLink domain joins.
    """

    chip: Chip
    gpu_count: int
    text: str
    wiring: Wiring
    source: str
    domain_hosts: int = 1

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """The links of one host, each pair once."""
        return tuple(self._build_wire(a, b) for a, b in combinations(range(self.gpu_count), 2))

    def _build_wire(self, a: int, b: int) -> Wire:
        kind = self.wiring(a, b, self.gpu_count)
        if kind == XGMI:
            return Wire(a, b, kind, 1, self.chip.link_bytes_per_s)
        if not kind.startswith("NV"):
            return Wire(a, b, kind, None, None)
        count = int(kind.removeprefix("NV"))
        return Wire(a, b, kind, count, count * (self.chip.link_bytes_per_s or NVLINK_BYTES_PER_S))


def find_socket(place: int, count: int) -> int:
    """Returns the NUMA node at which the GPU at a place hangs, out of `count`: one of two; up to two GPUs share one."""
    return 0 if count <= 2 else place * 2 // count


def _join_all(kind: str) -> Wiring:
    return lambda a, b, count: kind


def _join_by_pcie(a: int, b: int, count: int) -> str:
    return "NODE" if find_socket(a, count) == find_socket(b, count) else "SYS"


def _join_pairs(a: int, b: int, count: int) -> str:
    return "NV12" if a // 2 == b // 2 else _join_by_pcie(a, b, count)


_CUBE_MESH: Final[Mapping[tuple[int, int], str]] = {
    (a, b): f"NV{count}"
    for a, b, count in (
        (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
        (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
    )
}  # fmt: skip
"""DGX-1 with V100: two squares with their diagonals, joined corner to corner; six links a GPU."""


def _join_cube_mesh(a: int, b: int, count: int) -> str:
    return _CUBE_MESH.get((a, b), "SYS")


@dataclass(frozen=True)
class _Form:
    """A form of host for several chips and numbers of GPUs; `chips` by their first aliases."""

    chips: tuple[str, ...]
    counts: tuple[int, ...]
    text: str
    wiring: Wiring
    source: str
    domain_hosts: int = 1


_SWITCHED: Final = "every pair by NVSwitch, with all links of a GPU"
_FORMS: Final = (
    _Form(
        ("v100",),
        (1, 2, 4, 8),
        "DGX-1: hybrid cube mesh; fewer GPUs are its first ones",
        _join_cube_mesh,
        "github.com/microsoft/msccl, tests/test_topologies.py (`nvidia-smi topo -m`); "
        "github.com/NVIDIA/nccl/issues/671",
    ),
    _Form(("v100",), (16,), f"DGX-2: {_SWITCHED}", _join_all("NV6"), "github.com/NVIDIA/nccl-tests/issues/78"),
    _Form(
        ("a100", "a100-40gb"),
        (1, 2, 8, 16),
        f"HGX A100: {_SWITCHED}",
        _join_all("NV12"),
        "github.com/NVIDIA/nccl/issues/1505 (8); docs.cloud.google.com/compute/docs/gpus, a2-megagpu-16g (16)",
    ),
    _Form(
        ("a100", "a100-40gb"),
        (4,),
        "HGX A100 4-GPU: no switch, 12 links over 3 peers",
        _join_all("NV4"),
        "NVIDIA HGX A100 datasheet (4-GPU board; unverified)",
    ),
    _Form(
        ("h100", "h200"),
        (1, 2, 8),
        f"HGX H100 or H200: {_SWITCHED}",
        _join_all("NV18"),
        "github.com/NVIDIA/nccl/issues/1264",
    ),
    _Form(
        ("h100", "h200"),
        (4,),
        "HGX H100 or H200 4-GPU: no switch, 18 links over 3 peers",
        _join_all("NV6"),
        "github.com/NVIDIA/nccl/issues/1617",
    ),
    _Form(
        ("h20",), (1, 2, 8), f"HGX H20: {_SWITCHED}", _join_all("NV18"), "github.com/guevara/read-it-later/issues/11550"
    ),
    _Form(
        ("h800",),
        (1, 2, 8),
        f"HGX H800: {_SWITCHED}, of which it has 8",
        _join_all("NV8"),
        "github.com/deepseek-ai/DeepEP/issues/16 (200 GB/s one way)",
    ),
    _Form(
        ("gh200", "gh200-144gb"),
        (1, 4),
        "one GPU a host; or four, no switch, 18 links over 3 peers, as in JUPITER and Alps",
        _join_all("NV6"),
        "NVIDIA GH200 data sheet; JUPITER's and Alps' node descriptions (unverified)",
    ),
    _Form(
        ("b200", "b300"),
        (1, 2, 4, 8),
        f"HGX B200 or B300: {_SWITCHED}",
        _join_all("NV18"),
        "github.com/vllm-project/vllm/issues/24513",
    ),
    _Form(
        ("gb200", "gb300"),
        (1, 2, 4),
        "NVL72: 4 GPUs a host, 18 hosts in one NVLink domain by NVSwitch",
        _join_all("NV18"),
        "github.com/NVIDIA/k8s-test-infra/issues/371 (a host); scaling book gpus.md (72 GPUs a domain)",
        domain_hosts=18,
    ),
    _Form(
        ("a100-pcie", "h100-pcie"),
        (1, 2, 4, 8),
        "two sockets; pairs of neighbours joined by three NVLink bridges",
        _join_pairs,
        "`nvidia-smi topo -m` of Azure NC96ads_A100_v4 (Mesolitica, Pretrain Mistral) and of 8 H100 NVL (sglang-play); "
        "NVIDIA's A100 80GB PCIe and H100 PCIe product briefs: 600 GB/s a pair, 12 links of 25 GB/s one way",
    ),
    _Form(
        ("t4", "a10", "a10g", "l4", "l40s"),
        (1, 2, 4, 8),
        "two sockets; PCIe only",
        _join_by_pcie,
        "github.com/warpem/miss-alignment/issues/106 (four L40S)",
    ),
    _Form(
        ("mi300x", "mi325x", "mi355x"),
        (1, 2, 4, 8),
        "one xGMI link between every two GPUs, no switch",
        _join_all(XGMI),
        "stas00/ml-engineering network/README.md (744d01e); AMD Instinct MI300X platform data sheet",
    ),
)

_DEFAULT_COUNTS: Final[Mapping[str, int]] = {"gh200": 1, "gh200-144gb": 1, "gb200": 4, "gb300": 4}
_DEFAULT_COUNT: Final = 8
"""GPUs of a host where only the chip is named."""


def find_machine(chip: Chip, count: int) -> Machine | None:
    """Returns the host with `count` of these GPUs; None where no form has so many."""
    for form in _FORMS:
        if chip.aliases[0] in form.chips and count in form.counts:
            return Machine(chip, count, form.text, form.wiring, form.source, form.domain_hosts)
    return None


def list_counts(chip: Chip) -> tuple[int, ...]:
    """Returns how many of these GPUs a host may have, ascending; none for a chip of which no host is known."""
    return tuple(sorted(count for form in _FORMS if chip.aliases[0] in form.chips for count in form.counts))


def find_default_count(chip: Chip) -> int:
    """Returns how many of these GPUs the usual host has."""
    return _DEFAULT_COUNTS.get(chip.aliases[0], _DEFAULT_COUNT)


def find_domain_count(chip: Chip) -> int | None:
    """Returns the GPUs of an NVLink domain that spans hosts (72 of GB200); None for a chip without one."""
    form = next(form for form in _FORMS if chip.aliases[0] in form.chips)
    return form.domain_hosts * max(form.counts) if form.domain_hosts > 1 else None
