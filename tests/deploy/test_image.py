"""The image that the Dockerfile makes, built and run as the chart restricts it; skipped, with a reason, where not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.deploy.images import Container, Image, build_image, find_obstacle, run_image
from tests.documents import ROOT

OBSTACLE = find_obstacle()
SLIM_MOST_BYTES = 1.0e9
USER = 10001
STOP_LIMIT_S = 10.0
DEVICES = 2

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with build_image(VERSION="1.2.3", REVISION="abc", SOURCE="https://git.example.org/meshwright") as built:
        yield built


@pytest.fixture(scope="module")
def container(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with run_image(image, tmp_path_factory.mktemp("run"), MESHWRIGHT_CPU_DEVICES=str(DEVICES)) as running:
        running.await_ready()
        yield running


def ask(container: Container, path: str) -> str:
    program = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8790{path}', timeout=30).read().decode())"
    done = container.execute("python3", "-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- what is in it ----------------------------------------------------------------------------------------------


def test_the_image_says_what_it_is(image: Image) -> None:
    labels = {name.rpartition(".")[2]: value for name, value in image.config["Labels"].items()}
    assert labels["title"] == "meshwright"
    assert (labels["version"], labels["revision"]) == ("1.2.3", "abc")
    assert "ARG VERSION=" + version("meshwright") + "\n" in (ROOT / "Dockerfile").read_text()
    assert labels["source"] == "https://git.example.org/meshwright"
    assert labels["licenses"] == "Apache-2.0"


def test_the_image_starts_the_agent_under_an_init_as_nobody_special(image: Image) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["tini", "-s", "--", "meshwright-agent"]
    assert image.config["Cmd"] == ["serve"]
    assert set(image.config["ExposedPorts"]) == {"8790/tcp"}


def test_nothing_that_only_the_build_needs_is_left_and_modules_are_compiled(image: Image) -> None:
    root = image.root
    assert image.sum_bytes() < SLIM_MOST_BYTES, f"{image.sum_bytes() / 1e6:.0f} MB"
    assert list(root.glob("opt/meshwright/lib/*/site-packages/meshwright_agent/__pycache__/agent.*.pyc"))
    assert not (root / "src").exists()
    assert not [*root.glob("opt/meshwright/bin/pip*"), *root.glob("opt/meshwright/lib/*/site-packages/pip")]
    assert not [*root.glob("usr/bin/*gcc*"), *root.glob("usr/bin/cc"), *root.glob("usr/bin/make")]
    assert not list((root / "root").glob(".cache/*"))
    for folder in ("tmp", "var/tmp", "wheels", "var/lib/apt/lists", "var/lib/meshwright"):
        assert not [path for path in (root / folder).rglob("*") if path.is_file()], folder
    assert not list(root.glob("var/cache/apt/archives/*.deb"))
    assert not list(root.glob("opt/meshwright/lib/*/site-packages/tests"))


def test_only_root_can_change_the_program(image: Image) -> None:
    others = [
        path
        for path in (image.root / "opt/meshwright").rglob("*")
        if not path.is_symlink() and (path.stat().st_uid != 0 or path.stat().st_mode & 0o022)
    ]
    assert not others


# ---- running ----------------------------------------------------------------------------------------------------


def test_the_agent_answers_for_its_devices(container: Container) -> None:
    assert ask(container, "/healthz") == "ok"
    devices = json.loads(ask(container, "/devices"))
    assert len(devices["devices"]) == DEVICES
    assert devices["software"]["agent"] == version("meshwright")


def test_the_command_line_asks_the_agent_beside_it(container: Container) -> None:
    done = container.execute("meshwright", "devices")
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
    assert container.execute("meshwright", "health", "--expect", f"cpu:{DEVICES}").returncode in (0, 1)


def test_the_health_check_passes_while_the_agent_answers_and_goes_by_no_proxy(container: Container) -> None:
    kind, *command = container.image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    done = container.execute(*command, http_proxy="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert container.execute(*command, MESHWRIGHT_PORT="8791").returncode != 0


def test_the_agent_is_a_child_of_the_init_and_has_no_rights(container: Container) -> None:
    seen = container.execute("cat", "/proc/1/comm", "/proc/1/status").stdout
    assert seen.startswith("tini\n")
    (agent,) = Path(f"/proc/{container.init}/task/{container.init}/children").read_text().split()
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{agent}/status").read_text().splitlines())
    assert status["Uid"].split() == [str(USER)] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"


def test_an_orphan_inside_is_reaped(container: Container) -> None:
    left = container.execute("sh", "-c", "(sleep 0.2; exit 3) & echo $!")
    orphan = left.stdout.strip()
    deadline = time.monotonic() + 20
    while container.execute("test", "-e", f"/proc/{orphan}").returncode == 0:
        assert time.monotonic() < deadline, container.execute("cat", f"/proc/{orphan}/status").stdout
        time.sleep(0.1)


def test_the_agent_writes_its_state_and_nothing_else(container: Container) -> None:
    state = container.log.parent / "state"
    assert (state / "meshwright.sqlite3").exists()
    assert (state / "meshwright.sqlite3").stat().st_uid == USER
    for path in ("/opt/meshwright/x", "/etc/x", "/x"):
        refused = container.execute("touch", path)
        assert "Read-only file system" in refused.stderr


def test_sigterm_ends_the_container_cleanly_and_in_time(image: Image, tmp_path: Path) -> None:
    with run_image(image, tmp_path, MESHWRIGHT_CPU_DEVICES=str(DEVICES)) as running:
        running.await_ready()
        began = time.monotonic()
        os.kill(running.init, signal.SIGTERM)
        status = running.process.wait(60)
        duration_s = time.monotonic() - began
    assert status == 0, running.log.read_text()[-2000:]
    assert duration_s < STOP_LIMIT_S


def test_an_address_of_others_without_tokens_is_refused_with_the_reason(image: Image, tmp_path: Path) -> None:
    with run_image(image, tmp_path, MESHWRIGHT_HOST="0.0.0.0") as running:
        assert running.process.wait(60) == 2
    assert "token" in running.log.read_text()
