"""The drop-ins under a systemd that boots: furnished by the runbook's own commands, then asked what each is worth."""

from __future__ import annotations

import shutil
from pathlib import Path

import trustme

from tests.deploy import test_boot
from tests.deploy.test_boot import SYSTEMD, boot, furnish, overlaid
from tests.documents import Document

pytestmark = test_boot.pytestmark

INSPECT = """#!/bin/bash
# Runs once the agent has said READY=1, or could not. Each line is a finding.
tell() { echo "$1: ${*:2}"; }
unit=meshwright-agent.service
show() { systemctl show "$unit" --property "$1" --value; }
ask() { curl -s --max-time 20 --cacert /ca.pem "$@"; }
ask_status() { ask -o /dev/null -w '%{http_code}' "$@"; }
for _ in $(seq 100); do [[ $(ask https://localhost:8790/readyz) == ready ]] && break; sleep 0.2; done
tell active "$(show ActiveState)"
tell readyz "$(ask https://localhost:8790/readyz)"
tell stranger "$(ask_status https://localhost:8790/devices)"
tell known "$(ask_status -H "Authorization: Bearer $(</token)" https://localhost:8790/devices)"
tell listens "$(grep -c ' 00000000000000000000000000000000:2256 .* 0A ' /proc/net/tcp6)"
folder=/etc/kubernetes/node-feature-discovery/features.d
for _ in $(seq 50); do [[ -e $folder/meshwright ]] && break; sleep 0.2; done
tell labels "$(grep -c /device-count= $folder/meshwright)" "$(stat -c '%U %a' $folder/meshwright)"
tell folder "$(stat -c '%U %G %a' $folder)"
tell groups "$(ps -o supgrp= -p "$(show MainPID)")"
journalctl -u "$unit" --no-pager -o cat | tail -20 | sed 's/^/journal: /'
echo "done: yes"
"""
PREPARE = """#!/bin/bash -eu
meshwright-agent() {{
    PYTHONPATH=/opt/source/client:/opt/source/service /opt/meshwright/bin/python -m meshwright_agent "$@"
}}
groupadd --force --system render; groupadd --force --system video
cp /tls.crt /tls.key /etc/meshwright/
{commands}
"""
PREPARE_UNIT = """[Unit]
Before=meshwright-agent.service
[Service]
Type=oneshot
# As the agent's unit makes it, at a start before this one.
ConfigurationDirectory=meshwright
ConfigurationDirectoryMode={mode}
ExecStart=/opt/prepare
StandardOutput=file:/prepared
StandardError=file:/prepared
RemainAfterExit=yes
"""


def read_commands(heading: str) -> list[str]:
    """Returns the lines of the first shell block of a part of the runbook."""
    block = Document.read("deploy/RUNBOOK.md").section(heading).partition("```sh\n")[2].partition("```")[0]
    return [line.partition("    #")[0].strip() for line in block.splitlines()]


def prepare(root: Path) -> None:
    """Puts the drop-ins there, and what the runbook's commands for tokens and TLS need."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(root / "ca.pem")
    (root / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(root / "tls.key")
    units = root / "etc/systemd/system"
    for path in (SYSTEMD / "drop-ins").glob("*.conf"):
        if path.stem != "owners":  # whoever may read every file needs no rights of files
            shutil.copy(path, units / "meshwright-agent.service.d")
    (units / "meshwright-agent.service.d" / "prepare.conf").write_text("[Unit]\nRequires=prepare.service\n")
    mode = (SYSTEMD / "meshwright-agent.service").read_text().partition("ConfigurationDirectoryMode=")[2].split()[0]
    (units / "prepare.service").write_text(PREPARE_UNIT.format(mode=mode))
    commands = [line.replace(" NAME ", " probe ") for line in (*read_commands("Tokens"), *read_commands("TLS"))]
    typed = [f"{line} 2>/token" if "token new" in line else line for line in commands]
    (root / "opt/prepare").write_text(PREPARE.format(commands="\n".join(typed)))
    (root / "opt/prepare").chmod(0o755)
    (root / "opt/inspect").write_text(INSPECT)


def test_each_drop_in_gives_what_it_says_after_the_runbooks_commands() -> None:
    with overlaid() as root:
        furnish(root)
        prepare(root)
        found = boot(root)
        typed = root / "prepared"
        told = "\n".join(f"{name}: {value}" for name, value in found.items())
        told += f"\n{typed.read_text() if typed.exists() else 'nothing was prepared'}"
    assert found.get("done") == "yes", told
    assert (found["active"], found["readyz"]) == ("active", "ready"), told
    assert (found["stranger"], found["known"]) == ("401", "200"), told
    assert found["listens"] == "1", told
    assert found["labels"] == "1 meshwright 644", told
    assert found["folder"] == "root meshwright 775", told
    assert {"render", "video"} <= set(found["groups"].split(",")), told
