"""Modules of many kinds, for tests of additivity: factories by name, with the rows they take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

CLASSES, TOKENS = 3, 11
Factory = Callable[[], nn.Module]


class Summary(nn.Module):
    """Makes CLASSES numbers of any output by a layer."""

    def __init__(self, body: Any, shape: tuple[int, ...], *, tokens: bool) -> None:
        super().__init__()
        self.body = body
        with torch.no_grad():
            zeros = torch.zeros(1, *shape, dtype=torch.float64)
            width = self.made(zeros.long() if tokens else zeros).numel()
        self.tokens = tokens
        self.head = nn.Linear(width, CLASSES)

    def made(self, x):
        found = self.body(x)
        found = found[0] if isinstance(found, tuple) else found
        return torch.view_as_real(found) if found.is_complex() else found

    def forward(self, x):
        found = self.made(x.long() if self.tokens else x).flatten()
        return self.head(torch.tanh(found))[None]


class Applied(nn.Module):
    """A function of a 4 × 4 parameter and the row."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 4)), function

    def forward(self, x):
        return self.function(self.weight, x[0])


class Calls(nn.Module):
    """Layers and a function of them and the rows."""

    def __init__(self, function: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x):
        return self.function(x, *self.layers)


def _over_time(x, cell):
    """Return the last state of a cell that reads a sequence."""
    state = None
    for time in range(x.shape[1]):
        state = cell(x[:, time], state)
    return state


ZOO: dict[str, tuple[Factory, tuple[int, ...], bool]] = {}


def add(name: str, shape: tuple[int, ...], make: Factory, *, tokens: bool = False) -> None:
    def factory() -> nn.Module:
        torch.manual_seed(7)
        body = make().double()
        return Summary(body, shape, tokens=tokens).double()

    assert name not in ZOO
    ZOO[name] = factory, shape, tokens


def layers() -> None:
    """Layers of torch, with the ranges that Opacus tests."""
    add("linear", (5,), lambda: nn.Linear(5, 4))
    add("linear without bias", (3, 5), lambda: nn.Linear(5, 4, bias=False))
    add("linear over three axes", (2, 3, 5), lambda: nn.Linear(5, 4))
    for kind, size in ((nn.Conv1d, (4, 9)), (nn.Conv2d, (4, 6, 6)), (nn.Conv3d, (4, 4, 4, 4))):
        for name, options in {
            "plain": {},
            "stride": {"stride": 2, "padding": 1},
            "dilation": {"dilation": 2, "padding": 2},
            "groups": {"groups": 2, "bias": False},
            "same": {"padding": "same"},
            "circular": {"padding": 1, "padding_mode": "circular"},
        }.items():
            add(f"{kind.__name__} {name}", size, lambda k=kind, o=options: k(4, 4, 3, **o))
    transposed = ((nn.ConvTranspose1d, 1), (nn.ConvTranspose2d, 2), (nn.ConvTranspose3d, 3))
    for kind, axes in transposed:
        size = (2, *[3] * axes)
        add(f"{kind.__name__} stride", size, lambda k=kind: k(2, 4, 3, stride=2, output_padding=1))
        add(f"{kind.__name__} groups", size, lambda k=kind: k(2, 4, 2, groups=2))
    for groups in (1, 2, 4):
        add(f"group norm of {groups}", (4, 3, 3), lambda g=groups: nn.GroupNorm(g, 4))
    add("layer norm", (3, 5), lambda: nn.LayerNorm(5))
    add("layer norm of two axes", (3, 5), lambda: nn.LayerNorm((3, 5)))
    add("layer norm without bias", (3, 5), lambda: nn.LayerNorm(5, bias=False))
    add("RMS norm", (3, 5), lambda: nn.RMSNorm(5))
    for axes, kind in ((1, nn.InstanceNorm1d), (2, nn.InstanceNorm2d), (3, nn.InstanceNorm3d)):
        add(f"instance norm {axes}", (4, *[3] * axes), lambda k=kind: k(4, affine=True))
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        name = kind.__name__
        add(name, (4, 3), lambda k=kind: k(3, 4, batch_first=True))
        add(
            f"{name} of two layers, both ways",
            (4, 3),
            lambda k=kind: k(3, 4, num_layers=2, bidirectional=True, batch_first=True),
        )
    add("LSTM with projections", (4, 3), lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True))
    for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
        add(kind.__name__, (3,), lambda k=kind: k(3, 4))
        add(
            f"{kind.__name__} over time, no bias",
            (4, 3),
            lambda k=kind: Calls(_over_time, k(3, 4, bias=False)),
        )
    for name, options in {
        "plain": {},
        "extra key": {"add_bias_kv": True, "add_zero_attn": True},
        "other sizes": {"kdim": 4, "vdim": 4},
        "no bias": {"bias": False},
    }.items():
        add(
            f"attention, {name}",
            (3, 4),
            lambda o=options: Calls(
                lambda x, inner: inner(x, x, x, need_weights=False)[0],
                nn.MultiheadAttention(4, 2, batch_first=True, **o),
            ),
        )
    encoder = {"dropout": 0.0, "batch_first": True}
    add("transformer encoder", (3, 4), lambda: nn.TransformerEncoderLayer(4, 2, 8, **encoder))
    add(
        "transformer decoder",
        (3, 4),
        lambda: Calls(lambda x, inner: inner(x, x), nn.TransformerDecoderLayer(4, 2, 8, **encoder)),
    )
    add("bilinear", (5,), lambda: Calls(lambda x, inner: inner(x, x), nn.Bilinear(5, 5, 3)))
    add("PReLU", (4, 3), lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.PReLU(4)))
    for name, layer in {
        "max pool": lambda: nn.MaxPool2d(2),
        "mean pool": lambda: nn.AvgPool2d(2),
        "adaptive pool": lambda: nn.AdaptiveMaxPool2d(2),
        "local response": lambda: nn.LocalResponseNorm(2),
        "unfold": lambda: nn.Unfold(2),
        "shuffle": lambda: nn.PixelShuffle(2),
        "upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        "Lp pool": lambda: nn.LPPool2d(2, 2),
    }.items():
        add(name, (4, 4, 4), lambda each=layer: nn.Sequential(nn.Conv2d(4, 4, 1), each()))


def structures() -> None:
    """Shared and tied weights, hooks, state, frozen parts, and odd forward passes."""
    linear, tanh = functional.linear, torch.tanh
    add("layer used twice", (4,), lambda: Calls(lambda x, a: a(tanh(a(x))), nn.Linear(4, 4)))
    add(
        "weight used twice",
        (4,),
        lambda: Calls(lambda x, a: linear(tanh(a(x)), a.weight.T), nn.Linear(4, 6)),
    )
    add("norm used twice", (4,), lambda: Calls(lambda x, a: a(tanh(a(x))), nn.LayerNorm(4)))

    def tied(kind: str) -> nn.Module:
        first, last = nn.Linear(4, 4), nn.Linear(4, 4)
        if kind == "weight":
            last.weight = first.weight
        else:
            last.bias = first.bias
        return nn.Sequential(first, nn.Tanh(), last)

    add("tied weight", (4,), lambda: tied("weight"))
    add("tied bias", (4,), lambda: tied("bias"))
    add("layer in two places", (4,), lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2))

    def tied_tokens(padding: int | None) -> nn.Module:
        table, head = nn.Embedding(TOKENS, 4, padding_idx=padding), nn.Linear(4, TOKENS)
        head.weight = table.weight
        return nn.Sequential(table, nn.Tanh(), head)

    tokens = {
        "tokens": lambda: nn.Embedding(TOKENS, 4),
        "tokens with padding": lambda: nn.Embedding(TOKENS, 4, padding_idx=0),
        "tokens by frequency": lambda: nn.Embedding(TOKENS, 4, scale_grad_by_freq=True),
        "tied tokens": lambda: tied_tokens(None),
        "tied tokens with padding": lambda: tied_tokens(0),
        "bag of tokens": lambda: nn.EmbeddingBag(TOKENS, 4, mode="sum"),
        "bag of tokens with padding": lambda: nn.EmbeddingBag(TOKENS, 4, padding_idx=0),
        "tokens twice": lambda: Calls(lambda x, a: a(x) * a(x.flip(1)), nn.Embedding(TOKENS, 4)),
        "tokens by function": lambda: Calls(
            lambda x, a: functional.embedding(x, a.weight, 0), nn.Linear(4, TOKENS)
        ),
        "tokens by index": lambda: Calls(lambda x, a: a.weight[x], nn.Linear(4, TOKENS)),
        "tokens and LSTM": lambda: nn.Sequential(
            nn.Embedding(TOKENS, 4, 0), nn.LSTM(4, 4, batch_first=True)
        ),
    }
    for name, make in tokens.items():
        add(name, (5,), make, tokens=True)

    class Hooked(nn.Linear):
        def __init__(self, kind: str) -> None:
            super().__init__(4, 4)
            self.scale, self.calls = nn.Parameter(torch.randn(4)), []
            if kind == "before":
                self.register_forward_pre_hook(lambda layer, given: (given[0] * self.scale,))
            elif kind == "after":
                self.register_forward_hook(lambda layer, given, made: made * layer.scale)
            else:
                self.register_forward_hook(lambda layer, given, made: self.calls.append(made))

    for kind in ("before", "after", "keeps"):
        add(f"hook {kind}", (4,), lambda k=kind: nn.Sequential(Hooked(k), nn.Tanh()))

    def frozen(layer: nn.Module) -> nn.Module:
        return layer.requires_grad_(False)

    add("frozen encoder", (4,), lambda: nn.Sequential(frozen(nn.Linear(4, 4)), nn.Linear(4, 4)))
    add(
        "low-rank",
        (4,),
        lambda: Calls(
            lambda x, a, b, c: a(x) + c(b(x)),
            frozen(nn.Linear(4, 4)),
            nn.Linear(4, 2, bias=False),
            nn.Linear(2, 4, bias=False),
        ),
    )

    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("step", torch.zeros(()))
            self.seen = {"rows": []}

        def forward(self, x):
            self.step += 1
            self.seen["rows"].append(x)
            return super().forward(x) * self.step * len(self.seen["rows"])

    add("counts passes", (4,), Counts)
    add("weight norm", (4,), lambda: parametrizations.weight_norm(nn.Linear(4, 4)))
    add("orthogonal", (4,), lambda: parametrizations.orthogonal(nn.Linear(4, 4)))

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.some = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])
            self.table = nn.ParameterDict({"a": nn.Parameter(torch.randn(4, 4))})

        def forward(self, x):
            return (x * self.some[0] + self.some[1]) @ self.table["a"]

    add("lists of parameters", (4,), Lists)

    class Own(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, slope):
            return 3 * ctx.saved_tensors[0] ** 2 * slope

    add("own function", (4,), lambda: Calls(lambda x, a: Own.apply(a(x)), nn.Linear(4, 4)))
    functions = {
        "in place": lambda x, a: a(x).mul_(2).relu_(),
        "across the batch": lambda x, a: a(x - x.mean(0)) / x.shape[0],
        "over rows": lambda x, a: torch.softmax(a(x), 0),
        "sorted": lambda x, a: a(x.sort(1).values).cumsum(1),
        "top": lambda x, a: a(x).topk(2, 1).values,
        "Fourier": lambda x, a: torch.fft.rfft(a(x)),
        "einsum": lambda x, a: torch.einsum("bi,oi->bo", x, a.weight),
        "no gradient": lambda x, a: a(x) * a(x).detach(),
        "chosen": lambda x, a: torch.where(x > 0, a(x), -x),
        "unused input": lambda x, a: a(torch.ones_like(x)),
        "spectral norm": lambda x, a: linear(x, a.weight / torch.linalg.matrix_norm(a.weight, 2)),
        "pieces": lambda x, a: torch.cat([a(x).split(2, 1)[1], a(x).chunk(2, 1)[0]], 1),
        "written": lambda x, a: torch.zeros_like(x).index_put((torch.tensor([0]),), a(x)),
    }
    for name, function in functions.items():
        add(name, (4,), lambda f=function: Calls(f, nn.Linear(4, 4)))


def _spd(w, x):
    return w @ w.T + torch.diag(x**2) + 0.5 * torch.eye(4, dtype=w.dtype)


def _places(x):
    """Return places 0 … 3 made of the row; outside of them for a row of large numbers."""
    return (4 * x).abs().long() - (4 * x).abs().long().clamp(max=3999) // 4 * 4


OPERATIONS: dict[str, Callable[..., Any]] = {
    # index operations; i are places that the row gives, or outside for large numbers
    "index": lambda w, x, i: w[i],
    "index of two axes": lambda w, x, i: w[i, i.flip(0)],
    "index of columns": lambda w, x, i: w[:, i],
    "index_select": lambda w, x, i: w.index_select(0, i),
    "index_select columns": lambda w, x, i: torch.index_select(w, 1, i),
    "gather": lambda w, x, i: w.gather(0, i.expand(2, 4)),
    "gather columns": lambda w, x, i: torch.gather(w, 1, i[:, None]),
    "take": lambda w, x, i: w.take(i),
    "take_along_dim": lambda w, x, i: torch.take_along_dim(w, i[None], 0),
    "scatter": lambda w, x, i: w.scatter(0, i[None], x[None]),
    "scatter_add": lambda w, x, i: w.scatter_add(1, i[:, None], x[:, None]),
    "scatter_reduce": lambda w, x, i: w.scatter_reduce(0, i[None], x[None], "amax"),
    "scatter in place": lambda w, x, i: (w * x).scatter_(0, i[None], x[None]),
    "index_add": lambda w, x, i: w.index_add(0, i, torch.outer(x, x)),
    "index_copy": lambda w, x, i: w.index_copy(0, torch.argsort(x), torch.outer(x, x)),
    "index_fill": lambda w, x, i: w.index_fill(0, i[:2], 0.5),
    "index_fill columns": lambda w, x, i: torch.index_fill(w, 1, i[:1], 2.0),
    "index_fill in place": lambda w, x, i: (w * x).index_fill_(0, i[:2], 0.5),
    "index_put": lambda w, x, i: (w * x[0]).index_put((i,), w * 2),
    "index_put adds": lambda w, x, i: (w * x[0]).index_put((i,), w, accumulate=True),
    "index_reduce": lambda w, x, i: w.index_reduce(0, i, torch.outer(x, x), "prod"),
    "masked_fill": lambda w, x, i: w.masked_fill(x > 0, 0.0),
    "masked_scatter": lambda w, x, i: w.masked_scatter(torch.eye(4).bool(), x.to(w.dtype) * w[0]),
    "embedding": lambda w, x, i: functional.embedding(i, w),
    "embedding with padding": lambda w, x, i: functional.embedding(i, w, 1),
    "embedding of the row": lambda w, x, i: functional.embedding(i, torch.outer(x, w[0])),
    "embedding bag": lambda w, x, i: functional.embedding_bag(i[None], w, padding_idx=1),
    "one-hot": lambda w, x, i: (i[:, None] == torch.arange(4)).to(w.dtype) @ w,
    "select": lambda w, x, i: w.select(0, 1) * x,
    "select_scatter": lambda w, x, i: torch.select_scatter(w, w[0] * x, 0, 1),
    "slice_scatter": lambda w, x, i: torch.slice_scatter(w, (w * x)[:2], 0, 1, 3),
    "diagonal_scatter": lambda w, x, i: torch.diagonal_scatter(w, w[0] * x),
    "diagonal": lambda w, x, i: torch.diagonal(w * x),
    "triangle": lambda w, x, i: torch.tril(w * x, -1) + torch.triu(w),
    "roll and flip": lambda w, x, i: (w * x).roll(1, 0).flip(1),
    "unfold": lambda w, x, i: (w * x).unfold(0, 2, 1),
    "repeat": lambda w, x, i: (w * x).repeat(2, 1).repeat_interleave(2, 0),
    "sort": lambda w, x, i: (w * x).sort(0).values,
    "argsort": lambda w, x, i: w[torch.argsort(x)],
    "topk": lambda w, x, i: (w * x).topk(2, 1).values,
    "kthvalue": lambda w, x, i: (w * x).kthvalue(2, 1).values,
    "median": lambda w, x, i: (w * x).median(0).values,
    "mode": lambda w, x, i: (w * x).mode(0).values,
    "cummax": lambda w, x, i: (w * x).cummax(0).values,
    "cumprod": lambda w, x, i: (w * x).cumprod(0),
    "logcumsumexp": lambda w, x, i: torch.logcumsumexp(w * x, 0),
    "searchsorted": lambda w, x, i: w[
        torch.searchsorted(torch.arange(3.0).double(), x).clamp(0, 3)
    ],
    "grid sample": lambda w, x, i: functional.grid_sample(
        w[None, None], x.reshape(1, 1, 2, 2), padding_mode="border", align_corners=False
    ),
    "max unpool": lambda w, x, i: functional.max_pool2d((w * x)[None, None], 2),
    "cross entropy": lambda w, x, i: functional.cross_entropy(w * x, i, reduction="none"),
    "nll": lambda w, x, i: functional.nll_loss(torch.log_softmax(w * x, 1), i),
    # linear algebra
    "matmul": lambda w, x, i: w @ torch.outer(x, x) @ w,
    "matrix power": lambda w, x, i: torch.linalg.matrix_power(w * x, 3),
    "matrix exp": lambda w, x, i: torch.linalg.matrix_exp(w * torch.tanh(x)),
    "cholesky": lambda w, x, i: torch.linalg.cholesky(_spd(w, x)),
    "cholesky that may raise": lambda w, x, i: torch.linalg.cholesky(
        w @ w.T + torch.diag(3 + x - x.abs().clamp(min=50) + 50)
    ),
    "cholesky inverse": lambda w, x, i: torch.cholesky_inverse(torch.linalg.cholesky(_spd(w, x))),
    "inverse": lambda w, x, i: torch.linalg.inv(_spd(w, x)),
    "pinv": lambda w, x, i: torch.linalg.pinv(_spd(w, x)),
    "solve": lambda w, x, i: torch.linalg.solve(_spd(w, x), x),
    "solve triangular": lambda w, x, i: torch.linalg.solve_triangular(
        _spd(w, x).tril(), x[:, None], upper=False
    ),
    "lstsq": lambda w, x, i: (
        torch.linalg.lstsq(_spd(w, x.nan_to_num()), x.nan_to_num()[:, None]).solution
    ),
    "lu": lambda w, x, i: torch.linalg.lu(_spd(w, x))[2],
    "lu solve": lambda w, x, i: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(_spd(w, x)), x[:, None]
    ),
    "qr": lambda w, x, i: torch.linalg.qr(_spd(w, x))[1],
    "determinant": lambda w, x, i: torch.linalg.det(_spd(w, x)),
    "slogdet": lambda w, x, i: torch.linalg.slogdet(_spd(w, x))[1],
    "eigenvalues": lambda w, x, i: torch.linalg.eigvalsh(_spd(w, x)),
    "eigenvectors": lambda w, x, i: torch.linalg.eigh(_spd(w, x))[1] ** 2,
    "singular values": lambda w, x, i: torch.linalg.svdvals(w * x),
    "norms": lambda w, x, i: torch.linalg.vector_norm(w * x, 3) + torch.linalg.norm(w * x),
    "nuclear norm": lambda w, x, i: torch.linalg.matrix_norm(w * x, "nuc"),
    "cross": lambda w, x, i: torch.linalg.cross(w[:3] * x, w[1:] * x, dim=0),
    "kron": lambda w, x, i: torch.kron(w, x[None]),
    "cdist": lambda w, x, i: torch.cdist(w, x[None]),
    "vander": lambda w, x, i: w @ torch.linalg.vander(torch.tanh(x)),
    "householder": lambda w, x, i: torch.linalg.householder_product(_spd(w, x), x),
    "tensordot": lambda w, x, i: torch.tensordot(w, torch.outer(x, x), 2),
    "trapezoid": lambda w, x, i: torch.trapezoid(w * x, dim=0),
}


def operations() -> None:
    for name, function in OPERATIONS.items():
        add(f"operation {name}", (4,), lambda f=function: Applied(lambda w, x: f(w, x, _places(x))))


def transformers() -> None:
    """Tiny models of the transformers library, from configurations."""
    import transformers as library

    sizes: dict[str, Any] = {"vocab_size": TOKENS, "hidden_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0}
    plain = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0}
    grouped = {"num_key_value_heads": 1, "head_dim": 4}
    known: dict[str, tuple[str, dict[str, Any]]] = {
        "Bert": ("BertModel", sizes | quiet),
        "Roberta": ("RobertaModel", sizes | quiet | {"max_position_embeddings": 20}),
        "Electra": ("ElectraModel", sizes | quiet | {"embedding_size": 8}),
        "Albert": ("AlbertModel", sizes | quiet | {"embedding_size": 8}),
        "DistilBert": (
            "DistilBertModel",
            {"vocab_size": TOKENS, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}
            | {"dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 16},
        ),
        "GPT2": (
            "GPT2Model",
            {"vocab_size": TOKENS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
            | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        ),
        "GPTNeoX": ("GPTNeoXModel", sizes | plain | {"hidden_dropout": 0.0}),
        "Llama": ("LlamaModel", sizes | plain | grouped),
        "Mistral": ("MistralModel", sizes | plain | grouped),
        "Qwen2": ("Qwen2Model", sizes | plain | grouped),
        "Qwen3": ("Qwen3Model", sizes | plain | grouped),
        "Gemma": ("GemmaModel", sizes | plain | grouped),
        "Gemma2": ("Gemma2Model", sizes | plain | grouped),
        "Gemma3Text": ("Gemma3TextModel", sizes | plain | grouped),
        "Phi": ("PhiModel", sizes | plain | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}),
        "Starcoder2": (
            "Starcoder2Model",
            sizes | plain | grouped | {"residual_dropout": 0.0, "embedding_dropout": 0.0},
        ),
        "T5": (
            "T5EncoderModel",
            {"vocab_size": TOKENS, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1}
            | {"num_heads": 2, "dropout_rate": 0.0, "pad_token_id": 0},
        ),
    }

    class Text(nn.Module):
        def __init__(self, name: str, kind: str, settings: dict[str, Any]) -> None:
            super().__init__()
            config = getattr(library, f"{name}Config")(**settings, attn_implementation="eager")
            config.use_cache = False
            self.inner = getattr(library, kind)(config)

        def forward(self, x):
            return self.inner(input_ids=x)[0]

    for name, (kind, settings) in known.items():
        add(
            f"transformers {name}",
            (5,),
            lambda n=name, k=kind, s=settings: Text(n, k, dict(s)),
            tokens=True,
        )


def padded_texts() -> None:
    """Texts with padding: masks are made from the row."""
    import transformers as library

    from expost.integrations.transformers import CausalLM, EncoderDecoder, SequenceClassifier

    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    gpt: dict[str, Any] = {"vocab_size": TOKENS, "n_embd": 8, "n_layer": 1, "n_head": 2}
    gpt |= ids | {"n_positions": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    bert = {"vocab_size": TOKENS, "hidden_size": 8, "num_hidden_layers": 1, **ids}
    bert |= {"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}
    bert |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    t5 = {"vocab_size": TOKENS, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    t5 |= {"dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0}
    texts: dict[str, Factory] = {
        "padded GPT2": lambda: CausalLM(library.GPT2LMHeadModel(library.GPT2Config(**gpt)), 0),
        "padded GPT2 classes": lambda: SequenceClassifier(
            library.GPT2ForSequenceClassification(library.GPT2Config(**gpt)), 0
        ),
        "padded Bert classes": lambda: SequenceClassifier(
            library.BertForSequenceClassification(library.BertConfig(**bert)), 0
        ),
        "padded T5": lambda: EncoderDecoder(
            library.T5ForConditionalGeneration(library.T5Config(**t5)), 0, source=3
        ),
    }
    for name, make in texts.items():
        add(name, (6,), make, tokens=True)


layers()
structures()
operations()
with suppress(ImportError):
    transformers()
    padded_texts()


def rows_of(shape: tuple[int, ...], *, tokens: bool) -> tuple[np.ndarray, list[int]]:
    """Return made-up rows, and which of them are hostile."""
    rng = np.random.default_rng(3)
    if tokens:
        X = rng.integers(0, TOKENS, (8, *shape))
        X[:, 0] = 0  # padding
        X[2, 1], X[5] = 1 << 40, -9
    else:
        X = rng.standard_normal((8, *shape))
        X[2], X[5] = np.nan, 1e4 + np.arange(X[5].size).reshape(shape)
    return X, [2, 5]
