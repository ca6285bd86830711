"""Rollouts over prompts: groups drawn from a file, generated, rewarded, filtered, batched and evaluated."""
