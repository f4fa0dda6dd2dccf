#!/usr/bin/env bash
# Slurm Epilog (slurm.conf: Epilog=…/epilog.sh), run as root on each node after a job: ends the lease that the prolog made.
# Exit status: 0 always; Slurm drains a node whose Epilog fails, and a lease ends by itself.
# Settings: as in prolog.sh.
set -uo pipefail
meshwright=${MESHWRIGHT:-/opt/meshwright/bin/meshwright}
export MESHWRIGHT_URL=${MESHWRIGHT_URL:-unix:///run/meshwright/agent.sock}
job=${SLURM_JOB_ID:?the Epilog needs SLURM_JOB_ID, which slurmd sets}
[[ $job =~ ^[0-9]+$ ]] || { echo "meshwright epilog: SLURM_JOB_ID=$job is no job id" >&2; exit 0; }
kept=${MESHWRIGHT_RUNDIR:-/run/meshwright-slurm}/$job

[[ -r $kept ]] || exit 0
if ! said=$("$meshwright" --timeout 10 leases end "$(<"$kept")" 2>&1); then
    echo "meshwright epilog, job $job: $said" >&2
fi
rm -f "$kept"
exit 0
