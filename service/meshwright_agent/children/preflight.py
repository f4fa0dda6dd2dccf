"""One host's process of a preflight: one JAX job over many hosts. `python -m meshwright_agent.children.preflight`.

Rule: everything that can fail without a device is checked before one is opened. Every process takes the same decisions
from figures that all have exchanged, so that no process waits for a collective that another does not begin. A thread
tells the agent once a second that the process lives and where it is; the agent ends it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, Final, NamedTuple, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright._agreement import find_service
from meshwright._client.settings import is_loopback
from meshwright.compiling.worker import lower_priority
from meshwright.errors import InvalidRequestError, RunFailedError
from meshwright.planning.parallelism import Role, find_role
from meshwright.preflight.pairs import Round, choose_rounds
from meshwright.preflight.rule import (
    CONFIRM_ROUNDS,
    DEVICE_FIGURES,
    LOCAL_FIGURES,
    FigureKey,
    HostFigures,
    Wrong,
    blame_contents,
    blame_sums,
    choose_confirmation,
    choose_figures,
    confirm,
    find_suspects,
)
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import parse_platform
from meshwright.wire.preflight import (
    CollectiveCase,
    CollectiveRate,
    Figure,
    PreflightDevice,
    PreflightRequest,
    PreflightResult,
    SlowFigure,
    WrongContent,
)
from meshwright_agent.bench.scope import build_scope
from meshwright_agent.children.bench.collectives import KINDS
from meshwright_agent.children.bench.measure import Stage, Subject, Trial, read_devices
from meshwright_agent.children.bench.suite import LISTERS
from meshwright_agent.children.child import CallContext, serve
from meshwright_agent.children.device import NICENESS
from meshwright_agent.clock import SystemClock

HEARTBEAT_S: Final = 1.0
MEET_RATIO, CONNECT_RATIO = 0.5, 0.3
"""Of the time limit: how long JAX waits for all processes, which is longer than the agent does; and how long the first
host's process may take until it listens, which is shorter."""
REACH_S, LAST_TRY_S = 5.0, 1.0
_OF_CONNECTIONS: Final = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|gloo|nccl|connect|peer|barrier", re.I
)
"""Words of JAX's errors where another process has ended. All else is this host's."""
SAMPLES: Final = 5
MAX_SAMPLES: Final = 40
"""Of an exchange with a suspect."""
WINDOW_S: Final = 0.2
"""How long a device or host is measured at least: Linux counts a limit of CPU time over 0.1 s, and a short sample would
fit into what it leaves. Source: docs.kernel.org/scheduler/sched-bwc.html"""
CONFIRM_S: Final = 10.0
"""For how long at most the devices of a suspect are measured again: what else ran on the host may have ended."""
MATMUL_SIZE: Final = 4096
"""On accelerators: 0.2 ms of an H100, and small enough that the host fills and checks it in a tenth of a second."""
MAX_WRONG: Final = 8
"""Wrong contents that a process tells the others."""
NETWORK_BYTES: Final = {True: 2**20, False: 16 * 2**20}
"""Of each device in each exchange, by whether the platform is CPU."""
EXCHANGES: Final = {True: 1, False: 9}
"""Of each round, in one program, so that its start counts little; odd, so that a host ends with its partner's data."""
OWN_AUTOTUNING: Final = {"xla_gpu_shard_autotuning": False}
"""Else XLA for GPUs waits for all processes while it compiles a program of some. Source: openxla/xla#28959"""
_STRIDE, _STEP = 2246822519, 2654435761
"""Odd, so that no two devices send the same and no two places hold the same. Source: xxHash's and Knuth's primes."""


def prepare() -> None:
    """Lowers its own priority. JAX opens no device before the job's processes have met."""
    lower_priority(NICENESS)


def preflight(arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Takes part in the check; returns a PreflightResult as JSON.

    `platform` and `device_count` are what the agent knows of this host. It ends this process at `until_s` on the host's
    monotonic clock.

    Raises:
        RunFailedError: this host cannot take part; with code run_cancelled, another process has ended or did not come.
    """
    request = PreflightRequest.model_validate(arguments["request"])
    with Heartbeat(context) as heartbeat:
        part = _Part(request, heartbeat, arguments["platform"], arguments["device_count"], arguments["until_s"])
        return part.run().model_dump(mode="json")


class Heartbeat:
    """Sends the phase of this process to the agent, when it begins and once a second."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._phase = "connect"
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def enter(self, phase: str) -> None:
        """Begins a phase."""
        self._context.check()
        with self._lock:
            self._phase = phase
        self._report()

    def pass_on(self, phase: str, following: str) -> None:
        """Begins the following phase if the other still goes on."""
        with self._lock:
            if self._phase == phase:
                self._phase = following
        self._report()

    def _report(self) -> None:
        self._context.progress({"phase": self._phase})

    def _run(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            self._report()

    def __enter__(self) -> Heartbeat:
        self._report()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()  # a sign after the result would break the protocol


@contextlib.contextmanager
def waiting_for_others(what: str) -> Iterator[None]:
    """Turns an error of a connection into one that says that another host ended: it is not this host's fault."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # JAX raises either for one and the same cause
        text = (str(error).splitlines() or ["no message"])[0][:300]
        if not _OF_CONNECTIONS.search(text):
            raise
        detail = f"{what} ended, most likely because another host's process did: {text}"
        raise RunFailedError(detail, hint="see the other hosts", code="run_cancelled") from error


class Sampling(NamedTuple):
    """How often a program is timed, and which duration counts: the median, or the shortest, to be fair to a suspect."""

    times: int = SAMPLES
    choose: Callable[[Sequence[float]], float] = median


@dataclass(frozen=True)
class JobMesh:
    """The devices of all hosts on a mesh; an array has one row for each.

    Attributes:
        ranks: of each device in the mesh: its host × devices of a host + its place among them.
    """

    mesh: Mesh
    ranks: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def sharding(self) -> NamedSharding:
        """Of an array: a row a device."""
        return NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))

    def build(self, work: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        """Returns the program that does `work` on each device's row."""
        spec = self.sharding.spec
        options = None if self.mesh.devices.flat[0].platform == "tpu" else OWN_AUTOTUNING
        program = jax.shard_map(work, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return jax.jit(program, compiler_options=options)

    def group(self, axes: Sequence[str]) -> dict[int, list[int]]:
        """Returns position in the mesh → ranks of its group over some axes, in the order of these axes."""
        chosen = [self.mesh.axis_names.index(axis) for axis in axes]
        size = math.prod(self.mesh.devices.shape[axis] for axis in chosen)
        positions = np.arange(self.ranks.size).reshape(self.ranks.shape)
        rows = [np.moveaxis(each, chosen, range(-len(chosen), 0)).reshape(-1, size) for each in (positions, self.ranks)]
        return {place: ranks for at, ranks in zip(*(row.tolist() for row in rows), strict=True) for place in at}

    def list_shards(self, result: jax.Array) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """Returns this host's rows of an array, each with its position in the mesh, in their order."""
        rows = [(shard.index[0].start or 0, np.asarray(shard.data).reshape(-1)) for shard in result.addressable_shards]
        return sorted(rows, key=lambda row: row[0])


CASES: Final[dict[Role | None, CollectiveCase]] = {
    "pipeline": "permute",
    "data": "all_reduce",
    "fsdp": "all_gather",
    "expert": "all_to_all",
    "context": "permute",
    "tensor": "all_reduce",
    None: "all_reduce",
}
"""Role of a plan's axis → what is most sent over it; all-gather stands for reduce-scatter too."""


@dataclass
class _Part:
    """This host's part of the job."""

    request: PreflightRequest
    heartbeat: Heartbeat
    platform: str
    device_count: int
    until_s: float
    wrong: list[Wrong] = field(default_factory=list)
    round_s: float = 0.0
    sample_s: float = 0.0

    def run(self) -> PreflightResult:
        """Goes through the phases."""
        if unreachable := self.connect():
            return PreflightResult(unreachable=unreachable)
        if (unreached := self.reach()) is not None:
            jax.distributed.shutdown()
            return PreflightResult(unreachable=unreached)
        self.heartbeat.enter("open")
        threading.Thread(target=self.watch_opening, daemon=True).start()
        with waiting_for_others("opening the devices"):  # JAX waits until every process has opened its own
            self.devices, _ = read_devices()
            self.check_devices()
            mesh = build_mesh(self.count)
            self.job_mesh = JobMesh(mesh, np.arange(mesh.size).reshape(mesh.devices.shape))
        self.heartbeat.enter("devices")
        self.is_cpu = self.platform == "cpu"
        local = self.measure_local()
        self.heartbeat.enter("pairs")
        with waiting_for_others("the exchange between pairs of hosts"):
            rounds = choose_rounds(self.count)
            own = replace(local, network=self.measure_rounds(rounds, Sampling()))
            hosts, round_count, sampling = self.share_figures(own)
            slow = self.confirm(hosts, rounds, round_count, sampling)
            self.heartbeat.enter("all")
            collectives = tuple(self.measure_all())
            wrong = self.share_wrong()
            if any(each.host is None for each in wrong):
                wrong = self.share_pair_sums(rounds) or wrong
            jax.distributed.shutdown()
        return PreflightResult(
            devices=tuple(
                PreflightDevice(
                    local_index=index,
                    matmul_flops_per_s=rates["matmul"],
                    memory_bandwidth_bytes_per_s=rates["memory_bandwidth"],
                )
                for index, rates in zip(self.devices, own.devices, strict=True)
            ),
            all_reduce_bytes_per_s=own.all_reduce,
            network_bytes_per_s=own.network,
            slow=slow,
            wrong=wrong,
            collectives=collectives,
        )

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.request.hosts)

    @property
    def own(self) -> int:
        """This host's place."""
        return self.request.process_id

    # ---- before any device is opened -------------------------------------------------------------------------------

    def connect(self) -> tuple[int, ...]:
        """Joins the job; returns the first host where it cannot be reached.

        Raises:
            InvalidRequestError: the port is in use.
            RunFailedError: this host's name leads others to themselves.
        """
        name, _, port = self.request.coordinator.rpartition(":")
        address = (name.strip("[]"), int(port))
        if self.own == 0:
            bind_address = check_port(address, is_alone=self.count == 1)
        elif not can_connect(address, CONNECT_RATIO * self.request.timeout_s):
            return (0,)
        else:
            bind_address = None
        self.address = find_own_address(address)
        if self.platform == "cpu" and self.count > 1:
            check_name(self.address)
        self.heartbeat.enter("meet")
        with waiting_for_others("the meeting of the processes"):
            jax.distributed.initialize(
                self.request.coordinator,
                self.count,
                self.own,
                initialization_timeout=round(MEET_RATIO * self.request.timeout_s),
                shutdown_timeout_seconds=round(MEET_RATIO * self.request.timeout_s),
                cluster_detection_method="deactivate",
                coordinator_bind_address=bind_address,
            )
        return ()

    def reach(self) -> tuple[int, ...] | None:
        """Connects to each partner of this host.

        Returns the hosts that it cannot connect to, () if only other hosts have such; None if all have reached all.
        """
        self.heartbeat.enter("reach")
        store = find_service()
        partners = [pairs.get(self.own) for pairs in choose_rounds(self.count)]
        with socket.create_server((self.address, 0), family=_choose_family(self.address)) as server:
            store.key_value_set(f"address/{self.own}", json.dumps([self.address, server.getsockname()[1]]))
            unreachable = tuple(host for host in partners if host is not None and not self._can_reach(store, host))
            if unreachable:
                store.key_value_set(f"unreachable/{self.own}", json.dumps(unreachable))
            with waiting_for_others("the meeting of the processes"):
                store.wait_at_barrier("reach", int(1000 * (2 + len(partners)) * (REACH_S + LAST_TRY_S)))
        return unreachable if unreachable or store.key_value_dir_get("unreachable/") else None

    def _can_reach(self, store: Any, host: int) -> bool:
        with waiting_for_others("the exchange of addresses"):
            address = json.loads(store.blocking_key_value_get(f"address/{host}", int(1000 * REACH_S)))
        return can_connect(tuple(address), REACH_S)

    def watch_opening(self) -> None:
        """Waits until this process has told the others what it has opened: then it waits for theirs.

        A JAX that tells it in another way leaves every host in phase "open", and none is blamed.
        """
        name = "cuda" if self.platform == "gpu" else self.platform
        key = f"{name}:local_topology/{name}/{self.own}"  # Source: XLA, xla/pjrt/distributed/topology_util.cc
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            find_service().blocking_key_value_get_bytes(key, int(1000 * self.left_s))
            self.heartbeat.pass_on("open", "opened")

    @property
    def left_s(self) -> float:
        """Seconds until the agent ends this process; 1 at least."""
        return max(1.0, self.until_s - time.monotonic())

    def check_devices(self) -> None:
        """Raises RunFailedError unless JAX has opened what the agent knows."""
        found = parse_platform(jax.local_devices()[0].platform)
        if (found, len(self.devices)) != (self.platform, self.device_count):
            here = f"the host has {self.device_count} {self.platform}"
            hint = "see `meshwright-agent doctor`; CUDA_VISIBLE_DEVICES hides GPUs"
            raise RunFailedError(f"JAX has opened {len(self.devices)} {found} devices; {here}", hint=hint)
        if jax.process_index() != self.own:
            detail = f"JAX numbers this host {jax.process_index()}; it is host {self.own} of the list"
            raise RunFailedError(detail, hint="list the hosts of a TPU slice in the order of their workers")

    # ---- this host's devices -----------------------------------------------------------------------------------------

    def measure_local(self) -> HostFigures:
        """Returns the rates of each device and, with several, of the all-reduce over them."""
        trials = {_name_figure(trial): trial for figure in LOCAL_FIGURES for trial in self._list_trials(figure)}
        self.subjects = {key: (trial, trial.prepare()) for key, trial in trials.items()}
        found = self._measure_figures(self.subjects, 0.0)
        devices = tuple({figure: found[figure, index] for figure in DEVICE_FIGURES} for index in self.devices)
        return HostFigures(devices, found.get(("all_reduce", None)), ())

    def measure_again(self, before: HostFigures, keys: Collection[FigureKey]) -> HostFigures:
        """Returns the figures with some of them measured again, in a quarter of the time that is left."""
        found = self._measure_figures(keys, min(self.left_s / 4, CONFIRM_S))
        devices = tuple(
            {figure: found.get((figure, index), value) for figure, value in rates.items()}
            for index, rates in zip(self.devices, before.devices, strict=True)
        )
        return replace(before, devices=devices, all_reduce=found.get(("all_reduce", None), before.all_reduce))

    def _measure_figures(self, keys: Collection[FigureKey], limit_s: float) -> dict[FigureKey, float]:
        """Returns the best rate of each figure in as many tries as end in time, 1 at least; notes wrong results."""
        chosen = {key: pair for key, pair in self.subjects.items() if key in keys}
        found: dict[FigureKey, float] = {}
        ended_s, until_s = time.monotonic(), time.monotonic() + limit_s
        while chosen:
            began_s = ended_s
            for key, (trial, subject) in chosen.items():
                found[key] = max(_measure_rate(trial, subject), found.get(key, 0.0))
            ended_s = time.monotonic()
            if 2 * ended_s - began_s > until_s:
                break
        for (figure, device), (_, subject) in chosen.items():
            if wrong := subject.verify().wrong_elements:
                self.wrong.append(Wrong(self.own, self.own, -1 if device is None else device, figure, wrong))
        return found

    def _list_trials(self, figure: Figure) -> list[Trial]:
        platform = parse_platform(self.platform)
        request = BenchRequest(devices=tuple(self.devices), matmul_size=None if self.is_cpu else MATMUL_SIZE)
        scope = build_scope(request, platform=platform, indices=tuple(self.devices))
        stage = Stage(self.devices, platform, scope.dtype, SystemClock())
        case: Any = figure
        return list(LISTERS[case](scope, stage))

    # ---- between hosts -----------------------------------------------------------------------------------------------

    def measure_rounds(self, rounds: Sequence[Round], sampling: Sampling) -> tuple[float | None, ...]:
        """Returns the rate with this host's partner in each round, bytes/s."""
        began_s = time.monotonic()
        rates = tuple(self._measure_round(pairs, sampling) for pairs in rounds)
        self.round_s = (time.monotonic() - began_s) / max(1, len(rounds))
        return rates

    def _measure_round(self, pairs: Round, sampling: Sampling) -> float | None:
        both = sorted(pairs.items())
        count = EXCHANGES[self.is_cpu]
        exchange = self.job_mesh.build(
            lambda block: jax.lax.fori_loop(0, count, lambda _, data: jax.lax.ppermute(data, "host", both), block)
        )
        self.sample_s, result = self._time(exchange, self._place(self.job_mesh), sampling)
        partner = pairs.get(self.own)
        if partner is None:
            return None
        for position, shard in self.job_mesh.list_shards(result):
            rank = partner * len(self.devices) + position % len(self.devices)
            self._note_wrong(rank, shard != self._fill(rank))
        return count * len(self.devices) * NETWORK_BYTES[self.is_cpu] / self.sample_s

    def measure_collective(self, job_mesh: JobMesh, case: CollectiveCase, axes: Sequence[str]) -> CollectiveRate:
        """Returns the bus bandwidth of a collective over some axes, all groups at once, and notes wrong contents."""
        groups, names = job_mesh.group(axes), tuple(axes)
        size = len(next(iter(groups.values())))
        part = self._width // size
        width = {"all_gather": part, "all_to_all": size * part}.get(case, self._width)
        work = job_mesh.build(lambda block: KINDS[case].run(block[:, :width], names, size))
        duration_s, result = self._time(work, self._place(job_mesh), Sampling())
        base = self._fill(0)
        for position, shard in job_mesh.list_shards(result):
            ranks = groups[position]
            place = ranks.index(int(job_mesh.ranks.flat[position]))
            if case == "all_reduce":
                total = size * base + np.uint32(sum(ranks) * _STEP % 2**32)  # modulo 2³², as XLA adds
                self._note_wrong(-1, shard != total)
            elif case == "permute":
                self._note_wrong(ranks[place - 1], shard != self._fill(ranks[place - 1]))
            else:
                sent = base[:part] if case == "all_gather" else base[place * part : (place + 1) * part]
                for rank, received in zip(ranks, shard.reshape(size, part), strict=True):
                    self._note_wrong(rank, received != sent + np.uint32(rank * _STEP % 2**32))
        moved = 4 * (size * part if case == "all_gather" else width)
        return CollectiveRate(case=case, busbw_bytes_per_s=KINDS[case].factor(size) * moved / duration_s)

    def measure_all(self) -> Iterator[CollectiveRate]:
        """Yields collectives over all devices, then those of the plan's axes. With one device there are none."""
        if self.job_mesh.mesh.size > 1:
            for case in ("all_reduce", "all_gather"):
                yield self.measure_collective(self.job_mesh, case, self.job_mesh.mesh.axis_names)
        if self.request.axes is None or self.request.order is None:
            return
        ranks = np.array(self.request.order).reshape(tuple(self.request.axes.values()))
        job_mesh = JobMesh(Mesh(self.job_mesh.mesh.devices.flatten()[ranks], tuple(self.request.axes)), ranks)
        for axis, size in self.request.axes.items():
            if size > 1:
                rate = self.measure_collective(job_mesh, CASES[find_role(axis)], (axis,))
                yield rate.model_copy(update={"axis": axis})

    def count_wrong_sums(self, pairs: Round) -> int:
        """Returns how many elements of the sum over this host and its partner are wrong; 0 if it rests."""
        if self.own not in pairs:
            return 0
        ranks = np.arange(self.job_mesh.mesh.size).reshape(self.count, -1)
        rows = np.array([ranks[[host, other]].reshape(-1) for host, other in sorted(pairs.items()) if host < other])
        devices = self.job_mesh.mesh.devices.reshape(-1)[rows]
        seen = len(self.wrong)
        self.measure_collective(JobMesh(Mesh(devices, ("pair", "member")), rows), "all_reduce", ("member",))
        return max((each.wrong_elements for each in self.wrong[seen:]), default=0)

    def _note_wrong(self, rank: int, is_wrong: np.ndarray[Any, Any]) -> None:
        """Notes wrong elements, if there are any, of the device of this rank; −1: of the sum of all."""
        if wrong := int(np.count_nonzero(is_wrong)):
            host, device = (-1, -1) if rank < 0 else divmod(rank, len(self.devices))
            self.wrong.append(Wrong(self.own, host, device, "network", wrong))

    @property
    def _width(self) -> int:
        """Numbers that each device sends."""
        return NETWORK_BYTES[self.is_cpu] // 4

    def _fill(self, rank: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Returns what a device sends: numbers of which each depends on the device and on the place, modulo 2³²."""
        places = np.arange(self._width, dtype=np.uint32)
        return places * np.uint32(_STRIDE) + np.uint32(rank * _STEP % 2**32)

    def _place(self, job_mesh: JobMesh) -> jax.Array:
        def fill_row(index: tuple[slice, ...] | None) -> Any:
            return self._fill(int(job_mesh.ranks.flat[index[0].start or 0 if index else 0]))[None]

        return jax.make_array_from_callback((job_mesh.mesh.size, self._width), job_mesh.sharding, fill_row)

    def _time(
        self, work: Callable[[jax.Array], jax.Array], given: jax.Array, sampling: Sampling
    ) -> tuple[float, jax.Array]:
        """Returns the seconds of a call after one that compiles, and the last result."""
        result, samples = jax.block_until_ready(work(given)), []
        for _ in range(sampling.times):
            began_s = time.monotonic()
            result = jax.block_until_ready(work(given))
            samples.append(time.monotonic() - began_s)
        return sampling.choose(samples), result

    # ---- together ----------------------------------------------------------------------------------------------------

    def share_figures(self, own: HostFigures) -> tuple[list[HostFigures], int, Sampling]:
        """Returns the figures of all hosts, and how many rounds (1 to `CONFIRM_ROUNDS`) and samples (to `MAX_SAMPLES`)
        the slowest can exchange in a quarter of the time left. Every process receives the same.
        """
        row = [self.left_s, self.round_s, self.sample_s]
        row += [rates[figure] for rates in own.devices for figure in DEVICE_FIGURES]
        row += [-1.0 if own.all_reduce is None else own.all_reduce]
        row += [-1.0 if rate is None else rate for rate in own.network]
        table = multihost_utils.process_allgather(np.array(row, dtype=np.float32)).reshape(self.count, -1)
        limit_s, round_s, sample_s = table[:, 0].min() / 4, table[:, 1].max(), table[:, 2].max()
        round_count = int(np.clip(limit_s / max(round_s, 0.1), 1, CONFIRM_ROUNDS))
        sample_count = int(np.clip(limit_s / 2 / round_count / max(sample_s, 1e-3), SAMPLES, MAX_SAMPLES))
        figures = [self._parse_row([float(value) for value in each[3:]]) for each in table]
        return figures, round_count, Sampling(sample_count, min)

    def _parse_row(self, row: list[float]) -> HostFigures:
        count = len(DEVICE_FIGURES)
        known = [None if value < 0 else value for value in row]
        devices = tuple(
            dict(zip(DEVICE_FIGURES, row[start : start + count], strict=True))
            for start in range(0, len(self.devices) * count, count)
        )
        rest = known[len(self.devices) * count :]
        return HostFigures(devices, rest[0], tuple(rest[1:]))

    def confirm(
        self, hosts: Sequence[HostFigures], rounds: Sequence[Round], round_count: int, sampling: Sampling
    ) -> tuple[SlowFigure, ...]:
        """Measures the suspects again; returns those that were slow every time. Every process returns the same."""
        suspects = find_suspects(hosts, rounds)
        if not suspects:
            return ()
        self.heartbeat.enter("again")
        own = self.measure_again(hosts[self.own], choose_figures(suspects, self.count, len(self.devices)))
        self.heartbeat.enter("confirm")
        network = self.measure_rounds(choose_confirmation(suspects, self.count, round_count), sampling)
        again, *_ = self.share_figures(replace(own, network=network))
        return confirm(suspects, hosts, rounds, again)

    def share_wrong(self) -> tuple[WrongContent, ...]:
        """Returns who produced the wrong contents that any host has seen. Every process returns the same."""
        figures: tuple[Figure, ...] = (*LOCAL_FIGURES, "network")
        own = np.zeros((MAX_WRONG, 5), dtype=np.int32)
        for row, each in zip(own, self.wrong, strict=False):
            row[:] = each.observer, each.host, each.device, figures.index(each.figure), each.wrong_elements
        rows = multihost_utils.process_allgather(own).reshape(-1, 5).tolist()
        return blame_contents([Wrong(a, b, c, figures[figure], wrong) for a, b, c, figure, wrong in rows if wrong])

    def share_pair_sums(self, rounds: Sequence[Round]) -> tuple[WrongContent, ...]:
        """Returns who makes a sum over all devices wrong, by sums over pairs of hosts; the same in every process."""
        own = np.array([self.count_wrong_sums(pairs) for pairs in rounds], dtype=np.int32)
        return blame_sums(multihost_utils.process_allgather(own).reshape(self.count, -1).tolist(), rounds)


def _name_figure(trial: Trial) -> FigureKey:
    """Returns what a trial measures: a device, or the host where it uses several."""
    return cast(Figure, trial.case), trial.device_indices[0] if len(trial.device_indices) == 1 else None


def _measure_rate(trial: Trial, subject: Subject) -> float:
    """Returns the mean rate of a trial over `SAMPLES` samples and `WINDOW_S` at least, after one: FLOP/s, or (bus)
    bytes/s.
    """
    subject.sample()
    until_s, samples = time.monotonic() + WINDOW_S, [subject.sample()]
    while len(samples) < SAMPLES or time.monotonic() < until_s:
        samples.append(subject.sample())
    amount = trial.flops or trial.size_bytes * (trial.busbw_factor or 1.0)
    return amount / fmean(samples)


def build_mesh(host_count: int) -> Mesh:
    """Returns the mesh of all devices, (host, device).

    Raises:
        RunFailedError: the hosts have different numbers of devices.
    """
    rows = [[d for d in jax.devices() if d.process_index == host] for host in range(host_count)]
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        detail = f"the hosts' JAX has {min(counts)} to {max(counts)} devices; a preflight needs as many on each host"
        raise RunFailedError(detail, hint="see GET /devices of each host", code="run_cancelled")
    return Mesh(np.array([sorted(row, key=lambda device: device.id) for row in rows]), ("host", "device"))


def check_port(address: tuple[str, int], *, is_alone: bool) -> str:
    """Returns where to listen: the address that the first host's name leads to, with the port.

    Raises:
        InvalidRequestError: the port is in use.
        RunFailedError: this process cannot listen there, or the name leads to this host only on this host.
    """
    try:
        found = str(socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][4][0])
        if not is_alone and is_loopback(found) and not is_loopback(address[0]):
            detail = f"here the first host's name {address[0]} leads to {found}, where other hosts do not find it"
            raise RunFailedError(detail, hint=f"let {address[0]} lead to its own address in /etc/hosts")
        family = _choose_family(found)
        socket.create_server((found, address[1]), family=family).close()
        return f"[{found}]:{address[1]}" if family == socket.AF_INET6 else f"{found}:{address[1]}"
    except OSError as error:
        detail = f"the first host cannot listen on {address[0]}:{address[1]}: {error.strerror or error}"
        hint = "name another port (--port), and the first host by an address of its own"
        if error.errno == errno.EADDRINUSE:  # by no fault of the host
            raise InvalidRequestError.of("coordinator", detail, hint) from error
        raise RunFailedError(detail, hint=hint) from error


def check_name(own_address: str) -> None:
    """Raises RunFailedError if this host's name leads others to themselves: JAX on CPU listens where it leads."""
    name = socket.gethostname()
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    if is_loopback(own_address):
        return
    if not found or all(map(is_loopback, found)):
        leads = f"leads to {', '.join(sorted(found))}" if found else "is not known to the resolver"
        detail = f"this host's name {name} {leads}; JAX listens there, and other hosts would not find it"
        raise RunFailedError(detail, hint=f"let {name} lead to {own_address} in /etc/hosts")


def can_connect(address: tuple[str, int], limit_s: float) -> bool:
    """Returns whether a TCP connection can be made within the time, or in a last try after it: until then this process
    may itself have stood still.
    """
    until_s = time.monotonic() + limit_s
    while True:
        began_s = time.monotonic()
        try:
            socket.create_connection(address, timeout=max(until_s - began_s, LAST_TRY_S)).close()
        except OSError:
            if began_s >= until_s:
                return False
            time.sleep(0.2)
        else:
            return True


def find_own_address(coordinator: tuple[str, int]) -> str:
    """Returns the address of this host on the way to the coordinator. Nothing is sent."""
    family, _, _, _, address = socket.getaddrinfo(*coordinator, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _choose_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


if __name__ == "__main__":
    serve("preflight", prepare, {"preflight": preflight})
