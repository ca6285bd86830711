"""What a published spelling may come to: settings of ours and a notice, or a refusal in one line.

    becomes("loss.eps_clip")("0.1", {}) ─▶ {"loss.eps_clip": "0.1"}, "taken as --eps-clip 0.1"
    refused("not built yet")("8", {})   ─▶ ConfigError: not built yet

Which spelling comes to what is the table in `aliases`.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slime.config.sections import flag_of
from slime.errors import ConfigError, nearest

Values = dict[str, Any]
"""Settings by path: `{"loss.eps_clip": "0.1"}`."""

Rule = Callable[[Any, Mapping[str, Any]], tuple[Values, str]]
"""(value, everything else written in the same place) → (settings, what to tell). Raises `ConfigError` to refuse."""

METHODS = {"binary": "openclaw_rl", "opd": "openclaw_opd", "combine": "openclaw_combine"}
"""What the published pages call a method, and the package that is it."""


def _taken(values: Values, remark: str = "") -> tuple[Values, str]:
    """Settings, with a notice of the flags that would have said the same."""
    return values, "taken as " + " ".join(f"{flag_of(path)} {value}" for path, value in values.items()) + remark


def becomes(*paths: str) -> Rule:
    """Another name of a setting, or of several that it sets together."""
    return lambda value, _: _taken(dict.fromkeys(paths, value))


def refused(why: str) -> Rule:
    """Something that is not there, or cannot be meant; switched off, it is no wish and passes."""

    def rule(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
        if _is_off(value):
            return {}, ""
        raise ConfigError(why)

    return rule


def always(what: str, *accepted: str) -> Rule:
    """What is so in any case: the accepted words pass with a notice, others are refused."""

    def rule(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
        if str(value).lower() in accepted:
            return {}, what
        raise ConfigError(f"{value!r} cannot be had: {what}")

    return rule


def remark(what: str) -> Rule:
    """A variable that may well stand in the environment for other reasons: said, not refused."""
    return lambda value, _: ({}, what)


def needless(what: str) -> Rule:
    """A flag or key about something that this run does not have: said, with its value; switched off, it is no wish."""
    return lambda value, _: ({}, "") if _is_off(value) else ({}, f"{value} {what}")


def times(factor_name: str) -> Rule:
    """A batch size that is multiplied by the accumulation steps written beside it."""

    def rule(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
        factor = given.get(factor_name, 1)
        if not (_is_count(value) and _is_count(factor)):
            raise ConfigError(f"{value!r} times {factor_name} {factor!r} is not a number of samples")
        bound = "; an update takes them all, and memory is bounded by --max-tokens-per-gpu" if int(factor) > 1 else ""
        return _taken({"rollout.rollout_batch_size": int(value) * int(factor)}, bound)

    return rule


def factor_of(batch_name: str) -> Rule:
    """Accumulation steps: they say nothing without the batch size they multiply."""

    def rule(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
        if batch_name in given:
            return {}, f"multiplies {batch_name}"
        if _is_count(value) and int(value) == 1:
            return {}, ""
        raise ConfigError(
            f"needs {batch_name} beside it: one update takes their product; --max-tokens-per-gpu cuts micro-batches"
        )

    return rule


def switches(path: str, value: str) -> Rule:
    """A switch that stands for one value of a setting; switched off, it says nothing."""
    return lambda given, _: ({}, "") if _is_off(given) else _taken({path: value})


def same_as(*model_names: str) -> Rule:
    """A tokenizer path: accepted where it says what is so, that the tokenizer is the model's own."""

    def rule(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
        model_dirs = [given[name] for name in model_names if given.get(name)]
        if value in model_dirs or any(_is_same_tokenizer(value, model_dir) for model_dir in model_dirs):
            return {}, "the tokenizer is read from the model directory"
        raise ConfigError("the tokenizer is read from the model directory; put its files there and leave this out")

    return rule


def _is_same_tokenizer(directory: Any, model_dir: Any) -> bool:
    own, model = (Path(str(place)).expanduser() / "tokenizer.json" for place in (directory, model_dir))
    return own.is_file() and model.is_file() and filecmp.cmp(own, model, shallow=False)


def samples_to_updates(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
    """Warm-up counted in samples: divided by the batch size given in the same place."""
    batch = given.get("--rollout-batch-size", 0)
    if not (_is_count(value) and _is_count(batch) and int(batch)):
        raise ConfigError("counts samples and needs --rollout-batch-size beside it; --lr-warmup-steps counts updates")
    return _taken({"trainer.lr_warmup_steps": -(-int(value) // int(batch))})


def voting(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    if _is_off(value):
        return _taken({"judge.majority_vote_n": 1})
    return {}, "every llm verdict is a majority vote; --majority-vote-n says of how many"


def judge_model(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    """A directory, or the name of a model that somebody serves: `gpt-4`."""
    name = str(value)
    if "/" in name or name.startswith((".", "~")) or Path(name).is_dir():
        return _taken({"judge.judge": "llm", "judge.judge_model_path": value})
    return _taken({"judge.judge": "llm", "judge.judge_model": name}, ", at --judge-url")


def value_clip(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    """How far a value may move in one batch; published as a switch too, which stands for the default."""
    is_on = str(value).strip().lower() in ("true", "yes", "on")
    return _taken({"loss.value_clip": "0.2" if is_on else "0" if _is_off(value) else value})


def evaluation_every(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
    if given.get("prompts.eval_prompt_data"):
        return _taken({"prompts.eval_interval": value})
    return {}, (
        f"no effect: a run evaluates on prompts, --eval-prompt-data NAME=FILE --eval-interval {value}; "
        "a checkpoint is evaluated by openclaw-test/run_eval.sh"
    )


def method(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    package = METHODS.get(str(value))
    if package is None:
        raise ConfigError(f"{value!r} is not one of {', '.join(METHODS)}{nearest(str(value), METHODS)}")
    hooks = {"custom_loss_function_path": "custom_loss", "rollout_function_path": "custom_rollout"}
    return _taken({f"plugin.{name}": f"{package}.{file}" for name, file in hooks.items()})


def _is_off(value: Any) -> bool:
    return str(value).strip().lower() in ("false", "0", "no", "off")


def _is_count(value: Any) -> bool:
    return str(value).isdecimal()
