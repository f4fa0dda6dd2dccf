"""The doctor's judgement of made-up surroundings, on recorded machines; one examination is real."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.wire.base import DeviceRef
from meshwright.wire.devices import DeviceProcess
from meshwright_agent.clock import SystemClock, read_boot_clock
from meshwright_agent.doctor import CheckResult, Surroundings, evaluate, examine, format_findings
from meshwright_agent.facts.model import CpuFacts, DriverFacts, KfdFacts, ProblemKind, SourceProblem
from meshwright_agent.facts.tpu import read_chips
from meshwright_agent.leases import LeaseRegistry, _build_document
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store
from tests.fakes.machines import RECORDED, plant_machine
from tests.fakes.tree import plant
from tests.process.living import plant_jax
from tests.unit.leases.scene import build_lease

PLAIN = {"jax": "0.10.2", "jaxlib": "0.10.2"}
CUDA13 = PLAIN | {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"}
CUDA12 = PLAIN | {"jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"}
TPU = PLAIN | {"libtpu": "0.0.42.1"}


def jax_on(platform: str, count: int) -> dict[str, Any]:
    return {"platform": platform, "devices": [{"id": number} for number in range(count)]}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Surroundings]:
    """Three hosts on which nothing is wrong."""
    folder = tmp_path_factory.mktemp("machines")
    with_driver = folder / "dev"
    (with_driver / "dev").mkdir(parents=True)
    (with_driver / "dev/nvidiactl").touch()
    facts = {name: plant_machine(name, folder / name).read() for name in ("cpu-vm", "dgx-h100", "tpu-v5e-8")}
    here = Surroundings(Settings(host_root=folder / "nothing"), {}, PLAIN, facts["cpu-vm"], jax=jax_on("cpu", 1))
    dgx = replace(facts["dgx-h100"], holders=(), driver=DriverFacts("580.95.05", "13.0"))
    gpu = replace(here, settings=Settings(host_root=with_driver), versions=CUDA13, facts=dgx)
    tpu = replace(here, versions=TPU, facts=replace(facts["tpu-v5e-8"], holders=()), jax=jax_on("tpu", 8))
    return {"cpu": here, "gpu": replace(gpu, jax=jax_on("gpu", 8)), "tpu": tpu}


def with_facts(here: Surroundings, **changes: Any) -> Surroundings:
    assert here.facts is not None
    return replace(here, facts=replace(here.facts, **changes))


def find(here: Surroundings, subject: str) -> CheckResult | None:
    found = [finding for finding in evaluate(here) if finding.subject == subject]
    assert len(found) <= 1, found
    return found[0] if found else None


def expect(here: Surroundings, level: str, subject: str, *, seen: Iterable[str], fix: Iterable[str] = ()) -> None:
    """The finding is there with these words, and is the only thing that is not ok."""
    finding = find(here, subject)
    assert finding is not None, evaluate(here)
    assert finding.level == level
    assert not [word for word in seen if word not in finding.seen], finding
    assert not [word for word in fix if word not in finding.fix], finding
    others = [other for other in evaluate(here) if other.level != "ok" and other is not finding]
    assert [other for other in others if other.subject != subject] == []


@pytest.mark.parametrize("name", ["cpu", "gpu", "tpu"])
def test_on_a_host_on_which_nothing_is_wrong_everything_is_ok(machines: dict[str, Surroundings], name: str) -> None:
    findings = evaluate(machines[name])
    assert {finding.level for finding in findings} == {"ok"}
    assert {"jax", "probe", "device worker", "state directory"} <= {finding.subject for finding in findings}
    assert not any(finding.fix for finding in findings)


def test_the_ok_lines_say_what_was_found(machines: dict[str, Surroundings]) -> None:
    text = format_findings(evaluate(machines["gpu"]))
    for words in ("jax 0.10.2, jaxlib 0.10.2", "8 GPUs, 0 TPU chips", "version 580.95.05", "jax-cuda13-plugin 0.10.2"):
        assert words in text
    assert "JAX sees 8 gpu devices" in text
    assert "libtpu 0.0.42.1" in format_findings(evaluate(machines["tpu"]))


def test_it_says_for_which_targets_plans_can_be_verified_and_how_to_add_the_others(
    machines: dict[str, Surroundings],
) -> None:
    for versions, seen in (
        (PLAIN, "for CPU targets; for TPU: pip install 'meshwright[compile-tpu]'; for GPU: pip install"),
        (TPU, "for CPU and TPU targets; for GPU: pip install 'meshwright[compile-cuda]'"),
        ({**TPU, "jax-cuda12-plugin": "0.10.2", "nvidia-cuda-nvcc-cu12": "12.9"}, "for CPU and TPU and GPU targets"),
    ):
        finding = find(replace(machines["cpu"], versions=versions), "compilers")
        assert finding is not None
        assert (finding.level, finding.fix) == ("ok", "")
        assert seen in finding.seen


BROKEN: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("cpu", {"versions": {**TPU, "libtpu": "0.0.51"}}, "note compilers", "0.0.51", "pip install 'libtpu==0.0.42.*'"),
    ("cpu", {"versions": {}}, "wrong jax", "not installed", "pip install 'meshwright[agent,cpu]'"),
    ("cpu", {"facts": None, "facts_error": "no answer within 10 s"}, "wrong probe", "within 10 s", "dmesg"),
    ("gpu", {"versions": PLAIN}, "wrong CUDA plugin", "JAX has no CUDA plugin", "meshwright[cuda"),
    ("tpu", {"versions": PLAIN}, "wrong libtpu", "8 TPU chips", "meshwright[tpu]"),
    ("gpu", {"settings": Settings(expect="h100:9")}, "wrong inventory", "8 of 9 h100 devices are", "MESHWRIGHT_EXPECT"),
    ("cpu", {"environ": {"MESHWRIGHT_EXPCT": "8"}}, "note settings", "EXPCT (MESHWRIGHT_EXPECT?)", "settings.md"),
    ("cpu", {"state_error": "[Errno 30] Read-only file system"}, "wrong state directory", "Read-only", "--state-dir"),
]


@pytest.mark.parametrize(("name", "change", "finding", "seen", "fix"), BROKEN, ids=[each[2] for each in BROKEN])
def test_what_is_not_well_is_named_alone_with_the_way_to_mend_it(
    machines: dict[str, Surroundings], name: str, change: dict[str, Any], finding: str, seen: str, fix: str
) -> None:
    level, _, subject = finding.partition(" ")
    expect(replace(machines[name], **change), level, subject, seen=[seen], fix=[fix])


# ---- JAX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jaxlib", ["0.9.2", "0.11.0", "1.10.2"])
def test_a_jaxlib_of_another_release(machines: dict[str, Surroundings], jaxlib: str) -> None:
    here = replace(machines["cpu"], versions={"jax": "0.10.2", "jaxlib": jaxlib})
    expect(here, "wrong", "jax", seen=["jax 0.10.2", f"jaxlib {jaxlib}"], fix=["pip install 'jaxlib==0.10.2'"])


def test_a_worker_that_does_not_start_shows_the_end_of_its_log(machines: dict[str, Surroundings]) -> None:
    log = tuple(f"line {number}" for number in range(50))
    here = replace(machines["cpu"], jax=None, jax_error="ImportError: libcudart.so.12", jax_log=log)
    expect(here, "wrong", "device worker", seen=["does not start", "libcudart.so.12"], fix=["WRONG above"])
    finding = find(here, "device worker")
    assert finding is not None
    assert finding.log == log[-8:]
    assert "         | line 49" in format_findings([finding]).splitlines()


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_jax_on_the_cpu_beside_accelerators(machines: dict[str, Surroundings], name: str) -> None:
    here = replace(machines[name], jax=jax_on("cpu", 1))
    expect(here, "wrong", "device worker", seen=["1 cpu device", "8 accelerators"], fix=["lines above"])
    assert here.facts is not None
    amd = replace(here, facts=replace(here.facts, gpus=(), tpus=(), kfd=KfdFacts(())))
    expect(amd, "wrong", "device worker", seen=["1 cpu device", "AMD's driver (/dev/kfd)"], fix=["ROCm"])


# ---- drivers and plugins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind", "level", "fix"), [
    ("cpu", "driver_down", "wrong", "reinstall the driver"), ("gpu", "unreadable", "wrong", "--gpus all"),
    ("cpu", "unreadable", "note", "device files"), ("cpu", "refused", "note", "reset the GPU"),
])  # fmt: skip
def test_a_driver_is_as_wrong_as_health_says(
    machines: dict[str, Surroundings], name: str, kind: ProblemKind, level: str, fix: str
) -> None:
    facts = with_facts(machines["cpu"], problems=(SourceProblem(kind, "8 cards cannot be read"),)).facts
    here = replace(machines["cpu"], settings=machines[name].settings, facts=facts)
    expect(here, level, "probe", seen=["8 cards cannot be read"], fix=[fix])


@pytest.mark.parametrize(("versions", "driver", "level"), [
    (CUDA12, "525.60.13", "ok"), (CUDA12, "524.99", "wrong"), (CUDA13, "580.65.06", "ok"), (CUDA13, "579.1", "wrong"),
    (CUDA12, None, "ok"), (CUDA13, "unknown", "ok"),
])  # fmt: skip
def test_a_plugin_needs_a_driver_of_its_branch(
    machines: dict[str, Surroundings], versions: dict[str, str], driver: str | None, level: str
) -> None:
    here = replace(with_facts(machines["gpu"], driver=DriverFacts(driver, None)), versions=versions)
    if level == "ok":
        finding = find(here, "CUDA plugin")
        assert (finding and finding.level) == "ok"
    else:
        plugin = next(name for name in versions if name.endswith("-plugin"))
        expect(here, "wrong", "CUDA plugin", seen=[plugin, str(driver)], fix=["upgrade the driver"])


# ---- environment and surroundings -----------------------------------------------------------------------------------


def test_variables_that_hide_nothing_are_not_mentioned(machines: dict[str, Surroundings]) -> None:
    harmless = {"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "0,1"}
    here = replace(machines["gpu"], environ=harmless, settings=Settings(expect="h100:8"))
    assert {f.level for f in evaluate(here)} == {"ok"}
    hiding = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    assert {f.level for f in evaluate(replace(machines["cpu"], environ=hiding))} == {"ok"}


@pytest.mark.parametrize("holders", [None, (), (DeviceProcess(pid=1, own=True),)])
def test_nobody_or_only_ourselves_on_the_devices_is_not_mentioned(
    machines: dict[str, Surroundings], holders: tuple[DeviceProcess, ...] | None
) -> None:
    assert find(with_facts(machines["gpu"], holders=holders), "devices") is None


@pytest.mark.parametrize("value", ["rocm", "tpu", "nonsense", "cuda"])
def test_jax_that_was_not_started_is_a_note_with_the_reason_and_no_fault(
    machines: dict[str, Surroundings], value: str
) -> None:
    here = replace(machines["gpu"], jax=None, not_started="process 7 (train.py) holds device 0")
    expect(here, "note", "device worker", seen=["not started: process 7 (train.py) holds device 0"], fix=["as root"])
    assert find(replace(here, environ={"JAX_PLATFORMS": value}), "JAX_PLATFORMS") is None


@pytest.mark.parametrize(("threads", "mentioned"), [(0, True), (1, False), (64, False), (None, False)])
def test_less_than_one_cpu(machines: dict[str, Surroundings], threads: int | None, mentioned: bool) -> None:
    here = with_facts(machines["cpu"], cpu=CpuFacts(usable_threads=threads, threads=64))
    assert (find(here, "CPU") is not None) == mentioned
    if mentioned:
        expect(here, "note", "CPU", seen=["less than one CPU"], fix=["CPU limit"])


# ---- looked at for real ----------------------------------------------------------------------------------------------


def test_a_state_directory_that_is_a_file_and_a_probe_without_a_host_are_found_by_looking(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    settings = Settings(state_dir=taken, cpu_devices=1, probe_timeout_s=0.001, start_timeout_s=0.001)
    findings = {finding.subject: finding for finding in examine(settings)}
    assert findings["state directory"].level == "wrong"
    assert (findings["probe"].level, findings["device worker"].level) == ("wrong", "wrong")


# ---- devices that somebody has --------------------------------------------------------------------------------------


@pytest.fixture
def tpu_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A host with TPUs that nobody holds; JAX, were it started there, would leave a file."""
    plant((RECORDED / "tpu-v5e-8" / "tree.txt").read_text(), tmp_path)
    shutil.rmtree(tmp_path / "proc/3110")
    touches = f"open({str(tmp_path / 'touched')!r}, 'w')\nraise ImportError('touched')\n"
    monkeypatch.setenv("PYTHONPATH", plant_jax(tmp_path / "broken", touches))
    return Settings(state_dir=tmp_path / "state", host_root=tmp_path)


def look_at_worker(settings: Settings, **options: Any) -> tuple[CheckResult, bool]:
    """Returns what the doctor says of the worker, and whether it started JAX."""
    (worker,) = (each for each in examine(settings, **options) if each.subject == "device worker")
    return worker, (settings.host_root / "touched").exists()


def test_the_doctor_starts_jax_on_devices_that_nobody_has(tpu_host: Settings) -> None:
    worker, touched = look_at_worker(tpu_host)
    assert (worker.level, touched) == ("wrong", True)
    assert "touched" in worker.seen


def test_the_doctor_starts_no_jax_on_devices_that_a_process_holds(tpu_host: Settings) -> None:
    (file,) = {read_chips(tpu_host.host_root / "sys")[0].file}
    plant(f"== proc/4242/cmdline\n/opt/train\n=> proc/4242/fd/3 -> {file}", tpu_host.host_root)
    worker, touched = look_at_worker(tpu_host)
    assert (worker.level, touched) == ("note", False)
    assert worker.seen == "JAX was not started: process 4242 (/opt/train) holds /dev/vfio/0"


def test_the_doctor_starts_no_jax_where_nobody_can_look(tpu_host: Settings) -> None:
    shutil.rmtree(tpu_host.host_root / "proc")
    worker, touched = look_at_worker(tpu_host)
    assert (worker.level, touched) == ("note", False)
    assert "not known who holds" in worker.seen


def test_the_doctor_starts_no_jax_beside_the_agent_of_the_host(tpu_host: Settings) -> None:
    owner = "they belong to the agent of this host (process 7)"
    worker, touched = look_at_worker(tpu_host, owner=owner)
    assert (worker.level, touched) == ("note", False)
    assert owner in worker.seen


@pytest.mark.parametrize("is_over", [False, True])
def test_the_doctor_starts_no_jax_on_devices_that_are_leased(tpu_host: Settings, is_over: bool) -> None:
    boot = read_boot_clock(tpu_host.host_root)
    registry = LeaseRegistry(boot)
    lease = build_lease(devices=tuple(DeviceRef(host="a", local_index=index, position=index) for index in (2, 3)))

    async def write() -> None:
        async with Store.open(tpu_host.database_path, clock=SystemClock()) as store:
            await store.write(_build_document(registry.date(lease, -1 if is_over else 600)))

    asyncio.run(write())
    worker, touched = look_at_worker(tpu_host)
    assert touched is is_over
    if not is_over:
        assert worker.seen == f"JAX was not started: device 2, 3 is leased by {lease.id} ({lease.purpose})"


def test_the_doctor_starts_no_jax_where_it_cannot_read_the_leases(tpu_host: Settings) -> None:
    tpu_host.database_path.parent.mkdir(parents=True, exist_ok=True)
    tpu_host.database_path.write_text("not a database" * 1000)
    worker, touched = look_at_worker(tpu_host)
    assert not touched
    assert worker.seen == f"JAX was not started: the leases in {tpu_host.database_path} cannot be read"


# ---- simulated hosts ------------------------------------------------------------------------------------------------


def test_a_simulation_that_cannot_write_is_as_wrong_as_any_agent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = examine(Settings(simulate="h100:8", state_dir=tmp_path / "file" / "state"), {})
    told = [(finding.level, finding.subject) for finding in findings]
    assert told == [("note", "simulated"), ("wrong", "state directory"), ("ok", "access")]
