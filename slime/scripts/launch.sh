#!/usr/bin/env bash
# Submits a training run to Ray: `bash slime/scripts/launch.sh --model-path DIR …`, any flag of slime/train.py.
#
# Where a cluster answers (RAY_ADDRESS, or a dashboard on this machine) the job goes there. Where none does, a head
# is started on loopback for this run and stopped after it; nothing else is ever stopped. On this machine the job
# runs in the directory it was submitted from, so relative paths mean what they mean in the shell; so do relative output
# directories on another. Inside a job that somebody submitted the run is that job: nothing is submitted again.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
dashboard_port="${DASHBOARD_PORT:-8265}"
job="openclaw-rl-$(date +%Y%m%d-%H%M%S)-$$"
head_pid=""
token_file=""

# A mistake in the settings is answered here, before anything is started or sent; so are the two questions.
for argument in "$@"; do
    if [[ "$argument" == "--print-config" || "$argument" == "--help" ]]; then
        exec python -m slime.config "$@"
    fi
done
if [[ -n "${RAY_JOB_CONFIG_JSON_ENV_VAR:-}" ]]; then
    python -m slime.preflight "$@"
    exec python "$root/slime/train.py" "$@"
fi
where=(env -C "$PWD" python "$root/slime/train.py")
is_here=1
if [[ -n "${RAY_ADDRESS:-}" && "$RAY_ADDRESS" != *127.0.0.1* && "$RAY_ADDRESS" != *localhost* ]]; then
    # another machine: it has only the copy that --working-dir sends, and its own files
    where=(env "OPENCLAW_RL_BASE_DIR=${OPENCLAW_RL_BASE_DIR:-$PWD}" python slime/train.py)
    is_here=""
    python -m slime.config "$@"
else
    python -m slime.preflight "$@"
fi

# The status that a Ray dashboard answers with, 401 where it asks for a token; nothing where there is none.
status_of() {
    python - "$1" 2> /dev/null << 'PYTHON' || true
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1] + "/api/version", timeout=3).status)
except urllib.error.HTTPError as error:
    print(error.code)
PYTHON
}

answers() {
    [[ "$(status_of "$1")" =~ ^(200|401|403)$ ]]
}

# A cluster that was there before and asks for a token gets the one that Ray itself would find.
use_token_if_asked() {
    if [[ ! "$(status_of "$1")" =~ ^(401|403)$ || -n "${RAY_AUTH_MODE:-}" ]]; then return; fi
    if [[ -z "${RAY_AUTH_TOKEN:-}" && ! -f "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}" ]]; then
        echo "the Ray at $1 asks for a token: export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE" >&2
        exit 2
    fi
    export RAY_AUTH_MODE=token
}

stop_own_head() {
    if [[ -n "$head_pid" ]] && kill -0 "$head_pid" 2> /dev/null; then
        kill -INT "$head_pid" # Ray's libraries answer SIGTERM with a stack trace
        wait "$head_pid" 2> /dev/null || true
    fi
    rm -f "$token_file"
}

interrupted() {
    trap '' INT TERM
    if [[ -n "$head_pid" ]]; then
        echo "stopping $job" >&2
        ray job stop --address "$address" "$job" > /dev/null 2>&1 || true
    else
        echo "$job goes on; stop it with: ray job stop --address $address $job" >&2
    fi
    exit 130
}

address="${RAY_ADDRESS:-http://127.0.0.1:$dashboard_port}"
if [[ -n "$is_here" ]] && ! answers "$address"; then
    RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
    python "$root/slime/slime/engines/die_with_parent.py" $$ python -m slime.cluster.head "$dashboard_port" > /dev/null &
    head_pid=$!
    token_file="$(mktemp "${TMPDIR:-/tmp}/openclaw-rl-ray-token.XXXXXX")" # readable by this user alone
    echo "$RAY_AUTH_TOKEN" > "$token_file"
    trap stop_own_head EXIT
    for _ in {1..120}; do
        if answers "$address"; then break; fi
        kill -0 "$head_pid" 2> /dev/null || { echo "Ray did not start" >&2; exit 1; }
        sleep 1
    done
    answers "$address" || { echo "Ray's dashboard did not answer at $address within 2 minutes" >&2; exit 1; }
    token="in $token_file"
    if [[ -t 2 ]]; then token="$RAY_AUTH_TOKEN"; fi
    echo "Ray's dashboard is $address, its token: $token" >&2
    echo "in another shell: export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token_file RAY_ADDRESS=$address" >&2
else
    use_token_if_asked "$address"
fi

# A head of our own has this shell's environment already, secrets included; another cluster has only what is sent.
notes=/dev/stderr
if [[ -n "$head_pid" ]]; then notes=/dev/null; fi
environment="$(python -m slime.config.job_environment 2> "$notes")"

submit() {
    ray job submit --no-wait --address "$address" --submission-id "$job" --working-dir "$root" \
        --runtime-env-json "$environment" -- "${where[@]}" "$@"
}

trap interrupted INT TERM
# A head that was just started has its dashboard before it can take jobs.
for attempt in {1..20}; do
    if said="$(submit "$@" 2>&1)"; then break; fi
    if [[ "$said" == *"$job already exists"* ]]; then break; fi # taken, and the connection broke before it was said
    if [[ -n "$head_pid" ]] && ! kill -0 "$head_pid" 2> /dev/null; then exit 1; fi # it has said why
    if [[ ! "$said" =~ "No available agent"|"ConnectionError" || "$attempt" == 20 ]]; then echo "$said" >&2; exit 1; fi
    sleep 2
done

echo "$job runs at $address"
ray job logs --address "$address" --follow "$job" &
wait $! || true
status="$(ray job status --address "$address" "$job" 2>&1)"
[[ "${status,,}" == *succeeded* ]] || { echo "$job did not succeed" >&2; exit 1; }
