"""Code of the user's that replaces ours: found by path, checked at start-up, called by parameter name.

    --custom-loss-function-path my-method/custom_loss.py
          │ loading: file or module ─▶ object            (a stable module name; siblings importable)
          │ calling: its parameters ─▶ names on offer    (an unknown one is an error that lists them)
          ▼
    losses.load_loss · rewards.load_reward · hooks.load_hook(ROLLOUT, …)

Nothing is re-exported here: `losses` needs torch, and a server that only asks for a reward does not.
"""
