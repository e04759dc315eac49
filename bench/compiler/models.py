"""Models to measure and to train: a module, a batch, and its loss as a function of parameters and buffers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Model:
    """A model to train.

    Attributes:
        module: in training mode; its parameters are made from the seed that is set.
        batch: the inputs of one step: what the module takes first, what the loss compares with last.
        loss: from what the module returns and the last of the batch.
    """

    module: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[..., Tensor]

    def to(self, device: str) -> Model:
        """The same model on that device; its module is moved."""
        batch = tuple(one.to(device) for one in self.batch)
        return Model(self.module.to(device), batch, self.loss)

    def state(self) -> tuple[State, State]:
        """Fresh copies of the parameters and of the buffers."""
        parameters = {n: p.detach().clone().requires_grad_() for n, p in self.module.named_parameters()}
        return parameters, {n: b.detach().clone() for n, b in self.module.named_buffers()}

    def step(self, parameters: State, buffers: State, *batch: Tensor) -> Tensor:
        """The loss of one batch; a function of its arguments alone, which may write to the buffers."""
        result = functional_call(self.module, (parameters, buffers), batch[:1])
        return self.loss(result, batch[-1])


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalization, and a short cut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(y)))


def resnet(batch: int, channels: int, size: int, blocks: int) -> Model:
    """A residual network for images of `size` by `size`, after He et al., arXiv:1512.03385."""
    module = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        *(ResidualBlock(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )
    images, classes = torch.randn(batch, 3, size, size), torch.arange(batch) % 10
    return Model(module, (images, classes), functional.cross_entropy)


class Tagger(nn.Module):
    """Embeddings, an LSTM, and a class for each token."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(states)
        return logits


def lstm(batch: int, length: int, width: int) -> Model:
    """A next-token model on an LSTM of two layers."""
    tokens = _tokens(batch, length, 50)
    return Model(Tagger(50, width), (tokens,), _next_token)


class Encoder(nn.Module):
    """Embeddings and a transformer encoder with dropout."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embedding(tokens)))
        return logits


def transformer(batch: int, length: int, width: int, layers: int) -> Model:
    """`torch.nn.TransformerEncoder` with dropout."""
    return Model(Encoder(50, width, layers), (_tokens(batch, length, 50),), _next_token)


def _tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (batch, length))


def _next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class FromHub(nn.Module):
    """A model of the `transformers` package with random weights, called with tokens alone."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, tokens: Tensor) -> Tensor:
        return self.call(self.model, tokens)


def bert(batch: int, length: int, width: int, layers: int) -> Model:
    """An encoder: BERT with a masked-language head."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=50,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=length,
    )
    module = FromHub(BertForMaskedLM(config), lambda m, tokens: m(tokens).logits)
    return Model(module, (_tokens(batch, length, 50),), _next_token)


def gpt2(batch: int, length: int, width: int, layers: int) -> Model:
    """A decoder with a cache: GPT-2 on the first half, then on the second with the first's keys."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_embd=width, n_layer=layers, n_head=4, n_positions=length)

    def in_two_halves(model: nn.Module, tokens: Tensor) -> Tensor:
        first, second = tokens.chunk(2, 1)
        start = model(first, use_cache=True)
        rest = model(second, past_key_values=start.past_key_values, use_cache=True)
        return torch.cat([start.logits, rest.logits], 1)

    module = FromHub(GPT2LMHeadModel(config), in_two_halves)
    return Model(module, (_tokens(batch, length, 50),), _next_token)


def t5(batch: int, length: int, width: int, layers: int) -> Model:
    """An encoder and decoder: T5, which is to repeat what it reads."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=50,
        d_model=width,
        d_kv=width // 4,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=4,
        decoder_start_token_id=0,
    )
    module = FromHub(T5ForConditionalGeneration(config), lambda m, tokens: m(tokens, labels=tokens).logits)
    return Model(module, (_tokens(batch, length, 50),), _next_token)


# Of each model a small one, which trains in a moment, and one that is large enough to measure.
MODELS: Mapping[str, tuple[Callable[[], Model], Callable[[], Model]]] = MappingProxyType(
    {
        "resnet": (lambda: resnet(4, 4, 8, 2), lambda: resnet(16, 32, 32, 8)),
        "lstm": (lambda: lstm(3, 6, 8), lambda: lstm(16, 64, 128)),
        "transformer": (lambda: transformer(2, 6, 8, 2), lambda: transformer(8, 128, 128, 4)),
    }
)
HUB_MODELS: Mapping[str, tuple[Callable[[], Model], Callable[[], Model]]] = MappingProxyType(
    {
        "bert": (lambda: bert(2, 6, 8, 2), lambda: bert(8, 128, 128, 4)),
        "gpt2": (lambda: gpt2(2, 6, 8, 2), lambda: gpt2(8, 128, 128, 4)),
        "t5": (lambda: t5(2, 6, 8, 2), lambda: t5(8, 128, 128, 4)),
    }
)


def available() -> dict[str, tuple[Callable[[], Model], Callable[[], Model]]]:
    """The models that can be made here: those of `transformers` only where that is installed."""
    hub: Any = HUB_MODELS if importlib.util.find_spec("transformers") is not None else {}
    return {**MODELS, **hub}
