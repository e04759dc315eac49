"""Operators that read and write Python state: attributes, counters, caches, flags, generators, modes, errors.

What is kept from one call to the next are fields of one object, `state` in a program's text: an object of its
own, or the module if the function is one's. `START` has the line that makes each field what it is before the
first call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from fuzz.operators.builders import INDEX, NUMBERS, REAL, RESULT, alike, fits_anywhere, python_row
from fuzz.operators.dtypes import FLOATS, NUMERIC
from fuzz.operators.row import (
    MAX_ELEMENTS,
    Attributes,
    Kind,
    Meta,
    Mismatch,
    Operand,
    Operator,
    Result,
)

START: Mapping[str, str] = MappingProxyType(
    {
        "calls": "state.calls = 0",
        "flag": "state.flag = False",
        "sizes": "state.sizes = []",
        "entries": "state.entries = {}",
        "cache": "state.cache = {}",
        "made": 'vars(state).pop("made", None)',
        "mean": "state.mean = torch.zeros(())",
        "layer": "state.layer = torch.nn.Identity()",
        "optimizer": "state.optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])",
        "table": "table.cache_clear()",
    }
)
"""The fields of `state`, and what a cache of the program's is before the first call."""

_FIELD = re.compile(r"\bstate\.(\w+)|\b(table)\(")

_FIRST_TIME = """
def first_time(state, x):
    if not state.flag:
        state.flag = True
        return x * 10
    return x * 2
""".strip()

_TABLE = """
@functools.lru_cache
def table(rank):
    return torch.full((), rank + 0.5)
""".strip()

_CACHED = """
def cached(state, x):
    if x.dim() not in state.cache:
        state.cache[x.dim()] = x.detach().sum().float()
    return x * state.cache[x.dim()].to(x.dtype)
""".strip()

_LAZILY = """
def lazily(state, x):
    if not hasattr(state, "made"):
        state.made = torch.full((), 2.5)
    return x * state.made.to(x.dtype)
""".strip()

_RUNNING = """
def running(state, x):
    state.mean = state.mean * 0.5 + x.detach().sum().float()
    return x * state.mean.to(x.dtype)
""".strip()

_STEP = """
def step(state, x):
    [weight] = state.optimizer.param_groups[0]["params"]
    weight.grad = x.detach().sum().float().expand(2).clone()
    state.optimizer.step()
""".strip()

_HOOK = """
def hook(state):
    state.layer.register_forward_hook(lambda module, given, result: None)
""".strip()

_WATCHING = """
class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
""".strip()

_CHOLESKY = """
def cholesky_or_double(x):
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x.tril() * 2
""".strip()

_INVERSE = """
def inverse_or_double(x):
    try:
        return torch.linalg.inv(x)
    except RuntimeError:
        return x * 2
""".strip()

_ROWS_OR_NEAREST = """
def rows_or_nearest(x, index):
    try:
        return x.index_select(0, index.reshape(-1))
    except (IndexError, RuntimeError):
        return x.index_select(0, index.reshape(-1).clamp(0, x.shape[0] - 1))
""".strip()


def initial_state_lines(operators: Iterable[Operator]) -> list[str]:
    """The lines that make the fields which these rows use what they are before the first call.

    >>> initial_state_lines([row for row in ROWS if row.name == "count"])
    ['state.calls = 0']
    """
    used: set[str] = set()
    for row in operators:
        if row.kind is Kind.PYTHON:
            used.update(one or other for one, other in _FIELD.findall(f"{row.source}\n{row.defines}"))
    return [line for field, line in START.items() if field in used]


def _nothing(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    return ()


def _ranked(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    if not metas[0].size:
        raise Mismatch("nothing without dimensions has a first length")
    return ()


def _square(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size = metas[0].size
    if len(size) < 2 or size[-1] != size[-2]:
        raise Mismatch(f"a tensor of size {size} is no square matrix")
    return (Result(Meta(metas[0].dtype, size, None)),)


def _python_state_rows(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    size, count = metas[0].size, 1
    if not size or not size[0]:
        raise Mismatch(f"a tensor of size {size} has no rows")
    for length in metas[1].size:
        count *= length
    if count > MAX_ELEMENTS:
        raise Mismatch("more rows than any program's tensor has")
    return (Result(Meta(metas[0].dtype, (count, *size[1:]), None)),)


def _reads(name: str, source: str, defines: str = "", dtypes: frozenset[str] = NUMERIC) -> Operator:
    """Makes a tensor like its operand, by what Python state says."""
    return python_row(name, source, alike, (Operand(dtypes, fits_anywhere),), defines)


def _does(name: str, source: str, defines: str = "") -> Operator:
    """Changes Python state alone."""
    return python_row(name, source, _nothing, (), defines, differentiable=False)


_EXACT = Operand(frozenset({"float32", "float64"}), fits_anywhere)

ROWS = (
    python_row("mark", "{0}.mark = True", _nothing, (NUMBERS,), differentiable=False),
    _reads("getattr_mark", '({0} * 2 if getattr({0}, "mark", False) else {0} * 3)'),
    _reads("hasattr_mark", '({0} + 1 if hasattr({0}, "mark") else {0} + 2)'),
    _does("count", "state.calls += 1"),
    _reads("read_count", "{0} * (state.calls + 2)"),
    python_row("log_size", "state.sizes.append({0}.shape[0])", _ranked, (NUMBERS,), differentiable=False),
    _reads("read_log", "{0} * (len(state.sizes) + 2)"),
    python_row(
        "keep_entry", "state.entries[{0}.dim()] = {0}.shape", _nothing, (NUMBERS,), differentiable=False
    ),
    _does("switch_flag", "state.flag = not state.flag"),
    _reads("first_time", "first_time(state, {0})", _FIRST_TIME),
    _reads("lru_cached", "{0} * table({0}.dim()).to({0}.dtype)", _TABLE, FLOATS),
    _reads("cached", "cached(state, {0})", _CACHED, FLOATS),
    _reads("lazily", "lazily(state, {0})", _LAZILY, FLOATS),
    _reads("running", "running(state, {0})", _RUNNING, FLOATS),
    python_row("optimizer_step", "step(state, {0})", _nothing, (REAL,), _STEP, differentiable=False),
    _does("switch_training", "state.layer.train(not state.layer.training)"),
    _reads("read_training", "{0} * (2 if state.layer.training else 3)"),
    _does("hook_module", "hook(state)", _HOOK),
    _reads("python_random", "{0} * random.random()", dtypes=FLOATS),
    _reads("numpy_random", "{0} * float(numpy.random.random_sample())", dtypes=FLOATS),
    _does("use_deterministic", "torch.use_deterministic_algorithms(True, warn_only=True)"),
    _does("enter_mode", "Watching().__enter__()", _WATCHING),
    python_row("cholesky_or_double", "cholesky_or_double({0})", _square, (_EXACT,), _CHOLESKY, RESULT),
    python_row("inverse_or_double", "inverse_or_double({0})", _square, (_EXACT,), _INVERSE, RESULT),
    python_row(
        "rows_or_nearest",
        "rows_or_nearest({0}, {1})",
        _python_state_rows,
        (REAL, INDEX),
        _ROWS_OR_NEAREST,
        ((1, (0,)),),
    ),
)
