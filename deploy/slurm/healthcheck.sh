#!/usr/bin/env bash
# Slurm HealthCheckProgram (slurm.conf: HealthCheckProgram=…/healthcheck.sh, HealthCheckInterval=300,
# HealthCheckNodeState=ANY,CYCLE): drains this node, with the reason, when the agent knows that something is broken. An
# agent that does not answer drains nothing. slurmd ends the program after 60 s (slurm.conf(5)); this takes at most 20.
#
# A node that this script drained, and no other, is given back when the agent knows of nothing broken any more and
# MESHWRIGHT_RESUME=1; by default people do that.
#
# Settings: as in prolog.sh, and
#   MESHWRIGHT_CHECK    further arguments of `meshwright check`, such as "--require 8*h100"
#   MESHWRIGHT_RESUME   1: undrain what was drained here
set -uo pipefail
meshwright=${MESHWRIGHT:-/opt/meshwright/bin/meshwright}
export MESHWRIGHT_URL=${MESHWRIGHT_URL:-unix:///run/meshwright/agent.sock}
node=${SLURMD_NODENAME:-$(hostname -s)}
mark="meshwright:"

# shellcheck disable=SC2086 # arguments are words
said=$("$meshwright" --timeout 10 check --exit-style slurm ${MESHWRIGHT_CHECK:-} 2>&1)
status=$?
case $status in
0)
    if [[ ${MESHWRIGHT_RESUME:-0} == 1 ]]; then
        reason=$(scontrol show node "$node" --oneliner 2>/dev/null | grep -o 'Reason=.*' || true)
        [[ $reason == "Reason=$mark"* ]] && scontrol update nodename="$node" state=resume
    fi
    ;;
1)
    # One line, short: sinfo -R shows it, and quotes would end the argument.
    reason=$(printf '%s' "$said" | tr '\n"' ' .' | cut -c1-200)
    scontrol update nodename="$node" state=drain reason="$mark $reason"
    ;;
*)
    echo "meshwright healthcheck could not run (exit status $status): $said" >&2
    ;;
esac
exit 0
