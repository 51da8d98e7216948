import math

import torch

from vime.algos.sampler_check import MomentSums, nll_minus_entropy_z


def draw(temperature_sampled, temperature_assumed, n=4000):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 12, generator=generator) * 2
    tokens = torch.multinomial((logits / temperature_sampled).softmax(-1), 1, generator=generator)
    logp = (logits / temperature_assumed).log_softmax(-1)
    return -logp.gather(-1, tokens)[:, 0], -(logp.exp() * logp).sum(-1)


def test_a_right_sampler_stays_within_four_standard_errors_and_a_wrong_one_does_not():
    mask = torch.ones(4000)
    assert abs(nll_minus_entropy_z(*draw(1.0, 1.0), mask)) < 4
    assert nll_minus_entropy_z(*draw(0.8, 1.0), mask) < -6
    assert nll_minus_entropy_z(*draw(1.25, 1.0), mask) > 6


def test_parts_add_up_to_the_whole_and_masked_positions_do_not_count():
    nll, entropy = draw(1.0, 1.0)
    mask = (torch.arange(4000) % 3 > 0).float()
    parts = MomentSums.of(nll[:1000], entropy[:1000], mask[:1000]) + MomentSums.of(nll[1000:], entropy[1000:], mask[1000:])
    spoiled = torch.where(mask > 0, nll, torch.tensor(math.nan))
    assert math.isclose(parts.z(), nll_minus_entropy_z(spoiled, entropy, mask), rel_tol=1e-9)


def test_too_few_tokens_is_nan_not_zero():
    assert math.isnan(nll_minus_entropy_z(torch.ones(1), torch.zeros(1), torch.ones(1)))
