"""Pods that are shipped, against the Pod Security profile of the namespace that they stand in."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from tests.deploy.charts import DEPLOY, read_values, render
from tests.deploy.pod_security import Profile, list_refused

ENFORCE = "pod-security.kubernetes.io/enforce"


def read_documents(*names: str) -> list[dict[str, Any]]:
    texts = ((DEPLOY / "kubernetes" / name).read_text() for name in names)
    return [document for text in texts for document in yaml.safe_load_all(text)]


DOCUMENTS = [*read_documents("namespace.yaml", "job-example.yaml"), render()["DaemonSet"]]
PROFILES: dict[str, Profile] = {
    each["metadata"]["name"]: each["metadata"]["labels"][ENFORCE] for each in DOCUMENTS if each["kind"] == "Namespace"
}
PODS: dict[str, tuple[str, dict[str, Any]]] = {
    each["metadata"]["name"]: (
        each["metadata"]["namespace"],
        each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"],
    )
    for each in DOCUMENTS
    if each["kind"] in {"Pod", "DaemonSet"}
}


@pytest.mark.parametrize("name", PODS)
def test_every_pod_is_let_into_the_namespace_that_it_is_shipped_for(name: str) -> None:
    namespace, spec = PODS[name]
    assert list_refused(spec, PROFILES[namespace]) == []


def test_both_ways_to_the_agent_are_shown_and_one_needs_no_more_than_restricted() -> None:
    _, by_port = PODS["train-by-port"]
    _, by_socket = PODS["train-by-socket"]
    assert list_refused(by_port, "restricted") == []
    assert list_refused(by_socket, "baseline") == ["volumes[agent].hostPath"]


BREAKS: dict[str, tuple[dict[str, Any], Profile]] = {
    "hostPID": ({"hostPID": True}, "baseline"),
    "volumes[x].hostPath": ({"volumes": [{"name": "x", "hostPath": {"path": "/x"}}]}, "baseline"),
    "containers[c].hostPort": ({"container": {"ports": [{"containerPort": 1, "hostPort": 1}]}}, "baseline"),
    "containers[c].privileged": ({"context": {"privileged": True}}, "baseline"),
    "containers[c].capabilities.add": ({"context": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "baseline"),
    "containers[c].seccompProfile": ({"context": {"seccompProfile": {"type": "Unconfined"}}}, "baseline"),
    "volumes[x]: nfs": ({"volumes": [{"name": "x", "nfs": {}}]}, "restricted"),
    "containers[c].allowPrivilegeEscalation": ({"context": {"allowPrivilegeEscalation": None}}, "restricted"),
    "containers[c].runAsNonRoot": ({"securityContext": {}}, "restricted"),
    "containers[c].runAsUser": ({"context": {"runAsUser": 0}}, "restricted"),
    "containers[c].capabilities.drop": ({"context": {"capabilities": {}}}, "restricted"),
}


@pytest.mark.parametrize("field", BREAKS)
def test_a_pod_that_breaks_a_line_of_a_profile_is_refused_for_that(field: str) -> None:
    change, profile = copy.deepcopy(BREAKS[field])
    spec = copy.deepcopy(PODS["train-by-port"][1])
    (container,) = spec["containers"]
    container["name"] = "c"
    own = {**container["securityContext"], **change.pop("context", {})}
    container["securityContext"] = {name: value for name, value in own.items() if value is not None}
    container |= change.pop("container", {})
    spec |= change
    assert field in list_refused(spec, profile)
    assert list_refused(spec, "privileged") == []


def test_what_the_runbook_says_of_the_profiles_is_true() -> None:
    """Host paths, host ports and host process ids are what `baseline` refuses."""
    for feature in ("hostPID", "hostPort", "hostSocket"):
        values = read_values()
        values["features"][feature]["enabled"] = True
        spec = render(values)["DaemonSet"]["spec"]["template"]["spec"]
        assert list_refused(spec, "baseline"), feature
