"""The systemd unit and its drop-ins, by systemd's own verifier and security review; booted in test_boot.py."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.charts import DEPLOY, DRAIN_TIMEOUT_S

SYSTEMD = DEPLOY / "systemd"
UNIT = SYSTEMD / "meshwright-agent.service"
DROP_INS = sorted((SYSTEMD / "drop-ins").glob("*.conf"))
EXPOSURE_MOST = 2.1
"""Of 10, as systemd-analyze security of systemd 252 measures it; below, what each drop-in makes of it."""
EXPOSURES = {"device-groups": 2.1, "labels": 2.1, "network": 2.2, "owners": 2.5, "tpu": 2.3}

if not shutil.which("systemd-analyze"):
    pytest.skip(
        "systemd-analyze is not here; to add it: sudo apt-get install --no-install-recommends systemd",
        allow_module_level=True,
    )


def install(folder: Path, *drop_ins: Path) -> Path:
    """Returns the unit as it would stand on a host where this interpreter is the agent's."""
    unit = folder / UNIT.name
    here = f"{sys.executable} -m meshwright_agent"
    unit.write_text(UNIT.read_text().replace("/opt/meshwright/bin/meshwright-agent", here))
    more = folder / f"{UNIT.name}.d"
    more.mkdir()
    for drop_in in drop_ins:
        shutil.copy(drop_in, more)
    return unit


def read_unit(path: Path = UNIT) -> dict[str, list[str]]:
    """Returns each directive with its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def read_exposure(unit: Path) -> float:
    said = subprocess.check_output(["systemd-analyze", "security", "--offline=true", str(unit)], text=True)
    return float(re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)[0])


@pytest.mark.parametrize("drop_ins", [[], DROP_INS], ids=["none", "all"])
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path: Path, drop_ins: list[Path]) -> None:
    unit = install(tmp_path, *drop_ins)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda path: path.stem if path else "none")
def test_the_sandbox_is_as_narrow_as_it_was_and_each_drop_in_opens_what_is_known_of_it(
    tmp_path: Path, drop_in: Path | None
) -> None:
    unit = install(tmp_path, *([drop_in] if drop_in else []))
    assert read_exposure(unit) <= (EXPOSURES[drop_in.stem] if drop_in else EXPOSURE_MOST)


def test_the_manager_hears_from_the_agent_and_stops_it_gently() -> None:
    unit = {name: values[-1] for name, values in read_unit().items()}
    assert unit["Type"] == "notify"
    assert unit["Restart"] == "always"
    assert unit["KillMode"] == "mixed"
    assert unit["OOMPolicy"] == "continue"
    assert float(unit["WatchdogSec"]) > 0
    assert float(unit["TimeoutStopSec"]) > 2 * DRAIN_TIMEOUT_S
    assert unit["StateDirectory"] == unit["RuntimeDirectory"] == "meshwright"
    assert unit["RuntimeDirectoryPreserve"] == "yes", "a container keeps the folder that it has mounted"


@pytest.mark.parametrize(("file", "driver"), [
    ("/dev/nvidia0", "nvidia"), ("/dev/nvidiactl", "nvidia-frontend"),
    ("/dev/nvidia-caps/nvidia-cap1", "nvidia-caps"), ("/dev/accel/accel0", "accel"), ("/dev/vfio/0", "vfio"),
    ("/dev/vfio/devices/vfio0", "vfio-dev"), ("/dev/vfio/vfio", "misc"), ("/dev/iommu", "misc"),
    ("/dev/infiniband/uverbs0", "infiniband_verbs"),
])  # fmt: skip
def test_the_sandbox_lets_the_agent_open_what_accelerators_are_opened_by(file: str, driver: str) -> None:
    """Drivers as /proc/devices names them; of misc no more than single files. Source: Linux, drivers/vfio."""
    allowed = [value.removesuffix(" rw") for value in read_unit()["DeviceAllow"]]
    drivers = [value.removeprefix("char-") for value in allowed if value.startswith("char-")]
    assert file in allowed or any(fnmatch.fnmatchcase(driver, pattern) for pattern in drivers)
    assert not any(fnmatch.fnmatchcase("misc", pattern) for pattern in drivers)


def test_the_account_is_one_that_sysusers_makes() -> None:
    (line,) = [line for line in (SYSTEMD / "meshwright.sysusers").read_text().splitlines() if line[:1] == "u"]
    assert line.split()[1] == read_unit()["User"][0] == read_unit()["Group"][0]
    done = subprocess.run(
        ["systemd-sysusers", "--dry-run", str(SYSTEMD / "meshwright.sysusers")], capture_output=True, text=True
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-sysusers has no --dry-run")
    assert done.returncode == 0, done.stderr
