"""A real browser, headless and alone: Chromium of the distribution, told to dump a page when it is at rest.

It resolves no name but loopback addresses: what a page fetches from elsewhere fails here as in a closed network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
INSTALL: Final = "Chromium is not here; to add it: sudo apt-get install --no-install-recommends chromium"
REST_S: Final = 5
"""Virtual time that the page has to come to rest; timers run ahead, the clock does not."""
_QUIET: Final = (
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--no-first-run",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)

if not any(map(shutil.which, NAMES)):
    pytest.skip(INSTALL, allow_module_level=True)


@dataclass(frozen=True)
class Visit:
    """What became of a page."""

    html: str
    console: tuple[str, ...]
    requested: tuple[str, ...]


def find_chromium() -> str:
    """Returns the browser's path."""
    return next(path for name in NAMES if (path := shutil.which(name)))


def visit(url: str, folder: Path) -> Visit:
    """Returns the page's DOM after its scripts, what they said, and every address that the page asked for."""
    net_log = folder / "net.json"
    command = [find_chromium(), *_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    command += [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net_log}"]
    command += [f"--virtual-time-budget={REST_S * 1000}", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return Visit(done.stdout, console, _read_requested(net_log))


def _read_requested(net_log: Path) -> tuple[str, ...]:
    log = json.loads(re.sub(r",?\s*$", "", net_log.read_text()))
    kinds = log["constants"]["logEventTypes"]
    starts = (event for event in log["events"] if event["type"] == kinds["URL_REQUEST_START_JOB"])
    return tuple(event["params"]["url"] for event in starts if _is_the_pages(event.get("params", {})))


def _is_the_pages(request: dict[str, Any]) -> bool:
    """The browser asks its maker for updates and the time; such requests have no frame and no page behind them."""
    return "url" in request and (request["initiator"] != "not an origin" or request["request_type"] != "other")
