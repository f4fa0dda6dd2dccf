#!/usr/bin/env bash
# Slurm Epilog (slurm.conf: Epilog=…/epilog.sh), run as root on each node after a job: ends the lease that the prolog made,
# known by its purpose, also where the prolog did not hear that it was made. A job whose lease may stand, since the agent
# does not answer, stays noted as JOB.over for the next prolog: the note is written first, and outlives a kill of this script.
# Exit status: 0 always; Slurm drains a node whose Epilog fails, and a lease ends by itself.
# Settings: as in prolog.sh.
set -o pipefail
settings=/etc/meshwright/slurm.env
# shellcheck source=/dev/null
[[ -r $settings ]] && { set -a; . "$settings"; set +a; } >/dev/null 2>&1
set -u # not above: an unset variable in the settings would end this script without a word
meshwright=${MESHWRIGHT:-/opt/meshwright/bin/meshwright}
export MESHWRIGHT_URL=${MESHWRIGHT_URL:-unix:///run/meshwright/agent.sock}
[[ $MESHWRIGHT_URL == unix:* ]] && unset MESHWRIGHT_TOKEN MESHWRIGHT_TOKEN_FILE # see prolog.sh
noted=${MESHWRIGHT_RUNDIR:-/run/meshwright-slurm}
job=${SLURM_JOB_ID:-}
tell() { echo "meshwright epilog, job $job: $1" >&2; }
# What bash says of a wrong line has the line's words in it, which may be a secret: the number alone is told.
said=$([[ ! -r $settings ]] || LC_ALL=C bash -eu "$settings" 2>&1) || {
    [[ $'\n'$said =~ $'\n'"$settings: line "([0-9]+): ]] && line=", line ${BASH_REMATCH[1]}"
    tell "settings cannot be read: $settings${line:-}"
}
[[ $job =~ ^[0-9]+$ ]] || { tell "SLURM_JOB_ID, which slurmd sets, is no job id"; exit 0; }

(umask 077 && mkdir -p "$noted" && : >"$noted/$job.over") || tell "cannot note in $noted that the job is over"
said=$("$meshwright" --timeout 10 lease end --purpose "slurm job $job" 2>&1 >/dev/null)
status=$?
[[ -n $said ]] && tell "$said"
((status)) || rm -f "$noted/$job.over"
exit 0
