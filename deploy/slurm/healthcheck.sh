#!/usr/bin/env bash
# Slurm HealthCheckProgram (slurm.conf: HealthCheckProgram=…/healthcheck.sh, HealthCheckInterval=300,
# HealthCheckNodeState=ANY,CYCLE): drains this node, with the reason, when the agent knows that a device or its driver is
# broken, that a card does not answer its driver, or that the devices of MESHWRIGHT_EXPECT are not here. An agent that
# does not answer, or whose own store, disk or worker is broken, drains nothing. slurmd ends the program after 60 s
# (slurm.conf(5)); the agent has at most 20.
#
# A node that is drained, draining, down or failing for another reason than this script's is left as it is: an operator or
# Slurm gave the reason. A node that this script drained, and no other, is given back when the agent has looked at everything
# and found nothing broken, and MESHWRIGHT_RESUME=1; by default people do that. What is not known gives nothing back,
# and a node that is down as well stays down. To keep one of these, give it a reason of yours.
#
# Exit status: 0 looked, whatever was found · 1 could not look, or could not tell Slurm: slurmd writes that and the output
# to its log as an error ("health_check failed"), and leaves the node alone. An agent that has not looked yet, a typing
# error in the settings, a client that does not start, or a token that is refused may be one fault of all nodes, and
# must neither drain them nor pass for health.
#
# Settings: as in prolog.sh, and
#   MESHWRIGHT_EXPECT   devices that this node must have, such as h100:8
#   MESHWRIGHT_CHECK    further arguments of `meshwright health`: MESHWRIGHT_CHECK="--expect h100:8"
#   MESHWRIGHT_RESUME   1: undrain what was drained here
#   PATH                where scontrol is not in the usual places
set -o pipefail
settings=/etc/meshwright/slurm.env
# shellcheck source=/dev/null
[[ -r $settings ]] && { set -a; . "$settings"; set +a; } >/dev/null 2>&1
set -u # not above: an unset variable in the settings would end this script without a word
meshwright=${MESHWRIGHT:-/opt/meshwright/bin/meshwright}
export MESHWRIGHT_URL=${MESHWRIGHT_URL:-unix:///run/meshwright/agent.sock}
[[ $MESHWRIGHT_URL == unix:* ]] && unset MESHWRIGHT_TOKEN MESHWRIGHT_TOKEN_FILE # see prolog.sh
node=${SLURMD_NODENAME:-$(hostname -s)}
mark="meshwright:"

fail() {
    echo "meshwright healthcheck, node $node: $1" >&2
    exit 1
}

# A line without its quotes is a command, and its setting empty. What bash says of it has the line's words in it, which
# may be a secret: the number alone is told.
said=$([[ ! -r $settings ]] || LC_ALL=C bash -eu "$settings" 2>&1) || {
    [[ $'\n'$said =~ $'\n'"$settings: line "([0-9]+): ]] && line=", line ${BASH_REMATCH[1]}"
    fail "settings cannot be read: $settings${line:-}"
}

# What the client says beside its answer goes to slurmd's log.
read -ra arguments <<<"${MESHWRIGHT_CHECK:-}"
[[ -z ${MESHWRIGHT_EXPECT:-} ]] || arguments+=(--expect "$MESHWRIGHT_EXPECT")
check() { "$meshwright" --timeout 10 health ${arguments[@]+"${arguments[@]}"} --format "$1"; }

# The first word is the verdict, and the exit status goes with it: 1 alone is also an interpreter that finds no client.
said=$(check slurm)
status=$?
case "$status $said" in
"0 keep: "*) [[ ${MESHWRIGHT_RESUME:-0} == 1 ]] || exit 0 ;;
"1 drain: "*) ;;
"2 unknown: "*) fail "this node was not checked: ${said#unknown: }" ;;
*)
    fail "the check could not run (exit status $status): nothing is known of this node; see MESHWRIGHT_CHECK in $settings"
    ;;
esac

shown=$(scontrol show node "$node" 2>&1) || fail "scontrol show node: $shown"
state=$(sed -n 's/.*\<State=\([^ ]*\).*/\1/p' <<<"$shown" | head -1)
reason=$(sed -n 's/^ *Reason=\(.*\)/\1/p' <<<"$shown" | head -1)
reason=${reason% \[*@*\]} # who gave it, and when
if [[ $status == 0 ]]; then
    [[ $state == *DRAIN* && $state != *@(DOWN|FAIL)* && $reason == "$mark"* ]] || exit 0
    # "keep" leaves out the agent's own components, such as its store.
    check text >/dev/null || exit 0
    change=(state=resume)
else
    # One line, short: sinfo -R shows it, and quotes would end the argument.
    found=$(printf '%s' "${said#drain: }" | tr '\n"' ' .' | LC_ALL=C tr -cs '[:print:]' '?' | cut -c1-200 | sed 's/ *$//')
    if [[ $state == *@(DRAIN|DOWN|FAIL)* ]]; then
        [[ $reason == "$mark"* && $reason != "$mark $found" ]] || exit 0
    fi
    change=(state=drain reason="$mark $found")
fi
told=$(scontrol update nodename="$node" "${change[@]}" 2>&1) || fail "scontrol update ${change[*]}: $told"
exit 0
