#!/usr/bin/env bash
# Slurm Prolog (slurm.conf: Prolog=…/prolog.sh), run as root on each node before a job: reserves the node's devices for the
# job, so that no bench of the agent is in its way, and lets the agent give back what it holds.
#
# Exit status: 0 always but when MESHWRIGHT_STRICT=1: Slurm drains a node whose Prolog fails and requeues the job, and an
# agent that is being restarted is no reason for that.
#
#   MESHWRIGHT          the client, default /opt/meshwright/bin/meshwright
#   MESHWRIGHT_URL      the agent, default unix:///run/meshwright/agent.sock
#   MESHWRIGHT_STRICT   1: a node whose devices are not reserved and free is not given to the job
#   MESHWRIGHT_SHARED   1: nodes are shared by GRES, so that a job without SLURM_JOB_GPUS has no device, and reserves none
#   MESHWRIGHT_RUNDIR   where the lease's id is kept for the epilog, default /run/meshwright-slurm
set -uo pipefail
meshwright=${MESHWRIGHT:-/opt/meshwright/bin/meshwright}
export MESHWRIGHT_URL=${MESHWRIGHT_URL:-unix:///run/meshwright/agent.sock}
kept=${MESHWRIGHT_RUNDIR:-/run/meshwright-slurm}
job=${SLURM_JOB_ID:?the Prolog needs SLURM_JOB_ID, which slurmd sets}

fail() {
    echo "meshwright prolog, job $job: $1" >&2
    [[ ${MESHWRIGHT_STRICT:-0} == 1 ]] && exit 1
    exit 0
}

[[ $job =~ ^[0-9]+$ ]] || { echo "meshwright prolog: SLURM_JOB_ID=$job is no job id" >&2; exit 1; }

# The devices of this job on this node, as Slurm numbers them. Without numbers the whole node is the job's, unless GRES
# shares its devices out: then the job has none.
devices=${SLURM_JOB_GPUS:-all}
[[ $devices == all && ${MESHWRIGHT_SHARED:-0} == 1 ]] && exit 0

# Seconds until the job's end, and five minutes in which the epilog may run late; the agent takes at most 30 days.
ttl=86400
if [[ ${SLURM_JOB_END_TIME:-} =~ ^[0-9]+$ ]]; then
    ttl=$((SLURM_JOB_END_TIME - $(date +%s) + 300))
    ((ttl < 600)) && ttl=600
    ((ttl > 2592000)) && ttl=2592000
fi

(umask 077 && mkdir -p "$kept") || fail "cannot make $kept"
if ! lease=$("$meshwright" --timeout 10 lease "$devices" --purpose "slurm job $job" --ttl "${ttl}s" --id-only 2>&1); then
    fail "no lease on $devices: $lease"
fi
printf '%s\n' "$lease" >"$kept/$job" || fail "cannot keep the lease's id in $kept/$job"

# The agent gives back what its own worker holds; what other jobs on this node hold is theirs, and is no failure.
if ! said=$("$meshwright" --timeout 10 release 2>&1); then
    fail "devices are still held: $said"
fi
exit 0
