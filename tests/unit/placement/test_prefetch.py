"""Batches ahead of time: order, how far ahead, errors, closing, buffers that are used again, the caller's settings."""

from __future__ import annotations

import contextvars
import gc
import signal
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from meshwright._prefetch import _SETTINGS
from meshwright.placement import DevicePlacement, Prefetcher, prefetch_to_device
from tests.agents import wait_for
from tests.unit.placement.buffers import TARGETS, make_aligned, shares_memory

LIMIT_S = 10.0
THREAD = "meshwright-prefetch"


def list_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    wait_for(lambda: not list_threads(), limit_s=LIMIT_S)


def make_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))


def count_up(until: int | None = None) -> Iterator[Any]:
    for number in count() if until is None else range(until):
        yield np.full(8, number, np.float32)


class Source:
    """An endless generator of batches that keeps what became of it."""

    def __init__(self) -> None:
        self.asked = 0
        self.threads: set[int] = set()
        self.closed_in: int | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            for number in count():
                self.asked = number + 1
                self.threads.add(threading.get_ident())
                yield np.full(8, number, np.float32)
        finally:
            self.closed_in = threading.get_ident()


# ---- what comes out ----


@given(numbers=st.lists(st.integers(0, 1000), max_size=12), buffer_size=st.integers(1, 5))
def test_every_batch_comes_once_and_in_order(numbers: list[int], buffer_size: int) -> None:
    got = prefetch_to_device(({"x": np.int32(number)} for number in numbers), buffer_size=buffer_size)
    assert [int(batch["x"]) for batch in got] == numbers
    with pytest.raises(StopIteration):
        next(got)


def test_no_device_means_the_placements_own_and_else_jaxs_default_where_it_was_called() -> None:
    [batch] = DevicePlacement(jax.devices()[4]).prefetch_to_device([1])
    assert batch.devices() == {jax.devices()[4]}
    with jax.default_device(jax.devices()[5]):
        made_inside = prefetch_to_device([1])
    assert next(made_inside).devices() == {jax.devices()[5]}
    made_inside.close()


@pytest.mark.parametrize(("given", "kind", "words"), [
    ({"buffer_size": 0}, ValueError, "buffer_size is 0; at least 1 batch must be on its way"),
    ({"buffer_size": -3}, ValueError, "buffer_size is -3"), ({"buffer_size": 2.0}, TypeError, "float"),
    ({"data_iterator": 5}, TypeError, "not iterable"),
    ({"device": "gpu"}, TypeError, "'gpu' is a str; data is placed on a jax.Device"),
    ({"device": {"x": P("data")}}, TypeError, "such as NamedSharding(mesh"),
])  # fmt: skip
def test_wrong_arguments_are_refused_at_the_call(given: dict[str, Any], kind: type[Exception], words: str) -> None:
    source = Source()
    for call in (prefetch_to_device, DevicePlacement().prefetch_to_device):
        with pytest.raises(kind) as caught:
            call(**{"data_iterator": iter(source), **given})
        assert words in str(caught.value)
    assert source.asked == 0


# ---- how far ahead ----


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_the_source_works_while_the_consumer_does_and_is_never_more_than_buffer_size_ahead(buffer_size: int) -> None:
    source = Source()
    handed_out, inside, ahead = 0, False, []

    def watch() -> Iterator[Any]:
        for batch in source:
            ahead.append(source.asked - handed_out - inside)
            yield batch

    with prefetch_to_device(watch(), buffer_size=buffer_size) as batches:
        for number in range(7):
            inside = True
            assert next(batches)[0] == number
            handed_out, inside = number + 1, False
            # This thread does nothing now, as in a computation, and the source reaches its bound meanwhile.
            bound = handed_out + buffer_size
            wait_for(lambda bound=bound: source.asked >= bound, limit_s=LIMIT_S)
            assert source.asked == bound
    assert max(ahead) == buffer_size
    assert source.threads.isdisjoint({threading.get_ident()})


@pytest.mark.parametrize("buffer_size", [1, 3])
def test_devices_hold_no_more_batches_than_buffer_size_beside_the_consumers(buffer_size: int) -> None:
    shape = (7919,)

    def count_alive() -> int:
        return sum(array.shape == shape for array in jax.live_arrays())

    source = (np.zeros(shape, np.float32) for _ in count())
    with prefetch_to_device(source, buffer_size=buffer_size) as batches:
        for _ in range(4):
            batch = next(batches)
            wait_for(lambda: count_alive() == buffer_size + 1, limit_s=LIMIT_S)
            del batch
            assert count_alive() == buffer_size
    assert count_alive() == 0


# ---- errors ----


def explode() -> None:
    raise LookupError("the third file is broken")


def fail_after(number: int) -> Iterator[Any]:
    yield from count_up(number)
    explode()


@pytest.mark.parametrize("buffer_size", [1, 2, 8])
def test_what_the_source_raises_comes_after_the_batches_before_it_with_its_traceback(buffer_size: int) -> None:
    batches = prefetch_to_device(fail_after(2), buffer_size=buffer_size)
    assert [float(next(batches)[0]) for _ in range(2)] == [0, 1]
    with pytest.raises(LookupError, match="the third file is broken") as caught:
        next(batches)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["fail_after", "explode"]
    assert list(batches) == list(batches) == []


def test_a_batch_that_cannot_be_placed_is_an_error_at_its_place_and_the_source_is_closed() -> None:
    closed = threading.Event()

    def source() -> Iterator[Any]:
        try:
            yield {"x": np.zeros(8)}
            yield {"x": np.zeros(8), "name": "not an array"}
            yield {"x": np.zeros(8)}
        finally:
            closed.set()

    batches = prefetch_to_device(source())
    assert next(batches)["x"].shape == (8,)
    with pytest.raises(TypeError, match=r"leaf \['name'\] is a str"):
        next(batches)
    assert list(batches) == []
    assert closed.wait(LIMIT_S)


# ---- the end ----


def test_close_stops_the_source_in_its_own_thread_and_drops_the_batches() -> None:
    source = Source()
    batches = prefetch_to_device(iter(source), buffer_size=3)
    next(batches)
    [thread] = list_threads()
    batches.close()
    asked = source.asked
    assert not thread.is_alive()
    assert thread.daemon
    assert source.closed_in == thread.ident
    assert source.threads == {thread.ident}
    assert list(batches) == []
    batches.close()
    assert source.asked == asked <= 4


def test_closing_before_the_first_batch_closes_the_source_too() -> None:
    generator = count_up()
    with prefetch_to_device(generator) as batches:
        pass
    assert list(batches) == []
    assert list(generator) == []


@pytest.mark.parametrize("how", ["break", "del", "cycle"])
def test_a_prefetcher_that_nobody_holds_stops_its_source(how: str) -> None:
    source = Source()
    if how == "break":
        for _ in prefetch_to_device(iter(source)):
            break
    else:
        batches = prefetch_to_device(iter(source))
        next(batches)
        gone = weakref.ref(batches)
        if how == "cycle":
            batches.itself = batches  # type: ignore[attr-defined]
        del batches
        gc.collect()
        assert gone() is None
    wait_for(lambda: source.closed_in is not None, limit_s=LIMIT_S)
    assert {source.closed_in} == source.threads


@pytest.mark.parametrize("late", ["batch", "error"])
def test_a_source_that_does_not_come_back_is_left_with_a_warning_and_closed_when_it_does(late: str) -> None:
    release, closed = threading.Event(), threading.Event()
    placed: list[int] = []

    def source() -> Iterator[Any]:
        try:
            yield 0
            release.wait(LIMIT_S)
            if late == "error":
                explode()
            yield 1
        finally:
            closed.set()

    batches = Prefetcher(source(), lambda batch: placed.append(batch) or batch, 2)
    assert next(batches) == 0
    with pytest.warns(ResourceWarning, match=r"the source generator was still in its next\(\) 0.05 s after close"):
        batches.close(timeout_s=0.05)
    assert list(batches) == []
    assert not closed.is_set()
    release.set()
    assert closed.wait(LIMIT_S)
    wait_for(lambda: not list_threads(), limit_s=LIMIT_S)
    assert placed == [0]
    assert list(batches) == []


def test_what_closing_the_source_raises_comes_out_of_close_once() -> None:
    def source() -> Iterator[Any]:
        try:
            yield 0
            yield 1
        finally:
            explode()

    batches = prefetch_to_device(source(), buffer_size=1)
    next(batches)
    with pytest.raises(LookupError, match="broken"):
        batches.close()
    batches.close()


def test_a_consumer_that_waits_is_woken_when_another_thread_closes() -> None:
    release, waiting = threading.Event(), threading.Event()

    def source() -> Iterator[Any]:
        waiting.set()
        release.wait(LIMIT_S)
        yield 0

    batches = prefetch_to_device(source())
    got: list[Any] = [None]
    consumer = threading.Thread(target=lambda: got.__setitem__(0, list(batches)))
    consumer.start()
    waiting.wait(LIMIT_S)
    with pytest.warns(ResourceWarning):
        batches.close(timeout_s=0)
    consumer.join(LIMIT_S)
    assert got == [[]]
    release.set()


def test_an_interrupt_reaches_a_consumer_that_waits_and_it_can_go_on() -> None:
    release, waits = threading.Event(), threading.Event()

    def source() -> Iterator[Any]:
        yield 0
        waits.wait(LIMIT_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        release.wait(LIMIT_S)
        yield 1

    batches = prefetch_to_device(source())
    assert next(batches) == 0

    def wait() -> None:
        waits.set()
        next(batches)

    with pytest.raises(KeyboardInterrupt):
        wait()
    release.set()
    assert [int(batch) for batch in batches] == [1]


def test_several_consumers_share_the_batches() -> None:
    batches = prefetch_to_device(count_up(40))
    got: list[list[int]] = [[], []]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda kept: kept.extend(int(batch[0]) for batch in batches), got, timeout=LIMIT_S))
    assert sorted(got[0] + got[1]) == list(range(40))
    assert all(kept == sorted(kept) for kept in got)


# ---- buffers that are used again ----


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_source_may_fill_one_buffer_again_and_again(target: Any) -> None:
    buffer = make_aligned(4096)
    assert shares_memory(jax.device_put(buffer, target), buffer), "no test: JAX does not take this memory"

    def refill() -> Iterator[Any]:
        for number in range(12):
            buffer[:] = number
            yield {"x": buffer, "y": (buffer[::2], buffer.reshape(64, 64)[:, 0:64])}
        buffer[:] = -1

    batches = list(prefetch_to_device(refill(), target, buffer_size=3))
    for number, batch in enumerate(batches):
        for leaf in jax.tree.leaves(batch):
            assert np.all(np.asarray(leaf) == number)


# ---- the caller's settings ----


OTHER_VALUES = {
    "check_tracer_leaks": True, "debug_infs": True, "debug_key_reuse": True, "debug_nans": True,
    "default_device": jax.devices()[6], "default_matmul_precision": "highest", "default_prng_impl": "rbg",
    "disable_jit": True, "enable_x64": True, "legacy_prng_key": "error", "log_compiles": True,
    "numpy_dtype_promotion": "strict", "numpy_rank_promotion": "raise", "threefry_partitionable": False,
    "transfer_guard_device_to_device": "log", "transfer_guard_device_to_host": "log",
    "transfer_guard_host_to_device": "log",
}  # fmt: skip


def read_setting(name: str) -> Any:
    return getattr(jax.config, f"jax_{name}")


@pytest.mark.parametrize("name", _SETTINGS)
def test_each_setting_of_the_caller_holds_in_the_source(name: str) -> None:
    def tell() -> Iterator[Any]:
        seen.append(read_setting(name))
        yield from ()

    seen: list[Any] = []
    before = read_setting(name)
    with getattr(jax, name)(OTHER_VALUES[name]):
        expected = read_setting(name)
        assert expected != before
        batches = prefetch_to_device(tell())
    assert read_setting(name) == before
    assert list(batches) == []
    assert seen == [expected]


def test_the_callers_mesh_and_context_variables_hold_in_the_source() -> None:
    variable = contextvars.ContextVar("variable", default="outside")

    def tell() -> Iterator[Any]:
        seen.append((jax.sharding.get_mesh(), variable.get()))
        yield from ()

    seen: list[Any] = []
    mesh = make_mesh()
    token = variable.set("inside")
    with jax.set_mesh(mesh):
        batches = prefetch_to_device(tell())
    variable.reset(token)
    assert list(batches) == []
    assert seen == [(mesh, "inside")]
