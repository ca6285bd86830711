#!/usr/bin/env bash
# Binary RL on a tiny model, training a LoRA adapter, on this machine, without a GPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../slime/scripts/run_method.sh"
run_method tiny --lora "$@"
