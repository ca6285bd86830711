"""The embedded trainer: a batch of samples in, one update of the weights out.

    Batch ─ Prescorer ─▶ with_advantages ─▶ Rows ─ split ─▶ optimizer steps
    each step: Rows ─ plan ─▶ this rank's micro-batches ─ Scorer ─▶ loss ─▶ gradients
                                                              sum over ranks ─▶ Optimizer.apply

Sizes of trajectories are counted over the step before it is planned, so its loss is the same however it is
packed and on however many ranks. Every rank is given the whole batch and ends with the same weights.
"""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from slime.algorithms.advantages import MovingBaseline
from slime.algorithms.reductions import num_trajectories, sum_of_means, trajectory_sizes
from slime.config.checks.contradictions import check_kl_is_read, check_loss_settings
from slime.config.gpus import compute_device
from slime.config.sections import LoraConfig, LossConfig, TrainerConfig
from slime.data.estimates import reduction_of, with_advantages
from slime.data.fitness import sort_out
from slime.data.packing import plan, split_evenly
from slime.data.prefix_sharing import share_prefixes
from slime.data.rows import Row, rows
from slime.errors import TrainerError
from slime.plugins.losses import LossHook
from slime.plugins.settings import plugin_settings
from slime.protocols import Resumed
from slime.trainers.checkpoint import (
    WEIGHTS_DIR,
    TrainerState,
    read_checkpoint,
    resumable_checkpoint,
    write_checkpoint,
)
from slime.trainers.policy_hooks import PolicyLossHooks
from slime.trainers.prescoring import Prescorer
from slime.trainers.ranks import Ranks
from slime.trainers.scoring import Scorer
from slime.trainers.torch.critic import Critic
from slime.trainers.torch.lora import seed_dropout
from slime.trainers.torch.optimizer import NO_GRADIENT, Applied, Optimizer
from slime.trainers.torch.policy import Policy, compute_dtype
from slime.types import Batch, Sample, TrainReport
from slime.weights.directories import Manifest, link_directory

log = logging.getLogger(__name__)

_RANDOM_STATE = "random.torch"
_WIDE_FOR_REPLIES = 0.01
"""Bounds of a reply's ratio that are those of a token's."""


class TorchTrainer:
    """Trains a transformers causal language model, all of it or a LoRA adapter; a `slime.protocols.Trainer`.

    Args:
        model_dir: the model as the user gave it: where training starts, and the reference of the KL.
        loss_fn: from `slime.plugins.losses.load_loss`.
        rank, world_size: of data parallelism; with several, call `ranks.join_ranks` first.
        device: `auto` is CUDA where there is a GPU.
        dtype: to compute in, as engines do; `auto` is float32 on the CPU and the model's own on a GPU. What is
            trained, moments and log-probs are float32.
        lora: with `use_lora` only an adapter is trained, and the reference is the same model without it.
        keep_checkpoints: newest checkpoints that `save` leaves.
        settings: what the loss is offered as `config`; the loss's section by itself unless given.
        hooks: of the user's on the policy loss.

    Attributes:
        step: updates made.
        version: the number that these weights, or the last before them on the way here, were published under.
        consumed: by update, the turns it trained, of every update since the last `save`. After `load`, those that
            the checkpoint was the first to hold, whatever the store had time to write down.
        baseline: of plain REINFORCE.
    """

    def __init__(
        self,
        model_dir: str | Path,
        trainer: TrainerConfig,
        loss: LossConfig,
        *,
        loss_fn: LossHook,
        lora: LoraConfig = LoraConfig(),
        rank: int = 0,
        world_size: int = 1,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        keep_checkpoints: int = 3,
        settings: Mapping[str, Any] | None = None,
        hooks: PolicyLossHooks = PolicyLossHooks(),
    ) -> None:
        check_loss_settings(loss)
        check_kl_is_read(loss, loss_fn.call.place, loss_fn.asks_for)
        torch.manual_seed(trainer.seed)
        self.step = 0
        self.version: int | None = 0
        self.consumed: dict[int, tuple[str, ...]] = {}
        self._published: tuple[int, Path] | None = None
        self._model_dir = Path(model_dir)
        self._config = trainer
        self._loss = loss
        self._keep = keep_checkpoints
        self._ranks = Ranks(rank, world_size)
        self._lora = lora
        adapted = lora if lora.use_lora else None
        place = torch.device(compute_device(device))
        compute_in = compute_dtype(dtype, place, self._model_dir)
        served = None if dtype == "auto" else compute_in
        self._policy = Policy(self._model_dir, place, compute_in, lora=adapted, seed=trainer.seed, served_dtype=served)
        if trainer.gradient_checkpointing:
            self._policy.checkpoint_activations()
        reference = self._policy.reference() if loss.kl_loss_coef or loss.kl_coef else None
        self._optimizer = Optimizer(self._policy.parameters(), trainer, self._policy.refresh)
        self.baseline = MovingBaseline(loss.baseline_decay)
        self._reduction = reduction_of(loss)
        has_critic = loss.advantage_estimator == "ppo"
        self._critic = Critic(self._policy, self._model_dir, trainer, loss, adapted) if has_critic else None
        offered = {**plugin_settings(loss), **(settings or {})}
        self._scorer = Scorer(self._policy.forward, reference, place, self._reduction, loss_fn, offered, hooks)
        values = None if self._critic is None else self._critic.values
        self._prescore = Prescorer(trainer, loss, loss_fn, self._scorer.score, values, self._ranks)
        if loss.behaviour_correction == "none":
            log.warning("behaviour_correction=none: samples of older weights are trained as though they were fresh")
        if loss.advantage_estimator == "gspo" and max(loss.eps_clip, loss.eps_clip_high) >= _WIDE_FOR_REPLIES:
            log.warning(
                "gspo: the ratio of a whole reply moves by thousandths, and eps_clip=%g eps_clip_high=%g hardly ever "
                "hold one; its paper has --eps-clip 3e-4 --eps-clip-high 4e-4",
                *(loss.eps_clip, loss.eps_clip_high),
            )

    def train(self, batch: Batch) -> TrainReport:
        """Make one update from a batch; of the critic alone during the first `num_critic_only_steps`.

        Samples that cannot be trained are left out, each by itself, and the report names their turns. A batch that
        has no others, or whose every optimizer step was skipped, changes nothing, its turns are not consumed, and the
        report says why. Where that is that nothing was to be learned, its rewards stay in the moving baseline.

        Raises:
            PluginError: the loss gave no loss. The trainer is as it was before.
        """
        found = sort_out(batch, self._policy.vocab_size)
        for reason, number in found.reasons.items():
            log.warning("samples left out of the update step=%d samples=%d reason=%r", self.step + 1, number, reason)
        if not found.fit.groups:
            why = "; ".join(found.reasons) or "the batch is empty"
            return TrainReport(self.step, {}, skipped=f"nothing to train: {why}", left_out=found.left_out)
        return replace(self._train(found.fit, sum(found.reasons.values())), left_out=found.left_out)

    def _train(self, batch: Batch, num_left_out: int) -> TrainReport:
        before = self.baseline.state()
        if self._lora.use_lora and self._lora.lora_dropout:
            seed_dropout(self._config.seed, self.step, self._ranks.rank)
        try:
            samples, metrics = with_advantages(self._prescore(batch), self._loss, self.baseline)
            steps = self._split(samples)
            if not steps:
                self.baseline.restore(before)
                return TrainReport(self.step, metrics, skipped="nothing to train: the estimator dropped every token")
            results = [self._optimize(step) for step in steps]
        except BaseException:
            self.baseline.restore(before)
            self._optimizer.discard()
            if self._critic is not None:
                self._critic.discard()
            raise
        reasons = [reason for _, reason in results if reason]
        names = dict.fromkeys(name for found, _ in results for name in found)
        metrics |= {name: statistics.fmean(found[name] for found, _ in results if name in found) for name in names}
        metrics["train/skipped_steps"] = float(self._optimizer.num_skipped)
        metrics["train/left_out_samples"] = float(num_left_out)
        if len(reasons) == len(results):
            if set(reasons) != {NO_GRADIENT}:  # scores without a gradient are what later ones are compared with
                self.baseline.restore(before)
            return TrainReport(self.step, metrics, skipped=reasons[0])
        self.step += 1
        self.consumed[self.step] = batch.turn_ids
        return TrainReport(self.step, metrics)

    def save(self, checkpoint_dir: Path) -> Path:
        """Write `checkpoint-<step>` in the directory given. Rank 0 writes; the others only say where."""
        consumed, self.consumed = self.consumed, {}
        if self._ranks.rank > 0:
            return Path(checkpoint_dir) / f"checkpoint-{self.step}"
        state = TrainerState(
            step=self.step,
            num_optimizer_steps=self._optimizer.num_steps,
            num_skipped=self._optimizer.num_skipped,
            consumed=consumed,
            baseline=self.baseline.state(),
            version=self.version,
            config={"trainer": asdict(self._config), "loss": asdict(self._loss), "lora": asdict(self._lora)},
        )
        tensors = self._optimizer.state() | {_RANDOM_STATE: torch.get_rng_state()}
        if self._critic is not None:
            tensors |= self._critic.state()
        place = Path(checkpoint_dir)
        return write_checkpoint(place, state, write_weights=self._write_trained, tensors=tensors, keep=self._keep)

    def start_anew(self, adapter_name: str) -> None:
        """Begin with a new adapter at step 0, as though the run had just started.

        Raises:
            TrainerError: all weights are trained, or a critic beside them: there is no way back.
        """
        if self._policy.lora is None or self._critic is not None:
            raise TrainerError("only a run that trains an adapter, and nothing beside it, can begin anew")
        self._policy.lora.reset()
        self._policy.adapter_name = adapter_name
        self._go_on(TrainerState(0, 0, 0, version=0), {})
        torch.manual_seed(self._config.seed)

    def load(self, checkpoint: Path) -> int:
        """Go on from a checkpoint, `<save_dir>/checkpoint-7` or `<save_dir>/checkpoint-latest`; returns its step.

        Raises:
            WeightsError: it is corrupt or of another model; the message names the newest good one.
        """
        checkpoint = Path(checkpoint).resolve()
        state, tensors = read_checkpoint(checkpoint)
        self._policy.load(checkpoint / WEIGHTS_DIR)
        self._go_on(state, tensors)
        if self._critic is not None:
            self._critic.restore(tensors)
        torch.set_rng_state(tensors[_RANDOM_STATE])
        return self.step

    def _go_on(self, state: TrainerState, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer.restore(tensors, num_steps=state.num_optimizer_steps, num_skipped=state.num_skipped)
        self.baseline.restore(state.baseline)
        self.step, self.version, self.consumed = state.step, state.version, dict(state.consumed)
        self._published = None

    def resume(self, save_dir: Path, wanted: str = "auto") -> Resumed:
        """Load a checkpoint; `auto` is the newest that verifies, `none` the model as given.

        Raises:
            WeightsError: the checkpoint that was asked for by name is corrupt or of another model.
        """
        checkpoint = None if wanted == "none" else Path(wanted).resolve()
        if wanted == "auto":
            checkpoint = resumable_checkpoint(save_dir)
        if checkpoint is None:
            return Resumed(0, {}, None)
        return Resumed(self.load(checkpoint), dict(self.consumed), checkpoint, self.version)

    def publish(self, weights_dir: Path, version: int | None = None, adapter: str = "") -> Path:
        """Write the weights alone, for engines, in the type that they serve; returns the directory. Rank 0 writes.

        Args:
            version: the number they are to be known by; the step unless given.
            adapter: what an adapter is published as; the name it began with unless given.

        Raises:
            WeightsError: they are not fit to be served.
        """
        self.version = self.step if version is None else version
        self._policy.adapter_name = adapter or self._policy.adapter_name
        if self._ranks.rank == 0:
            self._policy.publish(weights_dir, self.version)
            self._published = self.step, weights_dir
        return weights_dir

    def _write_trained(self, weights_dir: Path, step: int) -> Manifest:
        """The weights of a checkpoint: linked to what was just published where that is the same, else written."""
        if self._published is not None and self._policy.serves_what_it_trains:
            published_step, published_dir = self._published
            if published_step == step and published_dir.is_dir():
                return link_directory(published_dir, weights_dir, step)
        return self._policy.write(weights_dir, step)

    def _split(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """The samples of each optimizer step; a trajectory is never divided between two."""
        trajectories: dict[str, list[Sample]] = {}
        for index, sample in enumerate(samples):
            if sample.num_trainable_tokens:
                trajectories.setdefault(sample.trajectory_id or f"sample {index}", []).append(sample)
        whole = list(trajectories.values())
        sizes = [sum(sample.num_trainable_tokens for sample in trajectory) for trajectory in whole]
        runs = split_evenly(sizes, self._config.num_steps_per_rollout)
        return [[sample for index in run for sample in whole[index]] for run in runs]

    def _optimize(self, samples: Sequence[Sample]) -> tuple[dict[str, float], str]:
        """One optimizer step: its metrics, and why it was skipped if it was."""
        step_rows = rows(samples)
        counts = [row.num_trainable for row in step_rows]
        trajectory_ids = [sample.trajectory_id or f"sample {i}" for i, sample in enumerate(samples)]
        sizes = trajectory_sizes(trajectory_ids, counts)
        divisor = self._reduction.divisor(num_trajectories(trajectory_ids, counts), sum(counts))
        total_weight = float(self._reduction.weights(sizes, counts).sum())
        if not self._scorer.sees_samples:
            step_rows, sizes = share_prefixes(step_rows, trajectory_ids, sizes)
        lengths = [row.length for row in step_rows]
        totals: Counter[str] = Counter()
        for micro in plan(lengths, self._config.max_tokens_per_gpu, self._ranks.world_size)[self._ranks.rank]:
            totals.update(self._accumulate([step_rows[i] for i in micro], [sizes[i] for i in micro], divisor))
        metrics = self._ranks.sum_metrics(totals)
        # The loss divisor may differ from the total token weight (dr_grpo): rescaled, train/ metrics are means.
        metrics = {n: v * divisor / total_weight if n.startswith("train/") else v for n, v in metrics.items()}
        applied = self._apply(metrics)
        metrics |= {
            "train/grad_norm": applied.grad_norm,
            "train/learning_rate": applied.learning_rate,
            "train/tokens": float(sum(counts)),
            "train/fed_tokens": float(sum(lengths)),
        }
        return metrics, applied.skipped

    def _apply(self, metrics: dict[str, float]) -> Applied:
        """Let the optimizers consume what all ranks have accumulated; the critic's figures go into `metrics`.

        A batch that changes nothing in the policy does not change the critic either, except while it is trained alone.
        """
        applied = None
        if self._trains_policy:
            self._ranks.sum_gradients(self._optimizer.parameters.values())
            applied = self._optimizer.apply(metrics["loss/total"])
        if self._critic is not None:
            is_skipped = applied is not None and bool(applied.skipped)
            of_critic = self._critic.step(metrics["loss/value"], self._ranks, is_skipped=is_skipped)
            metrics["train/critic_grad_norm"] = of_critic.grad_norm
            applied = applied or replace(of_critic, grad_norm=0.0, learning_rate=0.0)
        assert applied is not None  # without a critic the policy is always trained
        return applied

    @property
    def _trains_policy(self) -> bool:
        return self._critic is None or self.step >= self._loss.num_critic_only_steps

    def _accumulate(self, micro: Sequence[Row], sizes: Sequence[int], divisor: int) -> dict[str, float]:
        """Add one micro-batch's gradient to what is there; its share of every metric."""
        with torch.set_grad_enabled(self._trains_policy):
            scored = self._scorer.score(micro, sizes)
            loss, metrics = self._scorer.evaluate(scored)
        if self._trains_policy and loss.requires_grad:  # nothing depends on the policy where no teacher spoke
            (loss / divisor).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            mismatch = (scored.policy_logprobs - scored.flat.streams["rollout_logprobs"]).abs()
            metrics = {name if "/" in name else f"loss/{name}": value for name, value in metrics.items()} | {
                "loss/total": float(loss),
                "loss/entropy": float(sum_of_means(scored.entropies, scored.weights)),
                "train/train_rollout_logprob_abs_diff": float(sum_of_means(mismatch, scored.weights)),
            }
        metrics = {name: value / divisor for name, value in metrics.items()}
        if self._critic is not None:
            metrics["loss/value"] = self._critic.accumulate(scored.flat, scored.hidden, scored.weights, divisor)
        return metrics
