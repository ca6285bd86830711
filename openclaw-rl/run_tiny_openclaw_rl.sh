#!/usr/bin/env bash
# Binary RL on a tiny model, on this machine, without a GPU: talk to http://127.0.0.1:8000/v1 and it learns.
#
# Every array can be replaced from the environment, every flag overridden behind the command:
#   ROLLOUT_ARGS="--rollout-batch-size 8" bash openclaw-rl/run_tiny_openclaw_rl.sh --port 8001
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
MODEL_PATH="${MODEL_PATH:-$root/runs/tiny-model}"

# the words of each, split at blanks and line ends
read -r -d '' -a CKPT_ARGS <<< "${CKPT_ARGS:---save-interval 1 --save-dir ${CKPT_SAVE_DIR:-$root/runs/tiny-openclaw-rl/checkpoints}}" || true
read -r -d '' -a ROLLOUT_ARGS <<< "${ROLLOUT_ARGS:---rollout-batch-size 16}" || true
read -r -d '' -a OPTIMIZER_ARGS <<< "${OPTIMIZER_ARGS:---lr 5e-4 --weight-decay 0 --kl-loss-coef 0.1 --kl-loss-type full}" || true
read -r -d '' -a REWARD_ARGS <<< "${REWARD_ARGS:---judge rule}" || true
read -r -d '' -a LORA_ARGS <<< "${LORA_ARGS:-}" || true

case " $* " in
    *" --print-config "* | *" --help "*) ;; # asks about settings only
    *) [[ -f "$MODEL_PATH/config.json" ]] || openclaw-rl tiny-model "$MODEL_PATH" ;;
esac

exec bash "$root/slime/scripts/launch.sh" \
    --model-path "$MODEL_PATH" \
    --custom-loss-function-path "$root/openclaw-rl/custom_loss.py" \
    --rollout-function-path "$root/openclaw-rl/custom_rollout.py" \
    --enable-rl-intercept \
    --rl-buffer-dir "$root/runs/tiny-openclaw-rl/turns" \
    --run-dir "$root/runs/tiny-openclaw-rl" \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${REWARD_ARGS[@]}" \
    "${LORA_ARGS[@]}" \
    "$@"
