#!/usr/bin/env bash
# Slurm Prolog (slurm.conf: Prolog=…/prolog.sh), run as root on each node before a job: reserves the node's devices for the
# job, so that no bench of the agent is in its way, and lets the agent give back what it holds.
#
# A lease is known by its purpose, "slurm job 4711", never by an id that may not have been heard. A job that is over, but
# whose lease may stand since the agent was away, is a file JOB.over: the epilog of that job wrote it, so that slurmd has
# ended the job here. The next prolog ends what these files name, and no lease of a job that still runs beside it.
#
# With MESHWRIGHT_PREFLIGHT the first node of a job then checks all its nodes in one JAX job, under the leases that their
# prologs have made, and each node waits for the verdict on itself. It needs PrologFlags=Alloc, so that all nodes run
# their prologs before the job starts, and a token with the scope `operate` on every node (MESHWRIGHT_TOKEN_FILE).
#
# Exit status: 0 always but when a preflight found this node at fault, MESHWRIGHT_STRICT=1, or SLURM_JOB_ID is none:
# Slurm drains a node whose Prolog fails and requeues the job, and an agent that is being restarted is no reason for that.
# A node that could not be checked is no reason either, and is told to slurmd's log.
#
# Settings: slurmd gives its scripts no environment of yours, so they stand in /etc/meshwright/slurm.env, NAME=value a
# line, as a shell reads them.
#   MESHWRIGHT          the client, default /opt/meshwright/bin/meshwright
#   MESHWRIGHT_URL      the agent, default unix:///run/meshwright/agent.sock
#   MESHWRIGHT_TOKEN_FILE  a file of mode 600 with the token for agents at addresses of TCP, such as the other nodes'; none
#                       is sent on the unix socket. MESHWRIGHT_TOKEN is the token itself: a file is safer.
#   MESHWRIGHT_STRICT   1: a node whose devices are not reserved and free is not given to the job
#   MESHWRIGHT_SHARED   1: nodes are shared by GRES, so that a job without SLURM_JOB_GPUS has no device, and reserves none
#   MESHWRIGHT_RUNDIR   where jobs are noted whose lease may stand though they are over, default /run/meshwright-slurm
#   MESHWRIGHT_PREFLIGHT  seconds: jobs of several whole nodes are checked for so long at most; 90 was enough for 8
#   MESHWRIGHT_EXPECT     devices that each node must have, such as h100:8; needed where GRES names a job's GPUs
#   MESHWRIGHT_ADDRESS    where other nodes reach the agent of NODE, default http://NODE:8790; with TLS https://NODE:8790
set -o pipefail
settings=/etc/meshwright/slurm.env
# shellcheck source=/dev/null
[[ -r $settings ]] && { set -a; . "$settings"; set +a; } >/dev/null 2>&1
set -u # not above: an unset variable in the settings would end this script without a word
meshwright=${MESHWRIGHT:-/opt/meshwright/bin/meshwright}
export MESHWRIGHT_URL=${MESHWRIGHT_URL:-unix:///run/meshwright/agent.sock}
noted=${MESHWRIGHT_RUNDIR:-/run/meshwright-slurm}
job=${SLURM_JOB_ID:?the Prolog needs SLURM_JOB_ID, which slurmd sets}
[[ $job =~ ^[0-9]+$ ]] || { echo "meshwright prolog: SLURM_JOB_ID=$job is no job id" >&2; exit 1; }

tell() { echo "meshwright prolog, job $job: $1" >&2; }
# What bash says of a wrong line has the line's words in it, which may be a secret: the number alone is told.
said=$([[ ! -r $settings ]] || LC_ALL=C bash -eu "$settings" 2>&1) || {
    [[ $'\n'$said =~ $'\n'"$settings: line "([0-9]+): ]] && line=", line ${BASH_REMATCH[1]}"
    tell "settings cannot be read: $settings${line:-}"
}

# The client of this node's agent. On the unix socket root is admin without a token, and a token that has expired would
# be refused.
client() (
    [[ $MESHWRIGHT_URL == unix:* ]] && unset MESHWRIGHT_TOKEN MESHWRIGHT_TOKEN_FILE
    "$meshwright" "$@"
)

# Asks the agent. What the client says beside its answer, a warning too, goes to slurmd's log.
ask() {
    local said status
    said=$(client --timeout 10 "$@" 2>&1 >/dev/null)
    status=$?
    [[ -n $said ]] && tell "$said"
    return $status
}

fail() {
    tell "$1"
    [[ ${MESHWRIGHT_STRICT:-0} == 1 ]] || exit 0
    # The job does not start here; what the agent may yet reserve for it, having heard of it, is ended by the next one.
    : >"$noted/$job.over"
    exit 1
}

# The devices of this job on this node, as Slurm numbers them. Without numbers the whole node is the job's, unless GRES
# shares its devices out: then the job has none.
devices=${SLURM_JOB_GPUS:-all}
[[ $devices == all && ${MESHWRIGHT_SHARED:-0} == 1 ]] && exit 0

# Seconds until the job's end, and five minutes in which the epilog may run late; the agent takes at most 30 days. An
# end that is past tells that Slurm knows none (0), or that a clock is wrong: a day then, as without one. The epilog
# ends it.
ttl=86400
now=$(date +%s)
if [[ ${SLURM_JOB_END_TIME:-} =~ ^[1-9][0-9]*$ ]]; then
    end=$SLURM_JOB_END_TIME
    ((${#end} > 12)) && end=999999999999 # more digits than bash can hold
    ((end > now)) && ttl=$((end - now + 300))
    ((ttl < 600)) && ttl=600
    ((ttl > 2592000)) && ttl=2592000
fi

# One prolog at a time ends what is left over: a job that was requeued to this node takes its own note away before it
# reserves, and no prolog that has read that note ends the lease that it gets then.
(umask 077 && mkdir -p "$noted") || fail "no lease on $devices: cannot make $noted"
exec 9>"$noted/lock" || fail "no lease on $devices: cannot write to $noted"
flock --timeout 60 9 || fail "no lease on $devices: another prolog has had $noted/lock for 60 s"
rm -f "$noted/$job.over"
# No lease lasts longer than 30 days, so that older notes are of nothing.
find "$noted" -name '*.over' -mtime +30 -delete
leftover=(--purpose "slurm job $job")
shopt -s nullglob
notes=("$noted"/*.over)
for note in ${notes[@]+"${notes[@]}"}; do
    leftover+=(--purpose "slurm job $(basename "$note" .over)")
done
ask lease end "${leftover[@]}"
case $? in
0) rm -f ${notes[@]+"${notes[@]}"} ;;
2) fail "no lease on $devices: the agent does not answer, or does not let this script in" ;;
*) tell "leases of earlier jobs may stand; the next prolog asks again" ;;
esac
exec 9>&-

ask lease create --id "slurm-$job" --purpose "slurm job $job" --ttl "${ttl}s" --id-only -- "$devices" || fail "no lease on $devices"

# The agent gives back what its own worker holds; what other jobs on this node hold is theirs, and is no failure.
if ! ask devices release; then
    [[ ${MESHWRIGHT_STRICT:-0} == 1 ]] && ask lease end --purpose "slurm job $job"
    fail "devices are still held"
fi

# A preflight opens all devices of a node: those of a job that has them all, by GRES as many as are expected.
limit=${MESHWRIGHT_PREFLIGHT:-0}
[[ $limit == 0 ]] && exit 0
[[ $limit =~ ^[1-9][0-9]{0,3}$ ]] || { tell "no preflight: MESHWRIGHT_PREFLIGHT=$limit is no number of seconds"; exit 0; }
commas=${devices//[^,]/} expect=${MESHWRIGHT_EXPECT:-}
if [[ $devices != all && $((${#commas} + 1)) != "${expect##*:}" ]]; then
    tell "no preflight: the job has devices $devices of this node; MESHWRIGHT_EXPECT, which says how many there are, is '$expect'"
    exit 0
fi
node=${SLURMD_NODENAME:-$(hostname -s)}
nodes=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}") # asks no daemon
[[ $nodes == *$'\n'* ]] || exit 0
wait=$((limit + 30)) fault=0
if [[ $node == "${nodes%%$'\n'*}" ]]; then
    address=${MESHWRIGHT_ADDRESS:-http://NODE:8790}
    while read -r each; do echo "${address//NODE/$each}"; done <<<"$nodes" >"$noted/$job.hosts"
    said=$("$meshwright" --timeout "$limit" preflight --hosts "@$noted/$job.hosts" --lease "slurm-$job" --format slurm \
        ${expect:+--expect "$expect"})
    [[ $? == 1 ]] && fault=1
    tell "preflight of all nodes: $said"
    rm -f "$noted/$job.hosts"
    wait=5
fi
said=$(client --timeout "$wait" preflight wait "slurm-$job" --format slurm)
heard=$?
if [[ $heard != 1 || $said != "drain: "* ]]; then
    [[ $heard == 0 ]] || tell "this node was not checked${said:+: $said}"
    # Slurm starts a batch script when the prolog of its node has ended, and waits for no other node's: where one is at
    # fault, it has 30 s to fail, and Slurm to take the job back.
    for ((i = 0; fault && i < 30; i++)); do
        [[ $(scontrol show job "$job") == *JobState=@(CONFIGURING|RUNNING)* ]] || break
        sleep 1
    done
    exit 0
fi
# Slurm's own reason would be "Prolog error". No healthcheck.sh gives this node back: its reason begins in another way.
reason=$(printf '%s' "preflight: ${said#drain: }" | tr '\n"' ' .' | LC_ALL=C tr -cs '[:print:]' '?' | cut -c1-200)
scontrol update nodename="$node" state=drain reason="$reason" || tell "scontrol did not take the reason"
tell "$reason"
# The job starts elsewhere; people who look at this node may want to run a bench.
ask lease end --purpose "slurm job $job" || : >"$noted/$job.over"
exit 1
