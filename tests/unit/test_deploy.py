"""Files of deploy/ against what the agent keeps and whom it answers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.errors import ForbiddenError
from meshwright_agent.auth import Authenticator
from meshwright_agent.clock import SystemClock
from meshwright_agent.settings import Settings
from meshwright_agent.store import COMPILE, HEALTH, LIMITS, PLAN, RECORD, RUN
from tests.deploy.charts import DEPLOY
from tests.deploy.test_chart import read_environment, read_pod, switch_on
from tests.documents import Document


def test_a_pods_own_state_folder_has_room_for_all_that_the_agent_keeps() -> None:
    (state,) = (volume for volume in read_pod()["volumes"] if volume["name"] == "state")
    most = sum(limit.size_bytes for (table, _), limit in LIMITS.items() if table == "documents")
    assert int(state["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30 >= 2 * most


def test_the_agents_answer_to_the_pods_of_the_job_that_is_shown_with_the_value_that_it_names() -> None:
    text = (DEPLOY / "kubernetes" / "preflight-job.yaml").read_text()
    (value,) = re.findall(r'allowedHosts: (\["[^"]+"\])', text)
    runbook = (DEPLOY / "RUNBOOK.md").read_text()
    assert f"`allowedHosts: {value}`" in runbook
    (pod,) = (each["spec"]["template"]["spec"] for each in yaml.safe_load_all(text) if each["kind"] == "Job")
    (hosts,) = (each["value"] for each in pod["initContainers"][0]["env"] if each["name"] == "HOSTS")

    def check(values: dict[str, Any]) -> None:
        names = read_environment({**switch_on("hostNetwork"), **values})["MESHWRIGHT_ALLOWED_HOSTS"]
        agent = Authenticator(Settings(allowed_hosts=names), SystemClock())
        for host in hosts.split(","):
            agent.check_host(host)

    check({"allowedHosts": yaml.safe_load(value)})
    with pytest.raises(ForbiddenError):
        check({})


@pytest.mark.parametrize(("said", "ended"), [(1, 1), (2, 0)], ids=["another client has a device", "no agent"])
def test_a_jobs_pod_fails_only_where_its_node_cannot_be_had(said: int, ended: int, tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes" / "preflight-job.yaml").read_text()
    (pod,) = (each["spec"]["template"]["spec"] for each in yaml.safe_load_all(text) if each["kind"] == "Job")
    (tmp_path / "meshwright").write_text(f"#!/bin/sh\nexit {said}\n")
    (tmp_path / "meshwright").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LEASE": "x", "JOB_COMPLETION_INDEX": "1"}
    script = [*pod["initContainers"][0]["command"], *pod["initContainers"][0]["args"]]
    assert subprocess.run(script, env=environment, check=False).returncode == ended


def test_what_the_store_keeps_is_in_the_runbook() -> None:
    words = {RUN: "runs", RECORD: "measurements", PLAN: "plans", COMPILE: "compiles"}
    text = " ".join(Document.read("deploy/RUNBOOK.md").section("State and backup").split())
    for kind, word in words.items():
        limit = LIMITS["documents", kind]
        assert f"{limit.most:,} {word} ({limit.size_bytes >> 20} MiB)" in text
    assert LIMITS["events", HEALTH] == LIMITS["events", RUN] == (10_000, 16 << 20)
    assert "10,000 events of health and of each run (16 MiB each)" in text
