#!/usr/bin/env bash
# Installs the agent on this host and starts it, as root, from a checkout or an unpacked release:
#
#   deploy/systemd/install.sh                   with JAX for what is here: cuda13 for NVIDIA GPUs, tpu for TPUs, else cpu
#   deploy/systemd/install.sh agent,cuda12      with these extras (docs/how-to/install.md)
#
# Run again it brings the agent up to date, with the extras of the last time unless others are named, and restarts it,
# which ends its benches and keeps its leases. Settings
# (/etc/meshwright) and state (/var/lib/meshwright) are left alone.
#
# Exit status: 0 the agent has started and listens, or is installed where no systemd runs (a chroot, an image's build) ·
# 1 it does not start, or a step failed · 2 a wrong argument, not root, or no Python that will do
#
#   MESHWRIGHT_PYTHON   the interpreter to make /opt/meshwright with, 3.11 or later; default python3
set -euo pipefail
python=${MESHWRIGHT_PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
home=/opt/meshwright

refuse() { echo "install.sh: $*" >&2; exit 2; }

choose_extras() {
    if compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
        echo agent,cuda13
    elif compgen -G "/dev/accel[0-9]*" >/dev/null || compgen -G "/dev/vfio/[0-9]*" >/dev/null; then
        echo agent,tpu
    else
        echo agent,cpu
    fi
}

[[ $# -le 1 ]] || refuse "one argument at most: extras, such as agent,cuda13"
extras=${1:-$(cat "$home/extras" 2>/dev/null || choose_extras)}
[[ $extras =~ ^[a-z0-9,-]+$ ]] || refuse "'$extras' is no list of extras; such as agent,cuda13"
[[ ,$extras, == *,agent,* ]] || refuse "'$extras' has no agent in it; such as agent,$extras"
[[ $EUID -eq 0 ]] || refuse "only root may: sudo $0 $extras"
"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    refuse "$python is no Python from 3.11 on with venv (Debian: python3-venv); name one in MESHWRIGHT_PYTHON"

echo "installing meshwright[$extras] into $home"
[[ -x $home/bin/python ]] || "$python" -m venv "$home"
"$home/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade \
    --constraint "$source/constraints.txt" "${source}[${extras}]"
echo "$extras" >"$home/extras"
chmod -R go+rX "$home" # root's umask may be 077, and the agent is another user
install -D -m 644 "$here/meshwright.sysusers" /usr/lib/sysusers.d/meshwright.conf
install -D -m 644 "$here/meshwright-agent.service" /etc/systemd/system/meshwright-agent.service
systemd-sysusers meshwright.conf
systemctl --quiet enable meshwright-agent

if [[ ! -d /run/systemd/system ]]; then # sd_booted(3)
    echo "no systemd runs here: the agent starts when this system boots"
    exit 0
fi
systemctl daemon-reload
systemctl restart meshwright-agent || {
    journalctl --unit meshwright-agent --no-pager --output cat --lines 30 >&2
    exit 1
}
export MESHWRIGHT_URL=unix:///run/meshwright/agent.sock
"$home/bin/meshwright-agent" --version
echo "the agent listens. Who is in the group meshwright is admin on the unix socket; every user may read. As root, try"
echo "  MESHWRIGHT_URL=$MESHWRIGHT_URL $home/bin/meshwright devices"
echo "  runuser -u meshwright -- $home/bin/meshwright-agent doctor --state-dir /var/lib/meshwright"
