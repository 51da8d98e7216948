"""TRL's GRPOTrainer on the same model, prompts, sampling, loss and optimizer as a vime recipe, waiting for its turn before every block of steps.

Run by vs_trl.py with the Python of TRL's own environment; imports nothing of vime. Argument: the descriptor of a connection to vs_trl.py, which sends the job
(`Job` in vs_trl.py as a dict) first.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    job = pipe.recv()
    import torch

    torch.set_num_threads(job["threads"])
    trainer, records = build(job, pipe)
    pipe.send(("ready", []))
    trainer.train()
    pipe.send(("end", records))


def build(job: dict[str, Any], pipe: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The trainer, and the list of step records that it fills."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from transformers.utils import logging
    from trl import GRPOTrainer

    logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    records: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_of(job, tokenizer, records),
        args=settings_of(job),
        train_dataset=Dataset.from_list(job["prompts"]),
        processing_class=tokenizer,
        callbacks=[turns_of(job, pipe, records, seconds)],
        optimizers=optimizer_of(job, model),
    )
    trainer.remove_callback(PrinterCallback)  # stdout holds the tables
    trainer._generate_single_turn = timed(trainer._generate_single_turn, seconds, "rollout")
    return trainer, records


def reward_of(job: dict[str, Any], tokenizer: Any, records: list[dict[str, Any]]) -> Any:
    """The reward function; it also completes the record of its step."""

    def reward(completions: list[str], completion_ids: list[list[int]], ids: list[list[int]], label: list[str], prompts: list[str], **_: Any) -> list[float]:
        begin = time.perf_counter()
        exact = job["reward"] == "exact"
        paid = [float(answer == wanted) for answer, wanted in zip(completion_ids, ids, strict=True)] if exact else list(map(share, completions, label))
        for prompt in {*prompts}:  # both sides must feed the same ids
            if tokenizer.encode(prompt) != job["prompt_ids"][prompt]:
                raise SystemExit(f"TRL's tokenizer reads {prompt!r} as {tokenizer.encode(prompt)}, vime's as {job['prompt_ids'][prompt]}")
        records[-1] |= {"reward_mean": sum(paid) / len(paid), "tokens": sum(map(len, completion_ids)), "reward": time.perf_counter() - begin}
        return paid

    return reward


def turns_of(job: dict[str, Any], pipe: Any, records: list[dict[str, Any]], seconds: dict[str, float]) -> Any:
    """A callback that closes a step's record when the next begins, and at the start of a block hands the records over and waits for its turn."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = time.perf_counter()
            if records:
                records[-1]["wall"] = now - records[-1].pop("begun")
                records[-1] |= seconds
            seconds.clear()
            if state.global_step % job["block"] == 0:
                pipe.send(("turn", list(records)))
                records.clear()
                pipe.recv()
            records.append({"step": state.global_step, "begun": time.perf_counter()})

    return Turns()


def settings_of(job: dict[str, Any]) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=job["scratch"],
        per_device_train_batch_size=job["prompts_per_step"] * job["samples_per_prompt"],
        num_generations=job["samples_per_prompt"],
        max_completion_length=job["max_response_tokens"],
        max_steps=job["steps"],
        learning_rate=job["lr"],
        max_grad_norm=job["clip_grad"],
        temperature=1.0,
        beta=0.0,
        epsilon=job["clip_low"],
        epsilon_high=job["clip_high"],
        loss_type="dapo",
        scale_rewards="none",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=job["seed"],
    )


def optimizer_of(job: dict[str, Any], model: Any) -> Any:
    """The recipe's AdamW and its schedule, step by step as vime computed it."""
    import torch

    factors = job["lr_factors"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["lr"], betas=tuple(job["betas"]), eps=1e-8, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[min(step, len(factors) - 1)])


def share(text: str, label: str) -> float:
    """The fraction of the text's characters that the label holds: a reward for answers of any length."""
    return sum(character in label for character in text) / max(len(text), 1)


def timed(function: Any, seconds: dict[str, float], name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin

    return call


if __name__ == "__main__":
    main()
