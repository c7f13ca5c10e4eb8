"""Fine-tune a causal language model with LoRA adapters to a goal, and write the adapter.

    python examples/causal_lm_lora.py adapter

The model is a small GPT-2 that is made from a configuration, so nothing is downloaded. A real one
is loaded with ``from_pretrained``: its weights are public and cost no privacy. The rows are made-up
notes: one row per person, filled up with the token 0. Only the adapters are trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import expost
from expost.integrations.transformers import CausalLM, load_adapter, save_adapter

VOCABULARY, LENGTH, PAD = 32, 12, 0  # public


def base() -> GPT2LMHeadModel:
    """Return the public model; its weights are the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # stands for from_pretrained
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=32,
                n_layer=1,
                n_head=2,
                n_positions=LENGTH,
                initializer_range=0.2,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )


def make(rank: int = 4) -> CausalLM:
    """Return a new model: public weights, and adapters that are trained."""
    adapters = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True
    )
    return CausalLM(get_peft_model(base(), adapters), pad=PAD)


def notes(rows: int, seed: int = 0) -> np.ndarray:
    """Return made-up notes of 6 to 12 tokens; most tokens follow from the one before."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, VOCABULARY, (rows, LENGTH))
    for place in range(1, LENGTH):
        usual = (tokens[:, place - 1] * 5 + 7) % (VOCABULARY - 3) + 3
        follows = generator.random(rows) < 0.85
        tokens[:, place] = np.where(follows, usual, tokens[:, place])
    ends = generator.integers(6, LENGTH + 1, rows)
    tokens[np.arange(LENGTH)[None] >= ends[:, None]] = PAD
    return tokens


def main(folder: Path, rows: int = 3000) -> expost.Tuned:
    """Tune to a mean loss of at most 3.0 per token, and write the adapter."""
    tuned = expost.tune(
        notes(rows),
        model=make,
        metric="loss",  # of a row: the mean over its tokens
        at_most=3.0,  # ln 29 = 3.4 is the loss of a guess
        loss_bound=6.0,  # clips the loss of a row, public
        integers=True,
        feature_bounds=[0, VOCABULARY - 1],
        epsilons=[1, 2, 4],
        learning_rates=[0.02],
        epochs=[4],
        batch_sizes=[300],
        clips=[1],
        optimisers=["adam"],
        delta=1e-5,
        max_epsilon=10,
        attempts=3,
    )
    print(tuned)
    if tuned.model is not None:
        save_adapter(tuned.model, folder)
        PeftModel.from_pretrained(base(), str(folder))  # as any adapter
        load_adapter(base(), folder)  # the same, with its digests checked
        print(f"{folder}: " + ", ".join(sorted(path.name for path in folder.iterdir())))
    return tuned


if __name__ == "__main__":
    main(Path(sys.argv[1]))
