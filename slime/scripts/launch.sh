#!/usr/bin/env bash
# Submits a training run to Ray: `bash slime/scripts/launch.sh --model-path DIR …`, any flag of slime/train.py.
#
# Where a cluster answers (RAY_ADDRESS, or a dashboard on this machine) the job goes there. Where none does, a head
# is started on loopback for this run and stopped after it; nothing else is ever stopped. On this machine the job
# runs in the directory it was submitted from, so relative paths mean what they mean in the shell.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
dashboard_port="${DASHBOARD_PORT:-8265}"
job="openclaw-rl-$(date +%Y%m%d-%H%M%S)-$$"
head_pid=""

# A mistake in the settings is answered here, before anything is started or sent; so are the two questions.
for argument in "$@"; do
    if [[ "$argument" == "--print-config" || "$argument" == "--help" ]]; then
        exec python "$root/slime/train.py" "$@"
    fi
done
python "$root/slime/train.py" --print-config "$@" > /dev/null

answers() { python -c "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/api/version', timeout=3)" "$1" 2> /dev/null; }

stop_own_head() {
    if [[ -n "$head_pid" ]] && kill -0 "$head_pid" 2> /dev/null; then
        kill -TERM "$head_pid"
        wait "$head_pid" 2> /dev/null || true
    fi
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
where=(env -C "$PWD" python "$root/slime/train.py")
if [[ -n "${RAY_ADDRESS:-}" && "$RAY_ADDRESS" != *127.0.0.1* && "$RAY_ADDRESS" != *localhost* ]]; then
    where=(python slime/train.py) # another machine: it has only the copy that --working-dir sends
elif ! answers "$address"; then
    ray start --head --block --node-ip-address 127.0.0.1 --port 0 --disable-usage-stats --include-dashboard true \
        --dashboard-host 127.0.0.1 --dashboard-port "$dashboard_port" > /dev/null &
    head_pid=$!
    trap stop_own_head EXIT
    for _ in {1..60}; do
        if answers "$address"; then break; fi
        kill -0 "$head_pid" 2> /dev/null || { echo "Ray did not start; try: ray start --head --block" >&2; exit 1; }
        sleep 1
    done
    answers "$address" || { echo "Ray's dashboard did not answer at $address within 60 s" >&2; exit 1; }
fi

# A head of our own has this shell's environment already, secrets included; another cluster has only what is sent.
notes=/dev/stderr
if [[ -n "$head_pid" ]]; then notes=/dev/null; fi
environment="$(python -m slime.config.job_environment 2> "$notes")"

trap interrupted INT TERM
ray job submit --address "$address" --submission-id "$job" --working-dir "$root" \
    --runtime-env-json "$environment" -- "${where[@]}" "$@" &
wait $!
