"""The image of the Dockerfile, built and run without a registry of images: buildah on a base that debootstrap makes.

Rule: what is built and run is the Dockerfile's and the image's own word (entrypoint, user, environment); the base, the
wheels and the restrictions around it come from here. The base has no Python, as nvidia/cuda has none, so that every
line of the Dockerfile works for its living. Base and wheels are kept in the user's cache; the rest goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.documents import ROOT

TOOLS: Final = ("buildah", "debootstrap", "systemd-nspawn", "nsenter")
SUITES: Final = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian's releases by their Python, which must be this one: its pip chooses the wheels."""
MIRROR: Final = "http://deb.debian.org/debian"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright" / "images"
PIP_CONF: Final = "[global]\nno-index = true\nfind-links = /wheels\n"
BUILD_LIMIT_S: Final = 600.0
START_LIMIT_S: Final = 120.0


def find_obstacle() -> str:
    """Returns why no image can be built and run here; "" where it can."""
    if os.geteuid() != 0:
        return "only root can build and run an image here"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"{', '.join(missing)} not here: make test-image"
    if sys.version_info[:2] not in SUITES:
        return f"no Debian has Python {sys.version_info[0]}.{sys.version_info[1]}; 3.11 and 3.13 have one"
    return ""


def call(*command: str, limit_s: float = BUILD_LIMIT_S, **options: Any) -> str:
    """Returns what a command printed.

    Raises:
        RuntimeError: it failed; with its last lines.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise RuntimeError(f"{' '.join(command[:8])} … ended with {done.returncode}:\n{said}")
    return done.stdout


def buildah(*arguments: str) -> str:
    """Returns what buildah printed; its store is the cache's own, as fast as the disk's file system allows."""
    store = ["--root", str(CACHE / "store"), "--runroot", str(CACHE / "run"), "--storage-driver", choose_driver()]
    return call("buildah", *store, *arguments)


def choose_driver() -> str:
    """Returns overlay where this disk can be the upper one of an overlay, else vfs, which copies."""
    kept = CACHE / "driver"
    if not kept.exists():
        trial = ["--root", str(CACHE / "store"), "--runroot", str(CACHE / "run"), "--storage-driver", "overlay"]
        done = subprocess.run(["buildah", *trial, "images"], capture_output=True, text=True)
        kept.write_text("overlay" if done.returncode == 0 else "vfs")
    return kept.read_text()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Holds the cache: another run of the tests may want to fill it too."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_base() -> str:
    """Returns the name of the base image, which is made where it is not kept: Debian at its smallest."""
    suite = SUITES[sys.version_info[:2]]
    name = f"localhost/meshwright-base:{suite}"
    with alone():
        if name in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return name
        root = CACHE / f"base-{suite}"
        shutil.rmtree(root, ignore_errors=True)
        call("debootstrap", "--variant=minbase", suite, str(root), MIRROR)
        shutil.rmtree(root / "var/cache/apt/archives")
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, f"{root}/", "/")
        buildah("commit", "--quiet", container, name)
        buildah("rm", container)
        shutil.rmtree(root)
        return name


def find_wheels(extras: str) -> Path:
    """Returns a folder of all that pip will ask for, fetched by this machine's pip, which knows its registry."""
    asked = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    key = hashlib.sha256(b"\0".join([*asked, extras.encode(), sys.version.encode()])).hexdigest()[:16]
    folder = CACHE / "wheels" / key
    with alone():
        if not folder.exists():
            fresh = folder.with_name(f".{key}")
            shutil.rmtree(fresh, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(fresh)]
            call(*pip, "--constraint", str(ROOT / "constraints.txt"), "hatchling", f"{ROOT}[{extras}]")
            shutil.rmtree(folder.parent / ".old", ignore_errors=True)
            fresh.rename(folder)
    return folder


@dataclass(frozen=True)
class Image:
    """A built image, mounted: `config` is what it says of itself, `root` its files."""

    name: str
    config: dict[str, Any]
    root: Path
    seconds: float

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    def sum_bytes(self) -> int:
        """Returns the size of all its files, as they lie on a disk without compression."""
        return int(call("du", "--summarize", "--bytes", "--one-file-system", str(self.root)).split()[0])


@contextlib.contextmanager
def build_image(extras: str = "agent,cpu", **arguments: str) -> Iterator[Image]:
    """Yields the image that the Dockerfile makes with these build arguments; it goes in the end."""
    base, wheels, name = find_base(), find_wheels(extras), f"localhost/meshwright:{uuid.uuid4().hex[:12]}"
    conf = CACHE / "pip.conf"
    conf.write_text(PIP_CONF)
    given = {"BASE_IMAGE": base, "EXTRAS": extras, **arguments}
    options = [part for key, value in given.items() for part in ("--build-arg", f"{key}={value}")]
    options += ["--volume", f"{wheels}:/wheels:ro", "--volume", f"{conf}:/etc/pip.conf:ro"]
    began = time.monotonic()
    buildah("build", "--format", "docker", "--isolation", "chroot", "--tag", name, *options, str(ROOT))
    duration_s = time.monotonic() - began
    try:
        container = buildah("from", name).strip()
        try:
            config = json.loads(buildah("inspect", "--type", "image", name))["Docker"]["config"]
            yield Image(name, config, Path(buildah("mount", container).strip()), duration_s)
        finally:
            buildah("rm", container)
    finally:
        buildah("rmi", "--force", name)


@dataclass
class Container:
    """A running container of an image; `init` is the host's id of its process 1."""

    image: Image
    process: subprocess.Popen[str]
    init: int
    log: Path

    def execute(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, as the image's user, and returns what became of it."""
        user, _, group = self.image.config["User"].partition(":")
        variables = {**self.image.environment, **environment}
        enter = ["nsenter", "--target", str(self.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"]
        enter += ["--setuid", user, "--setgid", group, "--", "env", "--ignore-environment"]
        enter += [f"{name}={value}" for name, value in variables.items()]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def await_ready(self) -> None:
        """Returns once the agent is ready.

        Raises:
            RuntimeError: the container ended, or it took too long; with its log.
        """
        deadline = time.monotonic() + START_LIMIT_S
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8790/readyz', timeout=5).read().decode())"
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.execute("python3", "-c", ask).stdout.strip() == "ready":
                return
            time.sleep(0.2)
        raise RuntimeError(f"the agent was not ready:\n{self.log.read_text(errors='replace')[-3000:]}")


@contextlib.contextmanager
def run_image(image: Image, folder: Path, arguments: Sequence[str] = (), **environment: str) -> Iterator[Container]:
    """Yields a container as the chart restricts its pod: the image's user, no capabilities, no new privileges, a root
    file system that nobody can write, /tmp in memory, a state directory of its own, and a network of its own.
    """
    state, log = folder / "state", folder / "log"
    state.mkdir()
    os.chown(state, *map(int, image.config["User"].split(":")))
    variables = {**image.environment, **environment}
    command = ["systemd-nspawn", "--quiet", f"--directory={image.root}", "--read-only", "--register=no", "--keep-unit"]
    command += [f"--machine=meshwright-{uuid.uuid4().hex[:8]}", "--console=pipe", "--private-network"]
    command += ["--resolv-conf=off", "--timezone=off", "--link-journal=no", "--no-new-privileges=yes"]
    command += ["--drop-capability=all", f"--user={image.config['User'].split(':')[0]}"]
    command += [f"--bind={state}:{next(iter(image.config['Volumes']))}", "--tmpfs=/tmp:mode=1777"]
    command += [f"--chdir={image.config['WorkingDir']}"]
    command += [f"--setenv={name}={value}" for name, value in variables.items()]
    command += [*image.config["Entrypoint"], *(arguments or image.config["Cmd"])]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True)
    try:
        yield Container(image, process, find_init(process, log), log)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        process.kill()
        process.wait()


def find_init(process: subprocess.Popen[str], log: Path) -> int:
    """Returns the id of the first process that runs the image's own program.

    Raises:
        RuntimeError: the container ended before; with its log.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        for child in list_descendants(process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "tini":
                    return child
        time.sleep(0.05)
    raise RuntimeError(f"the container did not start:\n{log.read_text(errors='replace')[-3000:]}")


def list_descendants(pid: int) -> list[int]:
    """Returns the children of a process, theirs, and so on."""
    with contextlib.suppress(OSError):
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [*children, *(each for child in children for each in list_descendants(child))]
    return []
