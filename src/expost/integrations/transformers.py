"""Models of Hugging Face transformers: one row is one text, padded to a public length.

A row is whole numbers: token ids, then the id ``pad`` up to the length of a row. Masks are made
from the row alone. So what is computed for a row depends on that row and the model, and a row is
one unit of privacy: its loss is the mean over its tokens, and its gradient is clipped once.

Masks are passed in a form that torch can vectorise over rows: some models of the library look at
the values of a two-dimensional mask, which is found with zeros when the module is made. Attention
is the library's plain version ("eager"), whose gradients can be taken row by row.

**Adapters.** :func:`save_adapter` writes a LoRA adapter in the layout of PEFT, and beside it the
SHA-256 of each file and of the frozen weights on which it was trained. :func:`load_adapter`
refuses files or weights with another digest. Whoever can change the adapter can change the digests,
too: the certificate of a job has the digest of its ``model.npz``.

Tests: ``tests/integrations/test_transformers.py``, ``tests/training/test_additivity.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expost.errors import InvalidInput, MissingExtra
from expost.rationals import count_of

try:
    import torch
    from torch import nn
    from torch.func import vmap
    from torch.nn import functional
except ImportError:
    raise MissingExtra("torch", "torch") from None

if TYPE_CHECKING:
    from expost.tuning.model.released_model import Model

__all__ = ["CausalLM", "EncoderDecoder", "SequenceClassifier", "load_adapter", "save_adapter"]

Tensor = torch.Tensor
_DIGESTS = "expost_digests.json"
_FILES = {"adapter_config.json", "adapter_model.safetensors"}  # a file .bin would be a pickle
_LIMIT = 1 << 16  # characters of a file of digests


class _Text(nn.Module):
    """A model of the library that reads rows of token ids."""

    def __init__(self, model: nn.Module, pad: int) -> None:
        super().__init__()
        if not hasattr(model, "config"):
            raise InvalidInput(
                "model", type(model).__name__, "pass a model of transformers, or peft's version"
            )
        self.model: Any = model
        self.pad = count_of(pad, "pad", at_least=0)
        plain: Any = model
        plain.set_attn_implementation("eager")
        plain.gradient_checkpointing_disable()  # chunks of a batch fit the memory anyway
        self.wide = False
        self.wide = not self._vectorised()

    def _vectorised(self) -> bool:
        """Return whether a two-dimensional mask can be vectorised, found with zeros."""
        training = self.training
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.eval()
                zeros = torch.zeros(2, 4, dtype=torch.int64)
                vmap(lambda row: self.logits(row[None]))(zeros)
        except RuntimeError:
            return False
        finally:
            self.train(training)
        return True

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the outputs of the model."""
        logits: Tensor = self.model(input_ids=tokens, attention_mask=self.mask(tokens)).logits
        return logits

    def mask(self, tokens: Tensor) -> Tensor:
        """Return what hides the padding of each row; a row of padding alone is seen."""
        seen = _seen(tokens, self.pad)
        if not self.wide:
            return seen.to(torch.int64)
        dtype = next(self.model.parameters()).dtype
        hidden = (~seen)[:, None, None, :] | self.later(tokens)
        return hidden.to(dtype) * torch.finfo(dtype).min

    def later(self, tokens: Tensor) -> Tensor:
        """Return which tokens a token may not see, whatever they are."""
        return torch.zeros(1, 1, dtype=torch.bool, device=tokens.device)


def _seen(tokens: Tensor, pad: int) -> Tensor:
    """Return which tokens are no padding; all of a row that has nothing else."""
    seen = tokens != pad
    return seen | ~seen.any(1, keepdim=True)


class SequenceClassifier(_Text):
    """A classifier of texts: token ids of shape (rows, length) to one value per class.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers for sequence classification, or peft's version of it.
    pad : int
        The token id that fills a row up to its length; the model does not attend to it.

    Examples
    --------
    ::

        def make():
            return SequenceClassifier(BertForSequenceClassification(config), pad=0)

        expost.tune(tokens, labels, model=make, classes=2, integers=True,
                    feature_bounds=[0, 30521], at_least=0.8)
    """

    def __init__(self, model: nn.Module, pad: int) -> None:
        config: Any = getattr(model, "config", None)
        known = getattr(config, "pad_token_id", None)
        if known not in (None, pad):
            raise InvalidInput("pad", pad, f"the model's configuration says {known}; give this one")
        if config is not None:
            config.pad_token_id = pad  # GPT-2 and others decide by the last token before it
        super().__init__(model, pad)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return one value per class.

        Parameters
        ----------
        tokens : Tensor
            Whole numbers of shape (rows, length).

        Returns
        -------
        Tensor
            Of shape (rows, classes).
        """
        return self.logits(tokens)


class CausalLM(_Text):
    """A language model that predicts the next token; for ``loss="own"``.

    Parameters
    ----------
    model : torch.nn.Module
        A causal language model of transformers (GPT-2, Llama, …), or peft's version of it.
    pad : int
        The token id that fills a row up to its length, at its end. It is neither attended to nor
        predicted. A row of padding alone counts as a text of such tokens.

    Examples
    --------
    ::

        def make():
            return CausalLM(GPT2LMHeadModel(config), pad=0)

        expost.tune(tokens, model=make, metric="loss", at_most=3.0, loss_bound=8, integers=True,
                    feature_bounds=[0, 50256])
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of each row and the share of its tokens that are predicted.

        Parameters
        ----------
        tokens : Tensor
            Whole numbers of shape (rows, length).

        Returns
        -------
        Tensor
            Of shape (rows, 2): the cross-entropy of the next token, averaged over the tokens of
            the row, and the share of them to which the model gives the largest probability.
        """
        return _per_token(self.logits(tokens)[:, :-1], tokens[:, 1:], self.pad)

    def later(self, tokens: Tensor) -> Tensor:
        size = tokens.shape[1]
        return torch.ones(size, size, dtype=torch.bool, device=tokens.device).triu(1)


class EncoderDecoder(_Text):
    """A model that writes one text after reading another; for ``loss="own"``.

    A row is the text to read (``source`` tokens, padded) and then the text to write (padded).

    Parameters
    ----------
    model : torch.nn.Module
        An encoder–decoder of transformers (T5, BART, …), or peft's version of it.
    pad : int
        The token id that fills both parts of a row. It is neither attended to nor predicted.
    source : int
        The number of tokens of a row that are read; the rest are written.
    """

    def __init__(self, model: nn.Module, pad: int, source: int) -> None:
        self.source = count_of(source, "source", at_least=1)
        super().__init__(model, pad)
        self.wide = True

    def _vectorised(self) -> bool:
        return False

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of each row and the share of its tokens that are predicted.

        Parameters
        ----------
        tokens : Tensor
            Whole numbers of shape (rows, length).

        Returns
        -------
        Tensor
            Of shape (rows, 2), as :meth:`CausalLM.forward`, for the tokens to write.
        """
        read, written = tokens[:, : self.source], tokens[:, self.source :]
        start = self.model.config.decoder_start_token_id
        first = torch.full_like(written[:, :1], self.pad if start is None else start)
        logits = self.model(
            input_ids=read,
            attention_mask=self.mask(read),
            decoder_input_ids=torch.cat([first, written[:, :-1]], dim=1),
            use_cache=False,
        ).logits
        return _per_token(logits, written, self.pad)


def _per_token(logits: Tensor, targets: Tensor, pad: int) -> Tensor:
    """Return the mean loss and the share of right tokens of each row: rows × 2."""
    number = logits.shape[-1]
    counted = _seen(targets, pad)
    inside = targets.clamp(0, number - 1)
    losses = -functional.log_softmax(logits, dim=-1).gather(2, inside[:, :, None])[:, :, 0]
    losses = torch.where(targets == inside, losses, torch.nan)  # no such token: the row is lost
    right = (logits.argmax(-1) == targets).to(losses.dtype)
    tokens = counted.sum(1)
    means = [torch.where(counted, value, 0.0).sum(1) / tokens for value in (losses, right)]
    return torch.stack(means, dim=1)


def save_adapter(model: Model, folder: str | Path) -> Path:
    """Write the LoRA adapter of a released model in the layout of PEFT.

    The folder then holds ``adapter_config.json``, ``adapter_model.safetensors``, and the digests of
    both and of the frozen weights. ``PeftModel.from_pretrained`` and :func:`load_adapter` read it.

    Parameters
    ----------
    model : Model
        A released model whose module contains a ``peft.PeftModel`` (``get_peft_model``).
    folder : str or Path
        The folder to write; it must not hold an adapter yet.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InvalidInput
        If the module contains no ``PeftModel``, if parameters outside the adapter were trained, or
        if the folder holds an adapter.
    """
    from expost.tuning.model.released_model import module_of

    peft, folder = _peft(), Path(folder)
    if (folder / "adapter_config.json").exists():
        raise InvalidInput("folder", str(folder), "it holds an adapter; give a new folder")
    module = module_of(model)
    adapters = [part for part in module.modules() if isinstance(part, peft.PeftModel)]
    if len(adapters) != 1:
        raise InvalidInput(
            "model",
            f"{len(adapters)} adapters of peft",
            "the function of the job must wrap its model once: peft.get_peft_model(model, config)",
        )
    (adapter,) = adapters
    lost = [name for name in model.parameters if not _of_adapter(name)]
    if lost:
        raise InvalidInput(
            "model",
            f"{lost[0]} was trained",
            "an adapter holds no such parameter; freeze it, or name its layer in modules_to_save",
        )
    adapter.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
    files = {path.name: _digest_of_file(path) for path in _parts(folder)}
    record = {"files": files, "base": base_digest(adapter.get_base_model())}
    (folder / _DIGESTS).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return folder


def load_adapter(base: nn.Module, folder: str | Path) -> Any:
    """Put an adapter that :func:`save_adapter` wrote on its frozen weights.

    Parameters
    ----------
    base : torch.nn.Module
        The model of transformers, with the frozen weights of the job and without an adapter.
    folder : str or Path
        The folder of the adapter.

    Returns
    -------
    peft.PeftModel

    Raises
    ------
    InvalidInput
        If a file is missing or has another digest, or ``base`` has other weights than those on
        which the adapter was trained.
    """
    peft, folder = _peft(), Path(folder)
    try:
        text = (folder / _DIGESTS).read_text(encoding="utf-8")
        record = json.loads(text[:_LIMIT])
        files, wanted = dict(record["files"]), str(record["base"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            "folder", str(folder), f"it has no readable {_DIGESTS}; give a folder of save_adapter"
        ) from None
    if not {path.name for path in _parts(folder)} == set(files) == _FILES:
        raise InvalidInput("folder", str(folder), "its files are not those of the adapter")
    for name, digest in files.items():
        if _digest_of_file(folder / name) != digest:
            raise InvalidInput(
                "folder", name, "the file has another SHA-256 than when it was written: it is "
                "corrupted or was changed"
            )  # fmt: skip
    if base_digest(base) != wanted:
        raise InvalidInput(
            "base",
            type(base).__name__,
            "the adapter was trained on other weights (their SHA-256 differs); load those",
        )
    return peft.PeftModel.from_pretrained(base, str(folder))


def base_digest(model: nn.Module) -> str:
    """Return the SHA-256 of the weights of a model without those of its adapters."""
    digest = hashlib.sha256()
    for name, value in sorted(_base_weights(model)):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def _base_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return the weights by the names that they have without adapters."""
    for name, value in model.state_dict().items():
        if _of_adapter(name):
            continue
        plain = name.replace(".base_layer.", ".").replace(".original_module.", ".")
        yield plain, value


def _of_adapter(name: str) -> bool:
    """Return whether a parameter is one of an adapter."""
    return ".modules_to_save." in name or ".lora_" in name


def _parts(folder: Path) -> list[Path]:
    """Return the files of an adapter that are read."""
    return sorted(path for path in folder.glob("adapter_*") if path.is_file())


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtra("peft", "transformers") from None
    return peft
