"""read_scores(): libtpu's SDK as it is installed here, and fakes of it that answer, refuse or are missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright_agent.facts.tpu_scores import parse_scores
from meshwright_agent.worker.libtpu import LINKS, PATH_VARIABLE, THROTTLES, read_scores

OFFLINE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
"""Else libtpu asks Google's metadata server for minutes."""
ASK_THE_REAL_ONE = """
import json
from libtpu.sdk import tpumonitoring
from meshwright_agent.worker.libtpu import read_scores
names = tpumonitoring.list_supported_metrics()
words = {name: tpumonitoring.get_metric(name).description() for name in ("ici_link_health", "tpu_throttle_score")}
print(json.dumps({"names": names, "words": words, "told": read_scores()}))
"""


@pytest.fixture(scope="module")
def real() -> Any:
    """What the installed libtpu says, asked in a process without TPUs."""
    pytest.importorskip("libtpu", reason="needs the extra compile-tpu")
    asked = subprocess.run(
        [sys.executable, "-c", ASK_THE_REAL_ONE],
        env={**os.environ, **OFFLINE},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)


def test_the_real_libtpu_has_the_metrics_and_without_tpus_it_tells_of_none(real: Any) -> None:
    assert {LINKS, THROTTLES} <= set(real["names"])
    assert real["told"] == {"links": {"lines": []}, "throttles": {"lines": []}}


def test_the_examples_of_the_real_libtpus_own_words_are_read(real: Any) -> None:
    """The validator of every line that the fakes tell."""
    links, throttles = (re.findall(r"'([^']+)'", real["words"][name]) for name in (LINKS, THROTTLES))
    found = parse_scores({"links": {"lines": links}, "throttles": {"lines": throttles}})
    assert found.links.unread == found.throttles.unread == ()
    assert [(one.name, one.value) for one in found.links.known] == [
        ("tray1.chip3.ici0.int", 0),
        ("tray1.chip3.ici1.int", 10),
    ]
    assert [(one.name, one.value) for one in found.throttles.known] == [("0", 0), ("1", 1), ("2", 0), ("3", 0)]


def build_loader(**lines: Any) -> Callable[[str], Any]:
    """Returns an import of a libtpu that tells these lines; an exception is raised in their place."""

    def get_metric(name: str) -> Any:
        told = lines[name]
        if isinstance(told, Exception):
            raise told
        return SimpleNamespace(data=lambda: told)

    modules = {
        "libtpu": SimpleNamespace(get_library_path=lambda: "/site/libtpu/libtpu.so"),
        "libtpu.sdk": SimpleNamespace(tpumonitoring=SimpleNamespace(get_metric=get_metric)),
    }
    return modules.__getitem__


@pytest.fixture(autouse=True)
def no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)


def test_both_metrics_are_told_line_by_line() -> None:
    load = build_loader(ici_link_health=["a: 0"], tpu_throttle_score=["0-0"])
    assert read_scores(load) == {"links": {"lines": ["a: 0"]}, "throttles": {"lines": ["0-0"]}}


def test_a_chip_that_has_one_of_the_metrics_tells_it_and_says_why_not_the_other() -> None:
    load = build_loader(ici_link_health=["a: 0"], tpu_throttle_score=RuntimeError("not supported"))
    assert read_scores(load) == {
        "links": {"lines": ["a: 0"]},
        "throttles": {"unavailable": "libtpu does not tell tpu_throttle_score: not supported"},
    }
    load = build_loader(ici_link_health=RuntimeError(""), tpu_throttle_score=[])
    assert read_scores(load)["links"] == {"unavailable": "libtpu does not tell ici_link_health: RuntimeError"}


def test_a_libtpu_without_an_sdk_is_said_with_the_line_that_helps() -> None:
    def load(name: str) -> Any:
        if name == "libtpu":
            return SimpleNamespace(get_library_path=lambda: "/site/libtpu/libtpu.so")
        raise ModuleNotFoundError(name)

    told = read_scores(load)
    assert ["pip install -U 'jax[tpu]'" in told[metric]["unavailable"] for metric in ("links", "throttles")] == [
        True
    ] * 2


def test_another_library_than_the_packages_is_not_joined_by_a_second_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load = build_loader(ici_link_health=["a: 0"], tpu_throttle_score=[])
    monkeypatch.setenv(PATH_VARIABLE, "/opt/libtpu.so")
    assert PATH_VARIABLE in read_scores(load)["links"]["unavailable"]
    (tmp_path / "same.so").symlink_to("/site/libtpu/libtpu.so")
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "same.so"))
    assert read_scores(load)["links"] == {"lines": ["a: 0"]}
