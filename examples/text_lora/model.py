"""A small BERT with LoRA adapters (peft). Only the adapters and the classifier are trained.

The encoder is made on the spot here. A real one is loaded with ``from_pretrained``: its weights are
public, so they cost no privacy. Frozen parameters must be the same in every model that is made.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


class LoraBert(nn.Module):
    """Token ids of shape (rows, length) to one value per class."""

    def __init__(self, vocabulary: int, rank: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)  # stands for public weights
            encoder = BertForSequenceClassification(
                BertConfig(
                    vocab_size=vocabulary,
                    hidden_size=32,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=64,
                    max_position_embeddings=16,
                    initializer_range=0.5,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                    num_labels=2,
                    attn_implementation="eager",
                )
            )
        adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
        self.encoder = inject_adapter_in_model(adapters, encoder)
        self.encoder.classifier.requires_grad_(True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids=tokens).logits


def make(vocabulary: int = 64, rank: int = 4) -> LoraBert:
    """Return a new model."""
    return LoraBert(vocabulary, rank)
