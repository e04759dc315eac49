"""Architectures: every one of `transformers` that can be made small, called and trained as in eager.

Each is made with random weights in float64, where most rounding is too small to be an excuse, and called
twice through `aot.aot_module`: in training mode, with a backward from everything that it returns, and in
evaluation mode without gradients. Results, gradients, buffers and the random state are held against eager's.
What cannot be made small, wants other inputs than are guessed here, or does not give the same twice in eager
is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import aot
from bench.report import Table

BATCH, LENGTH, WORDS = 2, 7, 50
MOST_PARAMETERS = 10_000_000
TOLERANCE = 1e-6  # of the largest element, of all gradients: some models compute in float32 all the same
# What the attributes of a configuration are to be that mean a size, under whatever name.
_SIZES: dict[int, tuple[str, ...]] = {
    2: (
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"),
        *("num_encoder_layers", "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok"),
    ),
    4: (
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
        *("decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"),
        *("sliding_window", "attention_window"),
    ),
    8: ("d_kv", "head_dim", "d_head", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "patch_size"),
    16: ("q_lora_rank", "kv_lora_rank", "num_mel_bins"),
    32: (
        *("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "projection_dim"),
        *("word_embed_proj_dim", "image_size"),
    ),
    48: (
        *("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner", "n_inner"),
        *("hidden_dim", "moe_intermediate_size", "shared_expert_intermediate_size"),
    ),
    64: ("max_position_embeddings", "n_positions", "max_seq_len", "vocab_size"),
}


class NotRun(Exception):
    """An architecture that says nothing, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one architecture: "same", "differs", "refused" or "not run", and in words why."""

    kind: str
    state: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one call gave and left behind."""

    results: tuple[Tensor, ...]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    randomness: Tensor


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--architecture", action="append", help="only this one (default: all)")
    parser.add_argument("--sample", type=int, help="as many as this, drawn with seed 0 (default: all)")


def measure(options: argparse.Namespace) -> list[Table]:
    """Run each; it takes some two seconds each."""
    every = options.architecture or architectures()
    if options.sample is not None:
        every = sorted(random.Random(0).sample(every, min(options.sample, len(every))))
    outcomes = [outcome(kind) for kind in every]
    counts = Counter(one.state for one in outcomes)
    states = tuple((state, counts[state]) for state in ("same", "differs", "refused", "not run"))
    others = tuple((one.kind, one.state, one.why) for one in outcomes if one.state in ("differs", "refused"))
    reasons = Counter(one.why.partition(":")[0] for one in outcomes if one.state == "not run")
    return [
        Table("Architectures of transformers, under aot_module and in eager", ("outcome", "count"), states),
        Table("Those that are not the same", ("architecture", "outcome", "why"), others),
        Table("Why others were not run", ("why", "count"), tuple(reasons.most_common())),
    ]


def architectures() -> list[str]:
    """Their names, as `AutoConfig` knows them."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(kind for kind in MODEL_MAPPING_NAMES if kind in CONFIG_MAPPING)


def outcome(kind: str) -> Outcome:
    """What becomes of an architecture, by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _not_run("cannot be made"):
                model, inputs = _made(kind)
            for train in (True, False):
                difference = _difference(model.train(train), inputs, train)
                if difference is not None:
                    return Outcome(kind, "differs", f"{'training' if train else 'evaluation'}: {difference}")
        except NotRun as error:
            return Outcome(kind, "not run", str(error))
        except aot.Unsupported as error:
            return Outcome(kind, "refused", f"{type(error).__name__}: {str(error)[:100]}")
        except Exception as error:
            return Outcome(kind, "differs", f"{type(error).__name__}: {str(error)[:100]}")
    return Outcome(kind, "same")


@contextlib.contextmanager
def _not_run(what: str) -> Iterator[None]:
    try:
        yield
    except NotRun:
        raise
    except Exception as error:
        raise NotRun(f"{what}: {type(error).__name__}: {str(error)[:60]}") from error


def _made(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model, and what it is called with."""
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = _small(CONFIG_MAPPING[kind]())
    torch.manual_seed(0)
    with torch.device("meta"):  # to see how large it is
        count = sum(p.numel() for p in AutoModel.from_config(copy.deepcopy(config)).parameters())
    if count > MOST_PARAMETERS:
        raise NotRun("too large")
    model: nn.Module = AutoModel.from_config(config).double()
    names = frozenset(inspect.signature(model.forward).parameters)
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Tensor] = {}
    tokens = torch.randint(3, WORDS, (BATCH, LENGTH), generator=generator)
    for name in ("input_ids", "decoder_input_ids"):
        if name in names:
            inputs[name] = tokens.clone()
    if not inputs and "pixel_values" in names:
        size, channels = getattr(config, "image_size", 32), getattr(config, "num_channels", 3)
        height, width = (size, size) if isinstance(size, int) else size
        inputs["pixel_values"] = torch.randn(BATCH, channels, height, width, generator=generator).double()
    elif not inputs and "input_values" in names:
        inputs["input_values"] = torch.randn(BATCH, 1600, generator=generator).double()
    elif not inputs and "input_features" in names:
        bins = getattr(config, "num_mel_bins", 16)
        inputs["input_features"] = torch.randn(BATCH, bins, 64, generator=generator).double()
    if not inputs:
        raise NotRun("takes none of the inputs that are known here")
    return model, inputs


def _small(config: Any) -> Any:
    """A configuration, made that of a small model without a cache, as those in it are."""
    for size, names in _SIZES.items():
        for name in names:
            if type(getattr(config, name, None)) is int:
                setattr(config, name, size)
    # (With a padding token a model looks at the values of the tokens; a cache is an object of its own class.)
    for name, value in (("use_cache", False), ("pad_token_id", None)):
        if hasattr(config, name):
            setattr(config, name, value)
    for name in ("layer_types", "mlp_layer_types"):
        if isinstance(types := getattr(config, name, None), list) and types:
            setattr(config, name, (list(dict.fromkeys(types)) * 2)[:2])
    for name in getattr(type(config), "sub_configs", None) or ():
        if (inner := getattr(config, name, None)) is not None:
            _small(inner)
    return config


def _difference(model: nn.Module, inputs: dict[str, Tensor], train: bool) -> str | None:
    """The first difference from eager in two calls; None if there is none."""
    state = copy.deepcopy(model.state_dict())

    def run(function: Callable[..., Any]) -> Ran:
        model.load_state_dict(state)
        with torch.set_grad_enabled(train):
            return _run(function, model, inputs)

    with _not_run("eager raises"):
        eager, again = run(model), run(model)
    if _differs(eager, again) is not None:
        raise NotRun("eager gives something else the second time")
    compiled = aot.aot_module(model, aot.nop)
    for _ in range(2):
        difference = _differs(eager, run(compiled))
        if difference is not None:
            return difference
    return None


def _run(function: Callable[..., Any], model: nn.Module, inputs: dict[str, Tensor]) -> Ran:
    model.zero_grad()
    torch.manual_seed(1)
    results = tuple(one for one in pytree.tree_leaves(_plain(function(**inputs))) if isinstance(one, Tensor))
    carrying = [one for one in results if one.requires_grad]
    if carrying:
        weights = [torch.linspace(0.5, 1, one.numel(), dtype=one.dtype).view_as(one) for one in carrying]
        torch.autograd.backward(carrying, weights)
    return Ran(
        results=tuple(one.detach().clone() for one in results),
        gradients={n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        buffers={n: b.clone() for n, b in model.named_buffers()},
        randomness=torch.get_rng_state(),
    )


def _plain(output: Any) -> Any:
    """What a model returns, without the classes of `transformers` for it."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    return [_plain(one) for one in output] if isinstance(output, (tuple, list)) else output


def _differs(eager: Ran, other: Ran) -> str | None:
    """The first difference between two runs, in words."""
    if len(eager.results) != len(other.results):
        return f"{len(other.results)} results, {len(eager.results)} in eager"
    scale = max((_largest(one) for one in eager.gradients.values() if one is not None), default=0.0)
    results = enumerate(zip(eager.results, other.results, strict=True))
    tests = {f"result {i}": _equal(*pair) for i, pair in results}
    tests |= {
        f"gradient of {n}": _equal(one, other.gradients[n], scale) for n, one in eager.gradients.items()
    }
    tests |= {f"buffer {n}": _equal(one, other.buffers.get(n)) for n, one in eager.buffers.items()}
    tests["random state"] = torch.equal(eager.randomness, other.randomness)
    return next((name for name, equal in tests.items() if not equal), None)


def _largest(one: Tensor) -> float:
    return one.abs().nan_to_num(0, 0).max().item() if one.numel() else 0.0


def _equal(one: Tensor | None, other: Tensor | None, scale: float | None = None) -> bool:
    if one is None or other is None:
        return one is other
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    atol = TOLERANCE * (_largest(one) if scale is None else scale)
    return torch.allclose(one, other, rtol=0, atol=atol, equal_nan=True)
