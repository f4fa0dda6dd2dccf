"""The chart and the files beside it: valid for Kubernetes, and no right without the value that asks for it."""

from __future__ import annotations

import re
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.deploy.charts import CHART, DEPLOY, DRAIN_TIMEOUT_S, read_values, render
from tests.documents import read_settings

KUBERNETES = ("1.29", "1.37")
EVERYTHING: dict[str, Any] = {
    "features": {
        "hostPID": {"enabled": True, "ofOthers": True},
        **{name: {"enabled": True} for name in ("nodeLabels", "nvidiaRuntime", "hostPort", "hostSocket")},
    },
    "tls": {"secretName": "meshwright-tls", "clientCertificates": True},
    "state": {"hostPath": "/var/lib/meshwright"},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "networkPolicy": {"from": [{"namespaceSelector": {}}], "egress": [{"ports": [{"port": 4318}]}]},
    "nodeSelector": {"pool": "gpu"},
    "podLabels": {"team": "infra"},
    "podAnnotations": {"note": "1"},
    "affinity": {"nodeAffinity": {}},
}
ENFORCE = "pod-security.kubernetes.io/enforce"
FEATURES = tuple(read_values()["features"])


def read_documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def read_pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = render(values)["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def read_container(values: dict[str, Any] | None = None) -> dict[str, Any]:
    (container,) = read_pod(values)["containers"]
    found: dict[str, Any] = container
    return found


def read_environment(values: dict[str, Any] | None = None) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in read_container(values)["env"]}


def switch_on(feature: str, **more: Any) -> dict[str, Any]:
    return {"features": {feature: {"enabled": True, **more}}}


# ---- valid ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, EVERYTHING, *(switch_on(feature) for feature in FEATURES)])
def test_what_the_chart_makes_is_valid_has_a_volume_for_each_mount_and_limits_no_cpu(values: dict[str, Any]) -> None:
    manifests = render(values)
    for manifest in manifests.values():
        for version in KUBERNETES:
            kubernetes_validate.validate(manifest, version, strict=True)
    pod = manifests["DaemonSet"]["spec"]["template"]["spec"]
    parts = (*pod["containers"], *pod.get("initContainers", ()))
    assert {mount["name"] for part in parts for mount in part["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    resources = pod["containers"][0]["resources"]
    assert (set(resources["requests"]), set(resources["limits"])) == ({"cpu", "memory"}, {"memory"})


@pytest.mark.parametrize("name", ["namespace.yaml", "job-example.yaml", "preflight-job.yaml"])
def test_the_static_files_are_valid(name: str) -> None:
    for document in read_documents(name):
        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


def test_helm_has_nothing_to_say_against_the_chart() -> None:
    report = helm_python.lint(str(CHART))
    assert report["total_charts_linted"] == 1
    assert not report["errors"]
    assert not [message for message in report["messages"] or () if "icon is recommended" not in str(message)]


# ---- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "words"), [
    ({"prot": 8790}, "prot"),
    ({"podLabels": {"app.kubernetes.io/name": "x"}}, "kubernetes.io/name"),
    *(({"state": {"hostPath": path}}, "hostPath") for path in ("/", "/var/lib", "/var/lib/", "//var/lib")),
    *(({"features": {"hostSocket": {"enabled": True, "path": path}}}, "path") for path in ("/run", "/var/run")),
    ({"features": {"nodeLabels": {"enabled": True, "path": "/etc/kubernetes"}}}, "path"),
    ({"features": {"kernelog": {"enabled": True}}}, "kernelog"),
    ({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}, "cpu"),
    ({"resources": {"limits": {"memory": None}}}, "memory"),
    ({"runAsUser": 0}, "runAsUser"),
    ({"token": {"secretName": ""}}, "secretName"),
    ({"tls": {"clientCertificates": True}}, "secretName"),
    ({"settings": {"PATH": "/x"}}, "PATH"), ({"settings": {"NVIDIA_VISIBLE_DEVICES": "0"}}, "NVIDIA"),
    ({"image": {"digest": "latest"}}, "digest"),
    ({"settings": {"MESHWRIGHT_INSECURE": "true"}}, "the chart sets it itself"),
    ({"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}, r"needs service\.enabled"),
])  # fmt: skip
def test_a_value_that_is_wrong_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        render(values)


def test_every_value_has_a_place_in_the_schema_and_a_word_of_explanation() -> None:
    with helm_python.Chart.load(str(CHART)) as chart:
        schema = chart.schema
    assert schema is not None
    assert set(read_values()) == set(schema["required"])
    for feature in FEATURES:
        text = (CHART / "values.yaml").read_text()
        assert re.search(rf"  # [^\n]+\n  {feature}:\n", text), f"{feature} does not say why"


def test_what_hints_of_the_agent_say_to_set_can_be_set() -> None:
    settings = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "JAX_PLATFORMS": "cuda,cpu"}
    assert settings.items() <= read_environment({"settings": settings}).items()


def test_the_settings_that_the_chart_gives_are_settings_of_the_agent() -> None:
    known = set(read_settings())
    for values in ({}, EVERYTHING):
        named = {name for name in read_environment(values) if name.startswith("MESHWRIGHT_")}
        assert named <= known
    own = set(re.findall(r'"(MESHWRIGHT_\w+)"', (CHART / "templates" / "daemonset.yaml").read_text()))
    assert set(read_environment(EVERYTHING)) & known - set(read_values()["settings"]) <= own <= known


# ---- rights -----------------------------------------------------------------------------------------------------


def test_the_default_pod_asks_for_nothing() -> None:
    pod, container = read_pod(), read_container()
    assert list_rights(pod) == set()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container["securityContext"]
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("feature", "given"), [
    ("hostPID", {"hostPID"}),
    ("kernelLog", {"privileged", "root", "hostPath"}),
    ("nodeLabels", {"hostPath", "initContainers"}),
    ("nvidiaRuntime", {"runtimeClassName"}),
    ("privileged", {"privileged", "root"}),
    ("hostPort", {"hostPort"}),
    ("hostNetwork", {"hostNetwork"}),
    ("hostSocket", {"hostPath", "initContainers"}),
])  # fmt: skip
def test_each_feature_brings_its_own_rights_and_no_others(feature: str, given: set[str]) -> None:
    assert list_rights(read_pod(switch_on(feature))) == given


def test_the_pods_that_are_shown_ask_for_no_more_than_the_namespace_lets_in() -> None:
    """`restricted` refuses root and kept capabilities; `baseline` refuses host paths, host ports and host processes."""
    (namespace,) = read_documents("namespace.yaml")
    by_port, its_own, by_socket = read_documents("job-example.yaml")
    assert [each["metadata"]["labels"][ENFORCE] for each in (namespace, its_own)] == ["restricted", "privileged"]
    assert "namespace" not in by_port["metadata"]  # RUNBOOK makes its secret in the current one
    for pod, rights in ((by_port["spec"], set()), (by_socket["spec"], {"hostPath"}), (read_pod(), set())):
        (container,) = pod["containers"]
        assert list_rights(pod) == rights
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def list_rights(pod: dict[str, Any]) -> set[str]:
    (container,) = pod["containers"]
    security = container["securityContext"]
    found = {
        "privileged": security.get("privileged"),
        "root": not pod["securityContext"].get("runAsNonRoot"),
        "capabilities": security.get("capabilities", {}).get("add"),
        "hostPath": any("hostPath" in volume for volume in pod["volumes"]),
        "hostPort": any("hostPort" in port for port in container.get("ports", ())),
        **{name: pod.get(name) for name in ("hostPID", "hostNetwork", "hostIPC", "runtimeClassName", "initContainers")},
    }
    return {name for name, has in found.items() if has}


def test_holders_of_other_users_need_root_with_two_capabilities_and_no_more() -> None:
    values = switch_on("hostPID", ofOthers=True)
    assert list_rights(read_pod(values)) == {"hostPID", "root", "capabilities"}
    added = read_container(values)["securityContext"]["capabilities"]
    assert added == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}


def test_folders_of_the_host_are_handed_over_by_a_container_that_ends() -> None:
    (first,) = read_pod(EVERYTHING)["initContainers"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_READ_SEARCH"]}
    (script,) = first["args"]
    assert {mount["mountPath"] for mount in first["volumeMounts"]} == set(re.findall(r" (/[\w./]+)$", script, re.M))
    assert "initContainers" not in read_pod({**EVERYTHING, "prepareHostFolders": False})


# ---- life -------------------------------------------------------------------------------------------------------


def test_there_is_one_agent_a_node_on_every_node_with_accelerators() -> None:
    spec = render()["DaemonSet"]["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    pod = spec["template"]["spec"]
    assert pod["priorityClassName"] == "system-node-critical"
    taints = {toleration["key"] for toleration in pod["tolerations"]}
    assert taints == {"nvidia.com/gpu", "google.com/tpu", "amd.com/gpu"}
    assert pod["terminationGracePeriodSeconds"] > DRAIN_TIMEOUT_S


def test_the_agent_is_bound_to_the_pods_address_with_a_token() -> None:
    environment = read_environment()
    assert environment["MESHWRIGHT_HOST"] == "$(POD_IP)"
    mounts = {mount["name"]: mount["mountPath"] for mount in read_container()["volumeMounts"]}
    assert environment["MESHWRIGHT_TOKENS_FILE"] == f"{mounts['tokens']}/tokens"
    (secret,) = [volume["secret"] for volume in read_pod()["volumes"] if volume["name"] == "tokens"]
    assert secret["secretName"] == "meshwright-tokens"
    assert secret["defaultMode"] == 0o440
    assert "MESHWRIGHT_INSECURE" not in environment


@pytest.mark.parametrize(("values", "scheme"), [({}, None), (EVERYTHING, "HTTPS")])
def test_probes_ask_what_needs_no_token_and_no_driver(values: dict[str, Any], scheme: str | None) -> None:
    container = read_container(values)
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/healthz", "/healthz", "/readyz"]
    assert {probe.get("scheme") for probe in probes} == {scheme}


def test_a_second_release_does_not_take_the_firsts_pods() -> None:
    one, other = render(name="one"), render(name="other")
    for kind in ("Service", "NetworkPolicy", "DaemonSet"):
        assert one[kind]["metadata"]["name"] == "one"
        assert one[kind]["spec"] != other[kind]["spec"]


def test_prometheus_scrapes_the_service_when_asked_to() -> None:
    monitor = render({"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})["ServiceMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= render()["Service"]["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == render()["Service"]["spec"]["ports"][0]["name"]


def test_names_that_clients_use_are_answered_to() -> None:
    assert read_environment()["MESHWRIGHT_ALLOWED_HOSTS"] == "meshwright.meshwright.svc"
    more = read_environment({"allowedHosts": ["a.example.org", "*.example.org"]})["MESHWRIGHT_ALLOWED_HOSTS"]
    assert more.endswith(".svc,a.example.org,*.example.org")
