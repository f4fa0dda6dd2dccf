"""Programs of ours, as XLA's compilers gave them (tests/recorded/hlo), against counts by hand."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from meshwright.compiling.hlo import ProgramFacts, read_program
from meshwright.compiling.hlo.groups import SLICE_IDS

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "hlo"
MAKERS = (
    "libtpu-0.0.42.1", "libtpu-0.0.50.1", "jaxlib-0.10.2", "jaxlib-0.12.0.1", "jax-cuda12-pjrt-0.10.2",
    "jax-cuda13-pjrt-0.12.0.1",
)  # fmt: skip
BF16, F32 = 2, 4


def list_recorded(program: str) -> list[Any]:
    paths = sorted(RECORDED.glob(f"*.{program}.*.hlo.gz"))
    return [pytest.param(path, id=path.name.removesuffix(".hlo.gz")) for path in paths]


def read_file(path: Path) -> tuple[dict[str, Any], bytes]:
    head, serialized = gzip.decompress(path.read_bytes()).split(b"\n", 1)
    return json.loads(head), serialized


def read_recorded(path: Path, clock_hz: float | None = 1.5e9) -> ProgramFacts:
    head, serialized = read_file(path)
    platform = {"cpu": "cpu", "h100": "gpu"}.get(head["target"].split(":")[0], "tpu")
    granules = head["granules"] or ()
    return read_program(
        serialized, mesh_shape=head["mesh"], platform=platform, clock_hz=clock_hz, granules=granules,
        device_ids=number_devices(granules),
    )  # fmt: skip


def number_devices(granules: Sequence[int]) -> list[int]:
    """Returns the ids of devices that stand in each slice in the order of their numbers."""
    counts = {granule: itertools.count((granule + 1) * SLICE_IDS) for granule in granules}
    return [next(counts[granule]) for granule in granules]


def sum_bytes(facts: ProgramFacts) -> dict[tuple[str, str], float]:
    return {(c.axis, c.op): c.bytes for c in facts.collectives}


def size_of_element(path: Path) -> int:
    """CPU programs compute, and send, bfloat16 as float32."""
    return F32 if path.name.startswith("cpu") else BF16


def count_devices(path: Path) -> int:
    return math.prod(read_file(path)[0]["mesh"].values())


@pytest.mark.parametrize("path", [*list_recorded("dp"), *list_recorded("dp-two-axes")])
def test_data_parallelism_sums_the_gradients_of_all_weights_once(path: Path) -> None:
    facts = read_recorded(path)

    # The weight's gradient, 1024 × 512, whole on each device.
    axes = ",".join(read_file(path)[0]["mesh"])
    assert sum_bytes(facts) == {(axes, "all-reduce"): 1024 * 512 * size_of_element(path)}
    assert facts.collectives[0].count == 1
    assert facts.collectives[0].group_size == count_devices(path)


@pytest.mark.parametrize("path", list_recorded("fsdp"))
def test_sharded_data_parallelism_gathers_twice_a_layer_and_scatters_once(path: Path) -> None:
    facts = read_recorded(path)
    sums = sum_bytes(facts)

    # Four layers of 512 × 512 in a scan, gathered forward and, since it is computed again, backward.
    layer = 512 * 512 * size_of_element(path)
    assert sums.pop(("fsdp", "all-gather")) == 4 * 2 * layer
    # Each layer's gradient: scattered where the compiler does that, else summed and cut. Both are of the whole.
    ((axis, op),) = sums
    assert axis == "fsdp"
    assert op in ("reduce-scatter", "all-reduce")
    assert sums[axis, op] == 4 * layer
    assert {c.op: c.count for c in facts.collectives} == {"all-gather": 8, op: 4}


@pytest.mark.parametrize("path", [*list_recorded("fsdp-tp"), *list_recorded("fsdp-tp-16")])
def test_axes_of_equal_size_are_told_apart(path: Path) -> None:
    facts = read_recorded(path)
    size = read_file(path)[0]["mesh"]["tp"]
    element = size_of_element(path)

    # Gathered over fsdp: up and down, 256 × 1024 ÷ tp each. Summed over tp: 512 ÷ fsdp rows of 256.
    assert sum_bytes(facts) == {
        ("fsdp", "all-gather"): 2 * 256 * (1024 / size) * element,
        ("tp", "all-reduce"): (512 / size) * 256 * element,
    }
    assert {collective.group_size for collective in facts.collectives} == {size}


@pytest.mark.parametrize("path", list_recorded("ep"))
def test_experts_send_their_tokens_there_and_back(path: Path) -> None:
    facts = read_recorded(path)
    experts = read_file(path)[0]["mesh"]["ep"]

    # 8 × (1024 ÷ ep) × 256 of each device, there and back.
    assert sum_bytes(facts) == {("ep", "all-to-all"): 2 * 8 * (1024 / experts) * 256 * size_of_element(path)}
    assert facts.collectives[0].count == 2


@pytest.mark.parametrize("path", list_recorded("unknown-trips"))
def test_a_loop_whose_end_is_data_counts_once_and_is_told(path: Path) -> None:
    facts = read_recorded(path)

    assert [(c.axis, c.count) for c in facts.collectives] == [("tp", 1)]
    (notice,) = facts.notices
    assert notice.code == "loop_trips_unknown"
    assert "while" in notice.message


@pytest.mark.parametrize("path", list_recorded("branches"))
def test_of_a_choice_the_larger_branch_counts_and_is_told(path: Path) -> None:
    facts = read_recorded(path)

    assert [(c.axis, c.op, c.count) for c in facts.collectives] == [("dp", "all-reduce", 1)]
    assert [notice.code for notice in facts.notices] == ["branch_assumed"]


@pytest.mark.parametrize("path", list_recorded("splash"))
def test_a_program_with_a_pallas_kernel_is_read_to_its_end(path: Path) -> None:
    facts = read_recorded(path)
    (ring,) = facts.collectives

    # Keys and values go round a ring of 4, each 4 heads × 1024 × 128. The text of the kernel has lines of its own.
    assert (ring.axis, ring.op, ring.count, ring.group_size) == ("cp", "collective-permute", 8, 4)
    assert ring.bytes == 8 * 4 * 1024 * 128 * BF16
    (kernels,) = facts.notices
    assert kernels.code == "custom_kernels"
    assert "does not tell their time (splash_mha_" in kernels.message
    assert "send" not in kernels.message


@pytest.mark.parametrize("path", list_recorded("windowed-16"))
def test_matmuls_that_gather_as_they_go_send_round_their_axis(path: Path) -> None:
    facts = read_recorded(path)
    (ring,) = facts.collectives

    # Two loops that step by 2 from 0 to 16 and send twice a trip, and one send before the first, one after the second:
    # 34 of 4 × (4096 ÷ 16) × 8192.
    assert (ring.axis, ring.op, ring.group_size) == ("tp", "collective-permute", 16)
    assert ring.count == 34
    assert ring.bytes == 34 * 4 * 256 * 8192 * BF16
    assert facts.notices == ()


@pytest.mark.parametrize("path", [*list_recorded("dcn"), *list_recorded("dcn-inner")])
def test_a_sum_over_slices_is_scattered_sent_and_gathered(path: Path) -> None:
    facts = read_recorded(path)

    # The gradient of 1024 × 512 is scattered over four chips of a slice; each sends its quarter to the other slice.
    whole = 1024 * 512 * BF16
    inside = {("fsdp", "reduce-scatter"): whole, ("fsdp", "all-gather"): whole}
    assert sum_bytes(facts) == {**inside, ("dp", "all-reduce"): whole / 4}
    (sent,) = (collective for collective in facts.collectives if collective.axis == "dp")
    assert sent.group_size == 2


@pytest.mark.parametrize("path", list_recorded("transfers"))
def test_what_goes_between_slices_is_of_their_axes(path: Path) -> None:
    facts = read_recorded(path)

    # Each device has 64 ÷ 16 rows of 1024: summed over dp, then gathered from 2. Half of the devices, one stage, send.
    part = 4 * 1024 * BF16
    summed = {("dp", "all-reduce"): part, ("dp", "all-gather"): 2 * part}
    assert sum_bytes(facts) == {**summed, ("pp", "collective-permute"): 2 * part / 2}
    assert {c.axis: c.count for c in facts.collectives if c.op == "collective-permute"} == {"pp": 0.5}


@pytest.mark.parametrize("path", list_recorded("fsdp"))
def test_a_collective_is_asynchronous_where_something_is_computed_beside_it(path: Path) -> None:
    facts = read_recorded(path)

    beside = sum(collective.asynchronous_count for collective in facts.collectives)
    # Of 8 gathers and 4 scatters. SparseCores (tpu7x) do theirs beside; XLA for GPUs starts some early, or, since jax
    # 0.12, none of these small ones; the others wait.
    starts_early = path.name.startswith("tpu7x") or "cuda12" in path.name
    assert beside in ((8, 12) if starts_early else (0,))


@pytest.mark.parametrize("maker", MAKERS[:2])
def test_the_estimate_adds_cycles_of_what_runs_and_nothing_inside_fusions(maker: str) -> None:
    path = RECORDED / f"v5e-2x2.dp.{maker}.hlo.gz"
    estimate: Any = read_recorded(path, clock_hz=1e9).estimate

    # Forward 11,968 cycles, gradient 10,168, update 12,989: the program's three; the all-reduce between has none.
    assert estimate.total_s == pytest.approx((11_968 + 10_168 + 12_989) / 1e9)
    assert estimate.attention_s == 0


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.hlo.gz")), ids=lambda path: path.name)
def test_nothing_in_a_recorded_program_is_unknown(path: Path) -> None:
    assert "program_incomplete" not in [notice.code for notice in read_recorded(path).notices]


@pytest.mark.parametrize("serialized", [b"", b"not a program", b"\n\x08jit_step\x7a\x04\x08\x01\x10\x04"])
def test_what_is_no_program_is_refused(serialized: bytes) -> None:
    with pytest.raises(ValueError, match="HLO module"):
        read_program(serialized, mesh_shape={"dp": 2}, platform="cpu", clock_hz=None)
