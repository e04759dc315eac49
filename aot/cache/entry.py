"""Cache entry: the place of one compile in the cache.

In: a front end's graph and a call of it. Out: a `CacheEntry`, which reads the `Lowered` of another process,
or writes the one of this process.
Invariant: nothing here raises because of what is on disk. An entry that cannot be read is dropped with a
warning.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from torch import nn

from aot import logs
from aot.analysis.metadata import ViewAndMutationMeta
from aot.cache.codec import Corrupt, Data, Decoder, Encoder, Uncacheable, decode, encode, parts, require_type
from aot.cache.graph_codec import decode_graph, encode_graph
from aot.cache.json_decoder import parse_json
from aot.cache.key import Key, Options, Places, cache_key, tree_structure
from aot.cache.store import Store
from aot.cache.validation import check_lowered
from aot.capture.intercept.streams import StreamOrder
from aot.capture.recorder.autocast_cache import CastUse
from aot.pipeline.artifact import Lowered
from aot.runtime.plan import Plan
from aot.specialize.call import Arguments
from aot.torch_internals import pytree, torch_fakes


def entry_of(
    folder: Store,
    module: nn.Module,
    places: Places,
    arguments: Arguments,
    spec: pytree.TreeSpec,
    options: Options,
) -> CacheEntry | None:
    """The place of a call's compile; None if it must not be stored. For the arguments see `cache_key`."""
    try:
        views = frozenset(i for i, tensor in enumerate(arguments.tensors) if tensor._is_view())
        return CacheEntry(folder, cache_key(module, places, arguments, spec, options), views, len(places))
    except Uncacheable as error:
        _uncached(folder, error)
        return None


def _uncached(folder: Store, error: Uncacheable) -> None:
    logs.log(logs.CACHE, "not kept", error.__str__)
    folder.note(f"uncached {error.reason}")


class CacheEntry:
    """The place of one compile.

    Args:
        folder: the cache.
        key: the key of the compile.
        views: the positions of tensors of the call that are views.
        places: how many places the module has for tensors; None if there is no module.
    """

    def __init__(self, folder: Store, key: Key, views: frozenset[int], places: int | None) -> None:
        self._folder = folder
        self._key = key
        self._views = views
        self._places = places
        self._content = b""  # a digest of what was read
        self._failure: Exception | None = None

    def read(self) -> Lowered | None:
        """Read the entry; None if there is none, or it is damaged."""
        content = self._folder.read(self._key.digest)
        if content is not None:
            try:
                lowered = self._unpack_compile(parse_json(content))
            except Exception as error:  # data of a stranger may lead to any error
                self._drop(error)
            else:
                self._content = hashlib.sha256(content).digest()
                self._note("hit")
                return lowered
        self._note("miss")
        return None

    def _note(self, what: str) -> None:
        logs.log(logs.CACHE, what, lambda: self._key.digest)
        self._folder.note(what)

    def discard(self, error: Exception) -> None:
        """Record that the entry could not be used. If the call can be compiled, `write` drops the entry."""
        self._failure = error

    def _drop(self, error: Exception) -> None:
        self._folder.drop(self._key.digest, f"{type(error).__name__}: {error}")

    def encode(self, lowered: Lowered, order: StreamOrder | None) -> bytes | None:
        """The bytes to store of a compile; None if it must not be stored."""
        try:
            if order is not None:
                raise Uncacheable("CUDA streams or events of this process")
            return self._pack_compile(lowered)
        except Uncacheable as error:
            _uncached(self._folder, error)
            return None

    def write(self, packed: bytes) -> None:
        """Store a compile, and first drop the old entry if it could not be used."""
        if self._failure is not None:
            self._drop(self._failure)
        self._folder.write(self._key.digest, packed)

    def matches(self, lowered: Lowered) -> bool:
        """Whether a compile has the data that was read."""
        try:
            return hashlib.sha256(self._pack_compile(lowered)).digest() == self._content
        except Uncacheable:
            return False

    def _pack_compile(self, lowered: Lowered) -> bytes:
        if lowered.plan.runs_python:
            raise Uncacheable("Python that runs in the backward")
        operators = self._key.operators
        context = Encoder(operators)
        data = [
            encode(context, Plan, lowered.plan),
            encode_graph(lowered.forward, operators),
            [None if b is None else encode_graph(b, operators) for b in lowered.backwards],
            list(lowered.again),
            encode(context, ViewAndMutationMeta, lowered.metadata),
            tree_structure(lowered.spec),
            sorted(lowered.grad_targets),
            encode(context, CastUse, lowered.casts),
        ]
        return json.dumps(data, separators=(",", ":")).encode()

    def _unpack_compile(self, data: Data) -> Lowered:
        plan, forward, backwards, again, metadata, tree, differentiated, casts = parts(data, 8)
        operators, mode = self._key.operators, functools.cache(torch_fakes.FakeTensorMode)
        context = Decoder(operators)
        lowered = Lowered(
            decode(context, Plan, plan),
            decode_graph(forward, operators, mode),
            tuple(
                None if b is None else decode_graph(b, operators, mode) for b in require_type(backwards, list)
            ),
            decode(context, tuple[bool, ...], again),
            decode(context, ViewAndMutationMeta, metadata),
            pytree.tree_flatten(_tree_from_structure(tree))[1],
            decode(context, frozenset[int], differentiated),
            decode(context, CastUse, casts),
        )
        check_lowered(lowered, self._views, self._places)
        return lowered


def _tree_from_structure(data: Data) -> Any:
    """The inverse of `tree_structure`."""
    if data is None or type(data) is int:
        return data
    kind, *rest = require_type(data, list)
    if kind == "tuple":
        return tuple(map(_tree_from_structure, rest))
    if kind == "list":
        return list(map(_tree_from_structure, rest))
    if kind != "dict":
        raise Corrupt("no tree")
    pairs = [parts(pair, 2) for pair in rest]
    if any(type(key) not in (str, int) for key, _ in pairs):
        raise Corrupt("no tree")
    return {key: _tree_from_structure(value) for key, value in pairs}
