import math

import pytest
import torch

from vime.algos.importance import truncated_importance
from vime.algos.losses import kl_penalty, policy_loss, token_weights
from vime.config.tree import AlgoConfig


def loss_and_grad(logprob, old, advantage, mask=1.0, algo=None, importance=None):
    logprobs = torch.tensor([logprob], requires_grad=True)
    loss, stats = policy_loss(logprobs, torch.tensor([old]), torch.tensor([advantage]), torch.tensor([mask]), algo or AlgoConfig(), importance)
    loss.sum().backward()
    return loss.item(), logprobs.grad.item(), stats


def test_on_policy_gradient_is_minus_the_advantage():
    loss, grad, stats = loss_and_grad(-1.0, -1.0, 2.0)
    assert (loss, grad) == (-2.0, -2.0)
    assert not stats["clipped_T"].any()


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "clipped"),
    [
        (math.log(1.3), 1.0, True),
        (math.log(1.27), 1.0, False),
        (math.log(0.79), -1.0, True),
        (math.log(0.81), -1.0, False),
        (math.log(1.3), -1.0, False),
        (math.log(0.7), 1.0, False),
    ],
)
def test_the_clip_binds_on_the_right_side_only(log_ratio, advantage, clipped):
    _, grad, stats = loss_and_grad(-1.0 + log_ratio, -1.0, advantage)
    assert bool(stats["clipped_T"][0]) is clipped
    assert (grad == 0.0) is clipped


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    loss, grad, stats = loss_and_grad(math.log(10.0), 0.0, -1.0, algo=AlgoConfig(dual_clip=3.0))
    assert loss == pytest.approx(3.0) and grad == 0.0 and bool(stats["clipped_T"][0])
    loss, grad, _ = loss_and_grad(math.log(10.0), 0.0, -1.0)
    assert loss == pytest.approx(10.0, rel=1e-5) and grad != 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
def test_finite_at_log_ratio_100(log_ratio, advantage):
    loss, grad, _ = loss_and_grad(log_ratio, 0.0, advantage)
    assert math.isfinite(loss) and math.isfinite(grad)


@pytest.mark.parametrize("filler", [0.0, -1e4, math.nan, math.inf])
def test_masked_positions_are_excluded_whatever_stands_there(filler):
    logprobs = torch.tensor([-1.0, filler], requires_grad=True)
    loss, _ = policy_loss(logprobs, torch.tensor([-1.2, filler]), torch.tensor([1.0, 5.0]), torch.tensor([1.0, 0.0]), AlgoConfig(), torch.tensor([1.0, filler]))
    loss.sum().backward()
    assert loss[1].item() == 0.0 and logprobs.grad[1].item() == 0.0 and math.isfinite(loss[0].item())


def test_nan_of_a_used_token_stays_visible():
    loss, _, _ = loss_and_grad(math.nan, 0.0, 1.0)
    assert math.isnan(loss)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_is_zero_where_the_policies_agree_and_finite_far_apart(estimator):
    for difference in (0.0, 100.0, -100.0):
        logprobs = torch.tensor([-1.0], requires_grad=True)
        penalty = kl_penalty(logprobs, logprobs.detach() + difference, estimator)
        penalty.sum().backward()
        assert math.isfinite(penalty.item()) and math.isfinite(logprobs.grad.item())
        if difference == 0.0:
            assert penalty.item() == 0.0


def test_k3_pulls_towards_the_reference_even_where_exp_would_overflow():
    logprobs = torch.tensor([-100.0], requires_grad=True)
    kl_penalty(logprobs, torch.tensor([0.0]), "k3").sum().backward()
    assert logprobs.grad.item() < 0  # descending raises the log-prob


def test_k3_is_unbiased_for_the_kl():
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.4, 0.4, 0.2])
    exact = (p * (p / q).log()).sum()
    assert (p * kl_penalty(p.log(), q.log(), "k3")).sum().item() == pytest.approx(exact.item(), rel=1e-5)


def test_token_weights_sum_to_one_over_micro_batches():
    tokens = torch.tensor([2, 2, 2, 2, 1])  # of the sequence of each token in the loss
    assert token_weights(tokens, 5, 3, "token").sum().item() == pytest.approx(1.0)
    assert token_weights(tokens, 5, 3, "sequence").tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 3])
    cut = token_weights(tokens[:3], 5, 3, "sequence").sum() + token_weights(tokens[3:], 5, 3, "sequence").sum()  # in the middle of a sequence
    assert cut.item() == pytest.approx(1.0)


def test_truncated_importance():
    weights, capped = truncated_importance(torch.tensor([-1.0, -1.0, 50.0]), torch.tensor([-1.0, -3.0, -50.0]), 2.0)
    assert weights.tolist() == [1.0, 2.0, 2.0] and capped.tolist() == [False, True, True]
