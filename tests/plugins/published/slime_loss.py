"""A loss in slime's own call style: it finds each response in the packed logits by total and response lengths."""

import torch


def policy_gradient(args, batch, logits, sum_of_sample_mean):
    chosen, end = [], 0
    for ids, total, response in zip(
        batch["unconcat_tokens"], batch["total_lengths"], batch["response_lengths"], strict=True
    ):
        end += total
        rows = logits[0, end - response - 1 : end - 1] / args.rollout_temperature
        chosen.append(rows.log_softmax(-1).gather(-1, ids[-response:, None]).squeeze(-1))
    assert [len(mask) for mask in batch["loss_masks"]] == batch["response_lengths"]
    ratio = torch.exp(torch.cat(chosen) - torch.cat(batch["log_probs"]))
    loss = sum_of_sample_mean(-ratio * torch.cat(batch["advantages"]))
    return loss, {"pg_loss": loss.clone().detach()}
