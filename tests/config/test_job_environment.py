"""What a submitted job is told of the shell it was submitted from."""

from __future__ import annotations

from slime.config.job_environment import job_environment


def test_settings_go_along_secrets_and_the_rest_of_the_shell_do_not():
    shell = {
        "MAJORITY_VOTE_N": "5",
        "OPENCLAW_RL_MAX_STALENESS": "2",
        "BATCH_SIZE": "8",
        "WANDB_MODE": "offline",
        "OPENCLAW_API_KEY": "hush",
        "TINKER_API_KEY": "hush",
        "WANDB_API_KEY": "hush",
        "RAY_ADDRESS": "auto",
        "HOME": "/home/me",
        "LEARNING_RATE": "",
    }
    environment, left_behind = job_environment(shell)
    assert environment == {
        "env_vars": {
            "BATCH_SIZE": "8",
            "MAJORITY_VOTE_N": "5",
            "OPENCLAW_RL_MAX_STALENESS": "2",
            "WANDB_MODE": "offline",
        },
        "excludes": [".git"],
    }
    assert left_behind == ["OPENCLAW_API_KEY", "TINKER_API_KEY"]
