"""Files of published pages that are no plug-in of ours: what to do instead, in one line.

    --rollout-function-path rollout_opd.py ─▶ it defines collect_opd_trajectory ─▶ "agent loops of this style are …"

The file is read and not run: such sketches import what is not there and call what they do not define.
"""

from __future__ import annotations

import ast
from pathlib import Path

_LOOP = (
    "agent loops of this style are --custom-generate-function-path, with --prompt-data: write "
    "async def generate(args, sample, sampling_params)"
)

ANSWERS = {
    "collect_opd_trajectory": f"{_LOOP}; hints and teachers are openclaw-opd's own, on conversations",
    "terminal_rollout": f"{_LOOP}; terminal environments are not built yet",
    "gui_rollout": f"{_LOOP}; screens and vision models are not built yet",
    "train_toolcall_agent": f"{_LOOP}; tool environments are not built yet, and slime/train.py trains",
    "SessionAwareProcessor": (
        "turns are kept by session and trained as one trajectory in any case; the class, for looking at rollouts, is "
        "openclaw_combine.session_processor.SessionAwareProcessor"
    ),
    "setup_lora_model": (
        "an adapter is set up by flags: --use-lora --lora-rank 16 --lora-alpha 32 --lora-dropout 0.1 "
        "--lora-target-modules q_proj,k_proj,v_proj,o_proj"
    ),
    "setup_wandb_logging": "Weights & Biases is set up by flags: --use-wandb, with WANDB_MODE=online",
}
"""What a published file defines → what does its job here."""


def answer_to(file: Path, wanted: list[str]) -> str:
    """What to do instead of naming this file; empty where it may be a plug-in.

    Args:
        wanted: the names that the hook would take.

    >>> answer_to(Path("rollout_opd.py"), ["generate_rollout"])
    'agent loops of this style are --custom-generate-function-path, …'
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # loading it says what is wrong with it
        return ""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [node.name for node in tree.body if isinstance(node, kinds)]
    if any(name in defined and name not in ANSWERS for name in wanted):
        return ""
    return next((ANSWERS[name] for name in defined if name in ANSWERS), "")
