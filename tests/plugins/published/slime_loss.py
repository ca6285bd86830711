"""A loss in slime's own call style."""


def policy_gradient(args, batch, logits, sum_of_sample_mean):
    chosen = logits.log_softmax(-1).gather(-1, batch["targets"].unsqueeze(-1)).squeeze(-1)
    loss = -sum_of_sample_mean(chosen * batch["advantages"]) * (1 + args.kl_loss_coef)
    return loss, {"chosen": chosen.mean().detach()}
