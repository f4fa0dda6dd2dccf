"""The installer, run for real as root in a chroot of this machine's files, of which nothing stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.charts import DEPLOY
from tests.deploy.overlay import overlaid
from tests.documents import ROOT, Document

pytestmark = pytest.mark.exhaustive

SCRIPT = DEPLOY / "systemd" / "install.sh"
HERE = SCRIPT.relative_to(ROOT)
BASE = Path(sys.base_prefix) / "bin" / "python3"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount an overlay and change its root")


def install(*arguments: str, root: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Returns how the installer ended; `root` is the one that it sees."""
    command = ["bash", str(SCRIPT if root is None else "/opt/source" / HERE), *arguments]
    before = [] if root is None else ["chroot", str(root)]
    environment = {**os.environ, "MESHWRIGHT_PYTHON": str(BASE), **variables}
    strict = 0o077  # as hardened hosts have it for root
    return subprocess.run(
        [*before, *command], capture_output=True, text=True, env=environment, timeout=500, umask=strict
    )


@pytest.mark.parametrize(("arguments", "said"), [
    (("agent,cpu", "agent"), "one argument at most"),
    (("agent; reboot",), "is no list of extras"),
    (("cuda13",), "has no agent in it; such as agent,cuda13"),
])  # fmt: skip
def test_what_it_is_not_told_rightly_it_refuses_with_what_would_be(arguments: tuple[str, ...], said: str) -> None:
    done = install(*arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@as_root
def test_a_python_that_will_not_do_is_refused_before_anything_is_written() -> None:
    done = install("agent", MESHWRIGHT_PYTHON="/bin/false")
    assert done.returncode == 2
    assert "/bin/false is no Python from 3.11 on" in done.stderr


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with overlaid() as root:
        source = root / "opt/source"
        source.mkdir(parents=True)
        for name in ("client", "service", "deploy", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
            subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
        if not (root / "dev/null").exists():
            subprocess.run(["mknod", "-m", "666", str(root / "dev/null"), "c", "1", "3"], check=True)
        yield root


@as_root
@pytest.mark.timeout(600)
def test_one_command_installs_the_agent_and_again_brings_it_up_to_date(root: Path) -> None:
    for arguments in (("agent",), ()):
        done = install(*arguments, root=root)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "installing meshwright[agent] into" in done.stdout, "the extras of the last time"
        assert "no systemd runs here: the agent starts when this system boots" in done.stdout
    wanted = root / "etc/systemd/system/multi-user.target.wants/meshwright-agent.service"
    assert str(wanted.readlink()) == "/etc/systemd/system/meshwright-agent.service"
    unit = (root / "etc/systemd/system/meshwright-agent.service").read_text()
    assert unit == (DEPLOY / "systemd/meshwright-agent.service").read_text()
    assert re.search(r"^meshwright:", (root / "etc/passwd").read_text(), re.MULTILINE)
    (started,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    said = subprocess.run(["chroot", str(root), started, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("meshwright-agent ")
    home = root / "opt/meshwright"
    closed = [each for each in (home, *home.rglob("*")) if not each.is_symlink() and not each.stat().st_mode & 0o004]
    assert not closed, "the agent is not root"


def test_the_runbook_installs_with_it() -> None:
    assert f"sudo {HERE.relative_to('deploy')}" in Document.read("deploy/RUNBOOK.md").text
