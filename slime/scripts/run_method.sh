#!/usr/bin/env bash
# What the launch scripts of the methods share: sourced by each of them, and ends in launch.sh.
#
#   source …/slime/scripts/run_method.sh
#   run_method MODEL [--lora] [FLAG …]      MODEL: tiny, qwen3-4b, qwen3-8b
#
# The method is the folder that the script lies in: its custom_loss.py and its custom_rollout.py. Each array below can
# be replaced from the environment (its words are split at blanks and line ends), and what stands behind the command
# beats them all. Wherever an adapter is asked for (--lora, --use-lora, USE_LORA, LORA_ARGS, a file behind --config), its
# learning rate and its folders follow. Add --print-config to see what a run would be told; that needs no GPU.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi

# words NAME DEFAULT: makes NAME the array of the words in the variable NAME or, if that is empty, in DEFAULT.
words() {
    read -r -d '' -a "$1" <<< "${!1:-$2}" || true
}

# on_gpus DIR: Qwen3 weights with SGLang, the GPUs split between training and serving. A run downloads nothing: fetch
# the weights first (hf download Qwen/Qwen3-8B --local-dir DIR) and say where they are (MODEL_PATH=DIR).
on_gpus() {
    model_path="$1"
    judge="llm"
    places=(--backend sglang --train-gpus "${TRAIN_GPUS-0,1,2,3}" --rollout-gpus "${ROLLOUT_GPUS-4,5,6,7}")
    saving="--save-interval 50 --save-dir ${CKPT_SAVE_DIR:-./checkpoints/$run}"
    learning="--lr ${LEARNING_RATE:-1e-6} --weight-decay 0.01 --adam-beta1 0.9 --adam-beta2 0.98"
    if [[ -n "$lora" ]]; then learning="--lr ${LEARNING_RATE:-1e-5} --weight-decay 0"; fi
}

# The tiny model learns on this machine, without a GPU; whatever a run writes is under runs/.
on_this_machine() {
    model_path="$root/runs/tiny-model"
    judge="rule"
    local runs="$root/runs"
    if [[ -n "${RAY_JOB_CONFIG_JSON_ENV_VAR:-}" ]]; then runs="runs"; fi # Ray's copy goes with the job: --base-dir
    places=(--run-dir "$runs/$run")
    if [[ -z "${DATA_PATH:-}" ]]; then places+=(--rl-buffer-dir "$runs/$run/turns"); fi
    saving="--save-interval 1 --save-dir ${CKPT_SAVE_DIR:-$runs/$run/checkpoints}"
    local lr=5e-4
    if [[ -n "$lora" ]]; then lr=4e-3; fi
    learning="--lr ${LEARNING_RATE:-$lr} --weight-decay 0 --kl-loss-coef 0.1 --kl-loss-type full"
}

# make_tiny_model DIR FLAG …: unless there is one, the command only asks about settings, or a setting is wrong: that
# is said before minutes are spent on a model.
make_tiny_model() {
    local folder="$1"
    shift
    case " $* " in
        *" --print-config "* | *" --help "*) return ;;
    esac
    [[ -f "$folder/config.json" ]] && return
    python -m slime.config "$@"
    openclaw-rl tiny-model "$folder"
}

# trains_an_adapter FLAG …: whether a run given these flags, in this environment, would; every spelling is the loader's.
trains_an_adapter() {
    python -m slime.config --print-config "$@" 2> /dev/null | grep -q "^  use_lora: true"
}

run_method() {
    local folder model="$1" lora="" run argument flags=()
    folder="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)"
    shift
    for argument in "$@"; do
        if [[ "$argument" == --lora ]]; then argument=--use-lora; fi
        flags+=("$argument")
    done
    local said=() of_one
    for argument in CKPT_ARGS ROLLOUT_ARGS REWARD_ARGS OPTIMIZER_ARGS LORA_ARGS; do
        read -r -d '' -a of_one <<< "${!argument:-}" || true
        said+=("${of_one[@]}")
    done
    if trains_an_adapter "${said[@]}" "${flags[@]}"; then lora="-lora"; fi
    run="$model-$(basename "$folder")$lora" # qwen3-8b-openclaw-rl-lora

    local model_path judge places saving learning batch="" adapter=""
    case "$model" in
        tiny) on_this_machine ;;
        qwen3-4b) on_gpus Qwen/Qwen3-4B ;;
        qwen3-8b) on_gpus Qwen/Qwen3-8B ;;
        *) echo "no model $model is known here: tiny, qwen3-4b, qwen3-8b" >&2 && exit 2 ;;
    esac
    model_path="${MODEL_PATH:-${BASE_MODEL_PATH:-${CKPT_PATH:-$model_path}}}"
    if [[ -z "${BATCH_SIZE:-}" ]]; then batch="--rollout-batch-size 16"; fi # else it counts, times GRAD_ACCUM_STEPS
    if [[ -n "$lora" ]]; then adapter="--lora-rank ${LORA_RANK:-16} --lora-alpha ${LORA_ALPHA:-32}"; fi

    words CKPT_ARGS "$saving"
    words ROLLOUT_ARGS "$batch"
    words REWARD_ARGS "--judge $judge"
    words OPTIMIZER_ARGS "$learning"
    words LORA_ARGS "$adapter"

    if [[ -n "$lora" ]]; then LORA_ARGS=(--use-lora "${LORA_ARGS[@]}"); fi

    local told=(
        --model-path "$model_path"
        --custom-loss-function-path "$folder/custom_loss.py"
        --rollout-function-path "$folder/custom_rollout.py"
        --enable-rl-intercept
        "${places[@]}"
        "${CKPT_ARGS[@]}"
        "${ROLLOUT_ARGS[@]}"
        "${REWARD_ARGS[@]}"
        "${OPTIMIZER_ARGS[@]}"
        "${LORA_ARGS[@]}"
        "${flags[@]}"
    )
    if [[ "$model" == tiny ]]; then make_tiny_model "$model_path" "${told[@]}"; fi
    exec bash "$root/slime/scripts/launch.sh" "${told[@]}"
}
