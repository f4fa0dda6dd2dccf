"""The measuring method of the bench: trials, their samples, their data, and their devices.

A trial is one measurement. `prepare` allocates and compiles. `sample` does the work once and returns its seconds.
`verify` compares the last result with NumPy's result. One trial is prepared at a time. Warm-up calls are not samples,
no sample is dropped, and fewer than three samples do not give a result. A time ends when the result is ready
(`jax.block_until_ready`). Data are whole numbers that every dtype represents exactly. Their pattern repeats after a
prime number of elements, so that swapped or shifted parts are found.

A local index means the same device as in `GET /devices`. If JAX's devices cannot be matched with certainty, JAX's order
is used, and the record has a notice.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import jax
import numpy as np
import numpy.typing as npt

from meshwright.mesh import create_mesh
from meshwright.topology.identity import VisibleGpu, canonical, read_visible_gpus
from meshwright.wire.base import Notice
from meshwright.wire.bench import BenchCase, BenchRecord
from meshwright.wire.devices import Platform, parse_platform
from meshwright_agent.bench.scope import Scope
from meshwright_agent.clock import Clock

Array = npt.NDArray[Any]
Result = TypeVar("Result")

PERIOD: Final = 65_537
"""A prime that is not a divisor or multiple of common sizes."""

SIGNIFICAND_BITS: Final = {"float32": 24, "bfloat16": 8, "float16": 11}
"""Each dtype holds every whole number up to 2 to this power. Source: IEEE 754; bfloat16 keeps float32's exponent and 8
bits."""

_LARGEST_MODULUS: Final = 251


def choose_modulus(dtype: str, rank_count: int) -> int:
    """Returns the upper bound of the values for an exact sum over the ranks; at least 2.

    Beyond 256 ranks a bfloat16 sum is exact only for patterns of nearly all zeros.
    """
    return max(2, min(_LARGEST_MODULUS, (1 << SIGNIFICAND_BITS[dtype]) // rank_count))


def build_tile(seed: int, modulus: int) -> Array:
    """Returns `[PERIOD]` whole numbers in [0, modulus) as float32: the pattern of a seed."""
    return np.random.default_rng(seed).integers(0, modulus, PERIOD).astype(np.float32)


def expand_tile(tile: Array, count: int, dtype: npt.DTypeLike, *, start: int = 0) -> Array:
    """Returns elements `start` … `start + count` of the endlessly repeated tile."""
    shifted = np.roll(tile, -(start % tile.size)).astype(dtype)
    return np.resize(shifted, count)


ALIGNMENT_BYTES: Final = 64


def move_off_alignment(array: Array) -> Array:
    """Returns a copy of the array in memory that is aligned to its items but not to 64 bytes.

    JAX on CPU reuses the memory of a NumPy array aligned to 64 bytes, even with `may_alias=False` (jax 0.10.2 and
    0.12.0). Then no data would move.
    """
    raw = np.empty(array.nbytes + 2 * ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES + array.itemsize
    moved: Array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def count_wrong(got: Array, expected: Array) -> int:
    """Returns how many elements differ. NaN is wrong. With another shape, all are wrong."""
    if got.shape != expected.shape:
        return max(int(got.size), int(expected.size), 1)
    return int(np.count_nonzero(got != expected))


MIN_SAMPLES: Final = 3
WARMUP_COUNT: Final = 2
RESERVE_RATIO: Final = 0.1
"""Share of the limit that is reserved for preparing and checking the last trial."""


class OutOfTime(Exception):  # noqa: N818 - not a fault: the reason of a skipped trial
    """A trial does not fit in the remaining time. The message has the reason."""


@dataclass(frozen=True)
class Timetable:
    """The time of a run. Every trial may use an equal share of the remaining time, and at least three samples.

    Attributes:
        end_s: time on the monotonic clock after which no trial begins.
    """

    clock: Clock
    limit_s: float
    end_s: float

    @classmethod
    def start(cls, clock: Clock, limit_s: float) -> Timetable:
        """Returns a timetable that begins now."""
        return cls(clock, limit_s, clock.monotonic() + limit_s * (1 - RESERVE_RATIO))

    @property
    def left_s(self) -> float:
        """Seconds until the end; negative after it."""
        return self.end_s - self.clock.monotonic()

    def share_until_s(self, trials_left: int) -> float:
        """Returns the time until which the next of `trials_left` trials may take samples beyond the third.

        Raises:
            OutOfTime: the end is reached.
        """
        self._check_left()
        return self.clock.monotonic() + self.left_s / trials_left

    def _check_left(self) -> None:
        if self.left_s <= 0:
            raise OutOfTime(f"the time limit of {self.limit_s:g} s was reached")

    def check_fits(self, sample_s: float) -> None:
        """Raises OutOfTime unless three samples of `sample_s` end in time."""
        self._check_left()
        if MIN_SAMPLES * sample_s > self.left_s:
            raise OutOfTime(
                f"one sample takes {sample_s:.3g} s: {MIN_SAMPLES} of them do not fit in what is left "
                f"of the time limit of {self.limit_s:g} s"
            )


def measure_samples(
    sample: Callable[[], float], *, count: int, until_s: float, timetable: Timetable, check: Callable[[], None]
) -> tuple[float, ...]:
    """Returns `count` samples after the warm-up, in seconds; at least three if `until_s` comes first.

    Args:
        sample: does the work once; returns the measured seconds.
        check: called before each call; an exception ends the measurement.

    Raises:
        OutOfTime: three samples do not fit in the remaining time.
    """
    for _ in range(WARMUP_COUNT):
        check()
        timetable.check_fits(sample())
    samples: list[float] = []
    while len(samples) < count:
        check()
        samples.append(sample())
        if len(samples) >= MIN_SAMPLES and timetable.clock.monotonic() >= until_s:
            break
    return tuple(samples)


@dataclass(frozen=True)
class Outcome:
    """The verified result of a trial.

    Attributes:
        is_compiled: the compiled program contains the measured collective, where there is one.
    """

    wrong_elements: int
    is_compiled: bool = True

    @property
    def correct(self) -> bool:
        """True if no element is wrong and the compiled program contains the collective."""
        return self.wrong_elements == 0 and self.is_compiled


class Subject(ABC):
    """A prepared measurement: its arrays are allocated and its programs are compiled."""

    @abstractmethod
    def sample(self) -> float:
        """Does the work once and returns its seconds, without preparation."""

    @abstractmethod
    def verify(self) -> Outcome:
        """Returns whether the last sample's result is right."""


@dataclass(frozen=True)
class Trial:
    """One measurement to make.

    Attributes:
        size_bytes: S, the bytes of the array sent, of a collective's buffer as in nccl-tests, of three matrices, or of
            the data read and written.
        flops: floating-point operations of one sample; such a record does not state a bandwidth.
        busbw_factor: busbw ÷ algbw; None unless the trial is a collective.
    """

    case: BenchCase
    device_indices: tuple[int, ...]
    dtype: str
    size_bytes: int
    prepare: Callable[[], Subject]
    axis: str | None = None
    axis_size: int | None = None
    busbw_factor: float | None = None
    flops: float | None = None

    @property
    def label(self) -> str:
        """The label of the trial within its case, for people."""
        indices = ", ".join(str(index) for index in self.device_indices)
        over = f" over {self.axis}:{self.axis_size}" if self.axis else ""
        return f"{self.size_bytes} bytes on device {indices}{over}"


def build_record(
    trial: Trial, samples_s: Sequence[float], outcome: Outcome, *, at: datetime, device_kind: str
) -> BenchRecord:
    """Returns the record of a measured trial."""
    p10_s, median_s, p90_s = map(float, np.percentile(samples_s, (10, 50, 90)))
    algbw = None if trial.flops else trial.size_bytes / median_s
    busbw = None if algbw is None or trial.busbw_factor is None else algbw * trial.busbw_factor
    return BenchRecord(
        case=trial.case,
        device_indices=trial.device_indices,
        device_kind=device_kind,
        axis=trial.axis,
        axis_size=trial.axis_size,
        dtype=trial.dtype,
        size_bytes=trial.size_bytes,
        samples_s=tuple(samples_s),
        median_s=median_s,
        p10_s=p10_s,
        p90_s=p90_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        flops_per_s=trial.flops / median_s if trial.flops else None,
        wrong_elements=outcome.wrong_elements,
        correct=outcome.correct,
        basis="measured",
        observed_at=at,
        age_s=0.0,
    )


@dataclass(frozen=True)
class Stage:
    """The devices and dtype of a measurement.

    Attributes:
        devices: local index → `jax.Device`.
    """

    devices: Mapping[int, jax.Device]
    platform: Platform
    dtype: str
    clock: Clock

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return int(self.numpy_dtype.itemsize)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy's dtype of that name, bfloat16 included."""
        dtype: np.dtype[Any] = jax.numpy.dtype(self.dtype)
        return dtype

    def time(self, work: Callable[[], Result]) -> tuple[float, Result]:
        """Returns the seconds until the result of `work` is ready, and the result."""
        began_s = self.clock.monotonic()
        result: Result = jax.block_until_ready(work())
        return self.clock.monotonic() - began_s, result


@dataclass
class JaxCall(Subject):
    """A subject whose work is one call of JAX."""

    stage: Stage
    last: jax.Array = field(init=False)

    @abstractmethod
    def call(self) -> jax.Array:
        """Does the work once and returns its result, which may not be ready yet."""

    def sample(self) -> float:
        """Calls once, and keeps the result."""
        duration_s, self.last = self.stage.time(self.call)
        return duration_s


def read_devices() -> tuple[dict[int, jax.Device], tuple[Notice, ...]]:
    """Returns this process's devices by local index, and notices about an uncertain match."""
    devices = jax.local_devices()
    visible = read_visible_gpus(os.environ) if parse_platform(devices[0].platform) == "gpu" else None
    return order_devices(devices, visible)


def order_devices(
    devices: Sequence[Any], visible: Sequence[VisibleGpu] | None
) -> tuple[dict[int, Any], tuple[Notice, ...]]:
    """Returns devices by local index: GPUs in PCI order, TPUs by coordinates (z, y, x, core), CPUs in JAX's order."""
    match parse_platform(devices[0].platform):
        case "gpu":
            return _order_gpus(devices, visible)
        case "tpu":
            return dict(enumerate(sorted(devices, key=lambda d: canonical(d.coords, d.core_on_chip)))), ()
        case _:
            return dict(enumerate(devices)), ()


def follow_plan(scope: Scope, devices: Mapping[int, Any]) -> Scope:
    """Returns the scope with its devices in the order of a trainer's `create_mesh` for the same mesh."""
    chosen = [devices[index] for index in scope.devices]
    mesh = create_mesh(scope.mesh.sizes, scope.mesh.names, devices=chosen)
    indices = {device: index for index, device in devices.items()}
    return replace(scope, devices=tuple(indices[device] for device in mesh.devices.flat))


def _order_gpus(
    devices: Sequence[Any], visible: Sequence[VisibleGpu] | None
) -> tuple[dict[int, Any], tuple[Notice, ...]]:
    places = [_find_place(device, visible or ()) for device in devices]
    if None in places or len(set(places)) < len(places):
        return dict(enumerate(devices)), (_ASSUMED,)
    return dict(sorted(zip(cast(list[int], places), devices, strict=True), key=lambda pair: pair[0])), ()


def _find_place(device: Any, visible: Sequence[VisibleGpu]) -> int | None:
    ordinal = getattr(device, "local_hardware_id", None)
    return visible[ordinal].host_position if ordinal is not None and 0 <= ordinal < len(visible) else None


_ASSUMED: Final = Notice(
    code="device_order_assumed",
    message="which GPU each local index is cannot be told from here: JAX's order was taken",
    hint="set CUDA_DEVICE_ORDER=PCI_BUS_ID for the agent, or name GPUs by uuid in CUDA_VISIBLE_DEVICES",
)
