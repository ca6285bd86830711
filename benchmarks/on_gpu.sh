#!/usr/bin/env bash
# What can only be measured on a GPU, in parts of at most 8 minutes, each with its baseline in the same run.
#
#   benchmarks/on_gpu.sh [--tiny] [--device cuda|cpu] [--out DIR] [PART…]
#
# Parts: losses engine-0.6b engine-4b trainer-0.6b trainer-4b serving-0.6b; all of them, one after the other, where none is
# named. DIR (benchmarks/results/gpu) gets PART.json, written anew after each figure. Weights are random: nothing is
# fetched, and neither Ray nor SGLang is needed. `--tiny --device cpu` runs every part on next to nothing.
# PYTHON names the interpreter (python3): it needs what requirements.txt lists, installed or on PYTHONPATH.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
device=cuda out="$here/results/gpu" tiny=() parts=()
while (($#)); do
  case "$1" in
    --tiny) tiny=(--tiny) ;;
    --device) device="$2" && shift ;;
    --out) out="$2" && shift ;;
    -*) echo "unknown flag $1: see the head of $0" >&2 && exit 2 ;;
    *) parts+=("$1") ;;
  esac
  shift
done
((${#parts[@]})) || parts=(losses engine-0.6b engine-4b trainer-0.6b trainer-4b serving-0.6b)
links="$(mktemp -d)" # the methods' folders under the names of their packages, where those are not installed
trap 'rm -rf "$links"' EXIT
for method in rl opd combine; do ln -s "$here/../openclaw-$method" "$links/openclaw_$method"; done
export PYTHONPATH="$here/random_weights:$here/gpu:$links:$here/../slime${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
failed=()
for part in "${parts[@]}"; do
  program="$here/gpu/${part%%-*}.py" shape="${part#*-}"
  [[ -f $program && $part =~ ^(losses|(engine|trainer|serving)-(tiny|small|0\.6b|4b))$ ]] ||
    { echo "no part $part: see the head of $0" >&2 && exit 2; }
  [[ $shape == "$part" ]] && shape=tiny
  echo "── $part"
  timeout 480 "${PYTHON:-python3}" "$program" --device "$device" --shape "$shape" "${tiny[@]}" --out "$out/$part.json" ||
    failed+=("$part")
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" >&2 && exit 1; }
