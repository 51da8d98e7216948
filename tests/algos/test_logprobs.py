import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from vime.algos.logprobs import vocab_parallel_logprobs_entropy


def reference(logits, targets, temperature):
    logp = (logits.float() / temperature).log_softmax(-1)
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_values_and_gradients_equal_autograd(temperature):
    torch.manual_seed(0)
    logits = torch.randn(6, 11) * 3
    targets = torch.randint(0, 11, (6,))
    a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    logp, entropy = vocab_parallel_logprobs_entropy(a, targets, temperature)
    want_logp, want_entropy = reference(b, targets, temperature)
    torch.testing.assert_close(logp, want_logp)
    torch.testing.assert_close(entropy, want_entropy)
    weights = torch.randn(2, 6)
    (logp * weights[0] + entropy * weights[1]).sum().backward()
    (want_logp * weights[0] + want_entropy * weights[1]).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_the_log_prob_is_of_the_distribution_sampled_from():
    logp, _ = vocab_parallel_logprobs_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), 0.5)
    assert logp.item() == pytest.approx(-0.0181, abs=1e-4)


def test_columns_that_pad_the_vocabulary_have_no_probability():
    logits = torch.randn(3, 8)
    targets = torch.tensor([0, 4, 2])
    padded = torch.cat([logits[:, :5], torch.full((3, 3), 50.0)], 1).requires_grad_()
    logp, entropy = vocab_parallel_logprobs_entropy(padded, targets, 1.0, None, 5)
    want = reference(logits[:, :5], targets, 1.0)
    torch.testing.assert_close(logp, want[0])
    torch.testing.assert_close(entropy, want[1])
    (logp + entropy).sum().backward()
    assert padded.grad[:, 5:].abs().max() == 0


def test_entropy_rises_when_only_the_entropy_term_is_on():
    logits = torch.tensor([[1.0, -1.0, 0.5]], requires_grad=True)
    _, before = vocab_parallel_logprobs_entropy(logits, torch.tensor([0]))
    before.sum().backward()
    _, after = vocab_parallel_logprobs_entropy(logits + 0.1 * logits.grad, torch.tensor([0]))
    assert after.item() > before.item()


def test_temperature_zero_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        vocab_parallel_logprobs_entropy(torch.zeros(1, 2), torch.tensor([0]), 0.0)


def _rank(rank, port, logits, targets, out):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    part = logits.chunk(2, -1)[rank].clone().requires_grad_()
    logp, entropy = vocab_parallel_logprobs_entropy(part, targets, 0.8, dist.group.WORLD, 9)
    (logp + 0.3 * entropy).sum().backward()
    out.put((rank, logp.detach().numpy().copy(), entropy.detach().numpy().copy(), part.grad.numpy().copy()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.heavy
def test_two_ranks_equal_one():
    torch.manual_seed(1)
    logits, targets = torch.randn(5, 10), torch.randint(0, 9, (5,))
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_rank, args=(rank, port, logits, targets, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    parts = {item[0]: item[1:] for item in (queue.get(timeout=120) for _ in range(2))}
    for process in processes:
        process.join(30)
    whole = logits.clone().requires_grad_()
    logp, entropy = vocab_parallel_logprobs_entropy(whole, targets, 0.8, None, 9)
    (logp + 0.3 * entropy).sum().backward()
    for rank in range(2):
        torch.testing.assert_close(torch.from_numpy(parts[rank][0]), logp.detach())
        torch.testing.assert_close(torch.from_numpy(parts[rank][1]), entropy.detach())
        torch.testing.assert_close(torch.from_numpy(parts[rank][2]), whole.grad.chunk(2, -1)[rank])
