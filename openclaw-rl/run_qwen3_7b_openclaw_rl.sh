#!/usr/bin/env bash
# Binary RL on a Qwen3 model with SGLang, GPUs split between training and serving.
#
# The name is the published one, but there is no Qwen3 of 7B parameters: MODEL_PATH defaults to Qwen/Qwen3-8B, the
# nearest there is. A run downloads nothing, so fetch it first and say where it is:
#   hf download Qwen/Qwen3-8B --local-dir ~/models/Qwen3-8B
#   MODEL_PATH=~/models/Qwen3-8B bash openclaw-rl/run_qwen3_7b_openclaw_rl.sh
# Every array can be replaced from the environment, every flag overridden behind the command; add --print-config to
# see what a run would be told (needs no GPU).
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
MODEL_PATH="${MODEL_PATH:-Qwen/Qwen3-8B}"

# the words of each, split at blanks and line ends
read -r -d '' -a CKPT_ARGS <<< "${CKPT_ARGS:---save-interval 50 --save-dir ${CKPT_SAVE_DIR:-./checkpoints/openclaw-rl}}" || true
read -r -d '' -a ROLLOUT_ARGS <<< "${ROLLOUT_ARGS:---rollout-batch-size 16}" || true
read -r -d '' -a OPTIMIZER_ARGS <<< "${OPTIMIZER_ARGS:---lr 1e-6 --weight-decay 0.01 --adam-beta1 0.9 --adam-beta2 0.98}" || true
read -r -d '' -a REWARD_ARGS <<< "${REWARD_ARGS:---judge llm}" || true
read -r -d '' -a LORA_ARGS <<< "${LORA_ARGS:-}" || true

exec bash "$root/slime/scripts/launch.sh" \
    --model-path "$MODEL_PATH" \
    --backend sglang \
    --train-gpus "${TRAIN_GPUS-0,1,2,3}" \
    --rollout-gpus "${ROLLOUT_GPUS-4,5,6,7}" \
    --custom-loss-function-path "$root/openclaw-rl/custom_loss.py" \
    --rollout-function-path "$root/openclaw-rl/custom_rollout.py" \
    --enable-rl-intercept \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${REWARD_ARGS[@]}" \
    "${LORA_ARGS[@]}" \
    "$@"
