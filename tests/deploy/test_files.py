"""What all files of deploy/ have in common, and the Dockerfile; the image is built in test_image.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.deploy.charts import DEPLOY
from tests.documents import ROOT, Document, read_settings

DOCKERFILE = ROOT / "Dockerfile"
OF_SCRIPTS = {
    *("MESHWRIGHT_STRICT", "MESHWRIGHT_SHARED", "MESHWRIGHT_RUNDIR", "MESHWRIGHT_CHECK", "MESHWRIGHT_RESUME"),
    *("MESHWRIGHT_PREFLIGHT", "MESHWRIGHT_EXPECT", "MESHWRIGHT_ADDRESS", "MESHWRIGHT_PYTHON"),
}
"""Variables of scripts, each told at the top of the script that reads it."""


def list_texts() -> list[Path]:
    return sorted(path for path in (*DEPLOY.rglob("*"), DOCKERFILE) if path.is_file() and path.suffix != ".json")


def find_tool(name: str) -> str:
    here = Path(sys.executable).with_name(name)
    return str(here) if here.exists() else name


def list_variables(path: Path) -> set[str]:
    return set(re.findall(r"\bMESHWRIGHT_[A-Z][A-Z_]*[A-Z]\b", path.read_text()))


def test_every_variable_that_is_named_is_one_that_somebody_reads() -> None:
    agent = set(read_settings())
    client = {row[0] for row in Document.read("docs/reference/client.md").table("Variables")}
    for path in list_texts():
        unknown = list_variables(path) - agent - client - OF_SCRIPTS
        assert not unknown, f"{path.relative_to(ROOT)} names {unknown}"


def test_variables_of_the_scripts_are_read_by_them() -> None:
    scripts = "".join(path.read_text() for path in DEPLOY.rglob("*.sh"))
    read = set(re.findall(r"\$\{(MESHWRIGHT_\w+):[-+]", scripts))
    assert read >= OF_SCRIPTS


def test_every_drop_in_and_every_feature_has_a_line_in_the_runbook() -> None:
    rights = Document.read("deploy/RUNBOOK.md").section("Rights")
    for path in (DEPLOY / "systemd" / "drop-ins").glob("*.conf"):
        assert f"`{path.name}`" in rights
    values = (DEPLOY / "helm" / "meshwright" / "values.yaml").read_text()
    features = values.partition("\nfeatures:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  (\w+):$", features, re.M):
        assert f"`features.{name}`" in rights


def test_every_label_is_in_the_runbook() -> None:
    source = (ROOT / "service" / "meshwright_agent" / "labels.py").read_text()
    names = re.findall(r'^        "([a-z-]+)": ', source, re.M)
    documented = "\n".join(row[0] for row in Document.read("deploy/RUNBOOK.md").table("Labels of nodes"))
    assert len(names) >= 8
    assert all(f"{name}" in documented for name in names)


def test_a_rollback_by_the_runbook_brings_the_state_of_before_the_last_upgrade(tmp_path: Path) -> None:
    (block,) = (each for each in Document.read("deploy/RUNBOOK.md").blocks("sh") if "meshwright.before" in each.text)
    upgrade, rollback = (line for line in block.text.splitlines() if line.startswith("systemctl stop "))
    state = tmp_path / "meshwright"
    state.mkdir()

    def run(line: str) -> None:
        command = f"systemctl() {{ :; }}\n{line.replace('/var/lib', str(tmp_path))}"
        subprocess.run(["bash", "-ec", command], check=True)

    for version in ("1", "2"):
        (state / "version").write_text(version)
        run(upgrade)
    (state / "version").write_text("3")
    run(rollback)
    assert (state / "version").read_text() == "2"
    assert [path.name for path in state.iterdir()] == ["version"]


def test_yaml_is_as_yamllint_wants_it() -> None:
    files = [DEPLOY / "kubernetes", DEPLOY / "helm/meshwright/values.yaml", DEPLOY / "helm/meshwright/Chart.yaml"]
    command = [find_tool("yamllint"), "--strict", "-c", str(DEPLOY / ".yamllint.yaml"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# ---- the image --------------------------------------------------------------------------------------------------


def test_the_dockerfile_is_as_hadolint_wants_it() -> None:
    done = subprocess.run([find_tool("hadolint"), str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_the_user_of_the_chart_and_under_an_init() -> None:
    text = DOCKERFILE.read_text()
    values = (DEPLOY / "helm" / "meshwright" / "values.yaml").read_text()
    user = re.search(r"^runAsUser: (\d+)$", values, re.M)
    assert user is not None
    assert f"USER {user[1]}:{user[1]}" in text
    assert 'ENTRYPOINT ["tini", "-s", "--", "meshwright-agent"]' in text
    assert text.index("ARG BASE_IMAGE") < text.index("FROM ${BASE_IMAGE}")


def test_only_what_the_image_needs_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    sent = {line[1:] for line in lines if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.M)
    copied = {name for line in copies for name in line.split()[:-1]}
    assert lines[0] == "*"
    assert copied == sent
