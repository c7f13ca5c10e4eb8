"""Texts with padding: losses as the library computes them, and adapters in PEFT's layout."""

import hashlib
import json
import warnings
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import expost
from expost.errors import InvalidInput
from expost.training import Configuration, Fleet
from expost.training._torch.modules import ModuleSums
from expost.training.exact_noise import clip_bound

library = pytest.importorskip("transformers")
if find_spec("peft") is None:  # importing it takes seconds: the tests that use it do
    pytest.skip("PEFT is not installed", allow_module_level=True)
from expost.integrations.transformers import (  # noqa: E402
    CausalLM,
    EncoderDecoder,
    SequenceClassifier,
    _per_token,
    load_adapter,
    save_adapter,
)

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS, PAD, CLIP = 13, 0, 0.5
SIZES = {"vocab_size": TOKENS, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 8, "max_position_embeddings": 16, "pad_token_id": PAD}
SIZES |= {"num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT = {"vocab_size": TOKENS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
GPT |= QUIET | {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
BART = {"vocab_size": TOKENS, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8}
BART |= {"decoder_ffn_dim": 8, "max_position_embeddings": 16, "pad_token_id": PAD, "dropout": 0.0}
BART |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
BART |= {"forced_eos_token_id": 2}
T5 = {"vocab_size": TOKENS, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
T5 |= {"pad_token_id": PAD, "decoder_start_token_id": PAD, "dropout_rate": 0.0}
BERT = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
SOURCE = 3


def rows():
    """Return texts of different lengths: full, of one token, and of padding alone."""
    rng = np.random.default_rng(0)
    X = rng.integers(3, TOKENS, (8, 7))
    for row, length in enumerate([7, 6, 5, 4, 3, 2, 1, 0]):
        X[row, length:] = PAD
    X[4] = [5, PAD, PAD, 4, 6, PAD, PAD]  # two padded parts, for an encoder and a decoder
    return X


def model_of(name):
    torch.manual_seed(3)
    kinds = {
        "GPT-2": (library.GPT2LMHeadModel, library.GPT2Config, GPT),
        "Llama": (library.LlamaForCausalLM, library.LlamaConfig, SIZES),
        "BERT": (library.BertForSequenceClassification, library.BertConfig, BERT),
        "GPT-2 classes": (
            library.GPT2ForSequenceClassification,
            library.GPT2Config,
            GPT | {"num_labels": 3},
        ),
        "T5": (library.T5ForConditionalGeneration, library.T5Config, T5),
        "BART": (library.BartForConditionalGeneration, library.BartConfig, BART),
    }
    kind, config, settings = kinds[name]
    return kind(config(**settings, attn_implementation="eager"))


def wrapped(name):
    model = model_of(name)
    if "classes" in name or name == "BERT":
        return SequenceClassifier(model, pad=PAD)
    if name in ("T5", "BART"):
        return EncoderDecoder(model, pad=PAD, source=SOURCE)
    return CausalLM(model, pad=PAD)


def loss_of_library(name, model, row, label):
    """Return the loss that the library itself computes for one row with its own masks."""
    tokens = torch.from_numpy(row[None])
    mask = (tokens != PAD).long()
    if "classes" in name or name == "BERT":
        logits = model(input_ids=tokens, attention_mask=mask).logits
        return torch.nn.functional.cross_entropy(logits, torch.tensor([label]))
    wanted = torch.where(tokens == PAD, -100, tokens)
    if name in ("T5", "BART"):
        written, wanted = tokens[:, SOURCE:], wanted[:, SOURCE:]
        first = torch.full_like(written[:, :1], model.config.decoder_start_token_id)
        logits = model(
            input_ids=tokens[:, :SOURCE],
            attention_mask=mask[:, :SOURCE],
            decoder_input_ids=torch.cat([first, written[:, :-1]], 1),
        ).logits
    else:
        logits, wanted = model(input_ids=tokens, attention_mask=mask).logits[:, :-1], wanted[:, 1:]
    return torch.nn.functional.cross_entropy(logits[0], wanted[0])  # the mean; −100 is ignored


NAMES = ["GPT-2", "Llama", "BERT", "GPT-2 classes", "T5", "BART"]


@pytest.mark.parametrize("exact", [True, False], ids=["CPU", "CUDA path"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sum_over_texts_is_the_sum_of_their_own_gradients(name, exact):
    X, y = rows(), np.arange(8) % 3 * 1.0
    loss = "softmax" if "classes" in name or name == "BERT" else "own"
    module = wrapped(name).double()
    trained = [value for value in module.parameters() if value.requires_grad]
    sums = ModuleSums(module, lambda: wrapped(name).double(), X, y, loss, "cpu", exact=exact)
    sums.careful = True
    flat = torch.cat([value.detach().flatten() for value in sums.parameters.trained.values()])
    bound = torch.tensor([clip_bound(CLIP, sums.width, sums.rows).clip], dtype=torch.float64)

    def add(chosen):
        places = torch.as_tensor(chosen, dtype=torch.int64)[None]
        taken = torch.ones_like(places, dtype=torch.bool)
        return sums(flat.double()[None], places, taken, bound, 1 << 30)[0].numpy()

    alone = np.array([add([row]) for row in range(len(X))])
    assert np.allclose(add(range(len(X))), alone.sum(0), rtol=0, atol=1e-8 * CLIP)
    if loss == "softmax":
        compared = [row for row in range(len(X)) if row < 7]  # not of padding alone
    else:  # with at least one token to predict
        first = SOURCE if name in ("T5", "BART") else 1
        compared = [row for row in range(len(X)) if (X[row, first:] != PAD).any()]
        compared = [row for row in compared if (X[row, :SOURCE] != PAD).any()]
    assert len(compared) >= 4
    for row in compared:
        value = loss_of_library(name, module.model, X[row], int(y[row]))
        slopes = torch.autograd.grad(value, trained, allow_unused=True)
        wanted = torch.cat(
            [
                torch.zeros(part.numel()) if slope is None else slope.flatten()
                for part, slope in zip(trained, slopes, strict=True)
            ]
        ).double()
        wanted *= min(1.0, CLIP / float(wanted.norm()))
        assert np.allclose(alone[row], wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5"])
def test_outputs_are_the_loss_and_the_share_of_right_tokens_of_each_row(name):
    X = rows()
    module = wrapped(name).double().eval()
    with torch.no_grad():
        outputs = module(torch.from_numpy(X))
        for row in (0, 1, 2, 3, 4):
            value = loss_of_library(name, module.model, X[row], 0)
            assert float(outputs[row, 0]) == pytest.approx(float(value))
    assert torch.isfinite(outputs).all()
    assert ((outputs[:, 1] >= 0) & (outputs[:, 1] <= 1)).all()
    odd = torch.from_numpy(X).clone()
    odd[0, -1] = TOKENS  # a token that no vocabulary has, in the last place
    told = _per_token(torch.zeros(8, 6, TOKENS, dtype=torch.float64), odd[:, 1:], PAD)
    assert told[0, 0].isnan()
    assert told[1:, 0].isfinite().all()


def adapted(rank=2):
    """Return a small causal model with LoRA adapters; frozen weights are the same each time."""
    import peft

    with torch.random.fork_rng(devices=[]):
        base = model_of("GPT-2")
    settings = peft.LoraConfig(
        r=rank, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0
    )
    return CausalLM(peft.get_peft_model(base, settings), pad=PAD)


@pytest.fixture(scope="module")
def tuned():
    rng = np.random.default_rng(5)
    X = rng.integers(3, TOKENS, (400, 6))
    X[::3, 4:] = PAD
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return X, expost.tune(
            X,
            model=adapted,
            metric="loss",
            maximize=True,
            loss_bound=6.0,
            integers=True,
            feature_bounds=[0, TOKENS - 1],
            epsilons=[4],
            learning_rates=[0.05],
            epochs=[1],
            batch_sizes=[100],
            clips=[1],
            optimisers=["adam"],
            delta=1e-5,
            max_epsilon=20,
        )


def test_a_causal_model_is_tuned_by_its_loss(tuned):
    X, result = tuned
    assert result.passed
    losses = result.model.predict(X)
    assert losses.shape == (400,)
    assert 0 < losses.mean() < 6
    # the noisy score is minus the mean loss on the held-out fifth, up to noise and sampling
    assert abs(-result.score - losses.mean()) < 0.5
    words = result._repr_html_()
    assert "the module computes the loss of a row" in words
    with pytest.raises(InvalidInput, match="call predict"):
        result.model.predict_proba(X)


def test_an_adapter_has_the_layout_of_peft_and_its_digests_are_checked(tuned, tmp_path):
    import peft

    X, result = tuned
    folder = save_adapter(result.model, tmp_path / "adapter")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in folder.iterdir()
    }
    wanted = result.model.predict(X[:16])
    for loaded in (
        peft.PeftModel.from_pretrained(model_of("GPT-2"), str(folder)),
        load_adapter(model_of("GPT-2"), folder),
    ):
        module = CausalLM(loaded, pad=PAD).eval()
        with torch.no_grad():
            assert np.allclose(module(torch.from_numpy(X[:16]))[:, 0], wanted, atol=1e-5)
    other = model_of("GPT-2")
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1.0
    with pytest.raises(InvalidInput, match="other weights"):
        load_adapter(other, folder)
    with pytest.raises(InvalidInput, match="holds an adapter"):
        save_adapter(result.model, folder)
    file = folder / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(InvalidInput, match="SHA-256"):
        load_adapter(model_of("GPT-2"), folder)
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 400}))
    with pytest.raises(InvalidInput, match="SHA-256"):
        load_adapter(model_of("GPT-2"), folder)
    (folder / "adapter_extra.bin").write_bytes(b"")
    with pytest.raises(InvalidInput, match="not those"):
        load_adapter(model_of("GPT-2"), folder)
    (folder / "adapter_extra.bin").unlink()
    file.rename(folder / "adapter_model.bin")  # which peft would read by pickle
    record = json.loads((folder / "expost_digests.json").read_text())
    names = ("adapter_config.json", "adapter_model.bin")
    record["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names
    }
    (folder / "expost_digests.json").write_text(json.dumps(record))
    with pytest.raises(InvalidInput, match="not those"):
        load_adapter(model_of("GPT-2"), folder)
    (folder / "expost_digests.json").unlink()
    with pytest.raises(InvalidInput, match="no readable"):
        load_adapter(model_of("GPT-2"), folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "accuracy"}, "loss"),
        ({"loss": "softmax"}, "token_accuracy"),
        ({"classes": 2}, "no target"),
        ({"y": np.zeros(400)}, "leave the targets out"),
        ({"model": "softmax", "loss": None}, "token_accuracy"),
        ({"at_most": 7.0}, "loss_bound"),
        ({"class_weights": [[1, 2]]}, "no classes"),
    ],
)
def test_what_does_not_fit_a_loss_of_its_own_is_refused(tuned, changes, words):
    X, _ = tuned
    given = {
        "model": adapted,
        "loss": "own",
        "metric": "loss",
        "at_most": 2.0,
        "loss_bound": 6.0,
        "integers": True,
        "feature_bounds": [0, TOKENS - 1],
        "epsilons": [4],
        **changes,
    }
    y = given.pop("y", None)
    with pytest.raises(InvalidInput, match=words):
        expost.plan_job(X, y, **given)


def test_a_fleet_needs_no_targets_for_a_loss_of_its_own(tuned):
    X, _ = tuned
    settings = [Configuration(0.05, 1, 50, 1.0, noise_multiplier=2.0)]
    (trained,) = Fleet(adapted, settings, loss="own").train(X, None)
    assert any(np.abs(value).max() > 0 for value in trained.parameters.values())


def test_other_modules_are_refused():
    with pytest.raises(InvalidInput, match="transformers"):
        CausalLM(torch.nn.Linear(2, 2), pad=0)
    with pytest.raises(InvalidInput, match="pad"):
        CausalLM(model_of("GPT-2"), pad=-1)


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "T5"])
def test_odd_tokens_change_no_other_row(name):
    """A token outside of the vocabulary, negative or huge: bounded, alone, and never an error."""
    X, y = rows(), np.zeros(8)
    odd = X.copy()
    odd[0, 2], odd[1, 0], odd[2, 1] = TOKENS, -3, 10**15
    loss = "softmax" if name == "BERT" else "own"
    sums = ModuleSums(wrapped(name), lambda: wrapped(name), odd, y, loss, "cpu")
    tame = ModuleSums(wrapped(name), lambda: wrapped(name), X, y, loss, "cpu")
    flat = torch.cat([value.detach().flatten() for value in sums.parameters.trained.values()])
    bound = torch.tensor([clip_bound(CLIP, sums.width, sums.rows).clip], dtype=torch.float64)

    def add(given, chosen):
        given.careful = True
        places = torch.as_tensor(chosen, dtype=torch.int64)[None]
        taken = torch.ones_like(places, dtype=torch.bool)
        return given(flat.double()[None], places, taken, bound, 1 << 30)[0].numpy()

    alone = np.array([add(sums, [row]) for row in range(8)])
    assert np.linalg.norm(alone, axis=1).max() <= CLIP
    whole = add(sums, range(8))
    assert np.allclose(whole, alone.sum(0), rtol=0, atol=1e-6)
    assert np.allclose(whole - alone[:3].sum(0), add(tame, range(3, 8)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_wide_mask_hides_later_tokens(name):
    """Where a library takes a mask of four dimensions as it is, it must say what is causal."""
    module = wrapped(name).eval()
    X = torch.from_numpy(rows())
    module.wide = False
    wanted = module(X)
    module.wide = True
    assert torch.allclose(module(X)[:7], wanted[:7], atol=1e-5)  # not of padding alone
    other = X.clone()
    other[:, 5:] = 4
    seen = module.logits(X)[:, :5], module.logits(other)[:, :5]
    assert torch.allclose(seen[0][:1], seen[1][:1], atol=1e-6)


def test_a_classifier_knows_its_padding():
    """GPT-2 decides by the last token before the padding, which its configuration must name."""
    settings = {name: value for name, value in GPT.items() if name != "pad_token_id"}
    config = library.GPT2Config(**settings, num_labels=3, attn_implementation="eager")
    module = SequenceClassifier(library.GPT2ForSequenceClassification(config), pad=PAD).eval()
    X = torch.from_numpy(rows())[:4]
    longer = torch.cat([X, torch.full((4, 2), PAD)], 1)
    assert torch.allclose(module(X), module(longer), atol=1e-6)
    with pytest.raises(InvalidInput, match="configuration says"):
        SequenceClassifier(model_of("BERT"), pad=PAD + 1)


def test_an_adapter_that_lacks_trained_parameters_is_not_written(tuned, tmp_path):
    """Otherwise it would be loaded without them, and answer something else."""
    import peft

    _, result = tuned

    def make():
        return CausalLM(
            peft.get_peft_model(
                model_of("GPT-2"),
                peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, bias="all"),
            ),
            pad=PAD,
        )

    trained = {
        name: value.detach().numpy()
        for name, value in make().named_parameters()
        if value.requires_grad
    }
    factory = replace(result.model.recipe.factory, given=make)
    model = replace(
        result.model, recipe=replace(result.model.recipe, factory=factory), parameters=trained
    )
    with pytest.raises(InvalidInput, match="modules_to_save"):
        save_adapter(model, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
