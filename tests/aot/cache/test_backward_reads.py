"""What the Python of a custom operator reads: it is in the key of the cache on disk, or nothing is kept."""

from __future__ import annotations

import builtins
import importlib
import itertools
import json
import math
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import aot
from aot.cache import bytecode_interpreter
from aot.cache.__main__ import main
from aot.cache.codec import Data, Uncacheable
from aot.cache.source_digest import operator_digest
from tests.support.agreement import leaf
from tests.support.aot.operator_reads import CALLS, CODE, OBJECTS, WAYS, needs_followed_bytecode

numbers = itertools.count()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What the ways below change of libraries is put back."""
    torch._dynamo.reset()
    spaces = [vars(one) for one in (builtins, math, sys, torch)]
    before = [dict(space) for space in (*spaces, sys.modules, os.environ)]
    switch = torch.backends.cuda.matmul.allow_tf32
    threads, sgn, seed = torch.get_num_threads(), torch.Tensor.sgn, torch.initial_seed()
    yield
    for space, old in zip((*spaces, sys.modules, os.environ), before, strict=True):
        for name in space.keys() - old.keys():
            del space[name]
    sys.argv = before[2]["argv"]
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.set_autocast_cache_enabled(True)
    torch.backends.cuda.matmul.allow_tf32 = switch
    if torch.Tensor.sgn is not sgn:
        torch.Tensor.sgn = sgn  # type: ignore[method-assign]
    if hasattr(torch.Tensor, "appk"):
        del torch.Tensor.appk


def module(name: str, source: str) -> types.ModuleType:
    """A module of that source, imported."""
    made = types.ModuleType(name)
    made.__package__ = name.rpartition(".")[0]
    sys.modules[name] = made
    exec(compile(textwrap.dedent(source), f"<{name}>", "exec", dont_inherit=True), vars(made))
    return made


BEFORE = """
import torch
from torch import Tensor
def shape(x): return torch.empty_like(x)
setup = None
rule = None
"""


def program(source: str) -> Any:
    """A module that defines the derivative of an operator, and the operator."""
    app = module("app", BEFORE + textwrap.dedent(source))
    name = f"aotcachereads{next(numbers)}::double"
    op = torch.library.custom_op(name, lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(app.shape)
    op.register_autograd(app.backward, setup_context=app.setup)
    if app.rule is not None:
        op.register_vmap(app.rule)
    vars(app)["op"] = op
    if "after" in vars(app):
        app.after(op)
    return app


def gradient(op: Any) -> float:
    """The derivative that eager has."""
    x = leaf(2)
    op(x).sum().backward()
    assert x.grad is not None
    return float(x.grad[0])


def data_of(op: Any) -> Data:
    """What is in the key of an operator; or why it has none."""
    try:
        return operator_digest(op._opoverload)
    except Uncacheable as error:
        return error.reason


@needs_followed_bytecode
@pytest.mark.parametrize("name", WAYS)
def test_what_a_derivative_reads_is_in_the_key_or_nothing_is_kept(name: str, tmp_path: Path) -> None:
    way = WAYS[name]
    cfg = module("appcfg", "K = 2.0\nL = 3.0\ndef scaled(g): return g * K")
    vars(cfg).update(__path__=[], sub=module("appcfg.sub", "K = 2.0"))

    def later(k: float) -> None:
        module("applater", f"K = {k}")

    source = f"import appcfg as cfg\nfrom appcfg import sub\npath = {str(tmp_path / 'k')!r}\n"
    app = program(source + textwrap.dedent(way.source))
    vars(app)["later"] = later
    first = data_of(app.op)
    if name == "an import that comes later":
        later(2.0)
    assert gradient(app.op) == 2
    exec(way.change, vars(app))
    assert gradient(app.op) == 3
    if way.reason:
        assert first == way.reason
    else:
        assert not isinstance(first, str), first
        assert first != data_of(app.op)


# What a derivative may depend on, of which no other value can be had here.
EXPRESSIONS = """
random.random()
time.time()
time.perf_counter()
numpy.random.rand()
numpy.get_printoptions()
os.getpid()
os.getcwd()
os.path.exists("x")
platform.node()
id(g)
hash(g)
type(g)
dir(ctx)
input()
locals()
print(g)
open
sys.flags
sys.version_info
sys.getrecursionlimit()
gc.isenabled()
socket.gethostname()
subprocess.run(["true"])
threading.current_thread()
datetime.datetime.now()
decimal.getcontext()
locale.getlocale()
warnings.filters
logging.getLogger()
torch.__version__
torch.get_rng_state()
torch.default_generator
torch.get_num_interop_threads()
torch.is_anomaly_enabled()
torch.is_autocast_enabled("cpu")
torch.get_autocast_dtype("cpu")
torch.is_warn_always_enabled()
torch.cuda.is_available()
torch.backends.cpu.get_cpu_capability()
torch.compiler.is_compiling()
torch.hub.get_dir()
torch.utils.data.get_worker_info()
torch._dynamo.config.suppress_errors
torch.ops.aten.nothing
torch.classes.nothing
torch.autocast("cpu")
torch.library.get_ctx()
torch.nn.init.zeros_(g)
g.data_ptr()
g.share_memory_()
g._version
g.__dict__
g.__class__
g.nothing
ctx.nothing
ctx._nothing
g.__class__.__mro__
f"{1:{g}}"
f"{1.5:n}"
{g, 1}
[y for y in {"a", "b"}]
""".strip().splitlines()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_nothing_is_kept_of_a_derivative_that_may_read_anything(expression: str) -> None:
    names = (
        "datetime, decimal, gc, locale, logging, numpy, os, platform, random, socket, subprocess, sys, "
        "threading, time, warnings"
    )
    app = program(f"import {names}\ndef backward(ctx, g):\n    return [g, {expression}][0]")
    assert data_of(app.op) in (OBJECTS, CALLS, CODE)


# Objects and code that look for trouble with whoever looks at them.
ODD = {
    "attributes that raise": """
        class Odd:
            def __getattribute__(self, name): raise RuntimeError(name)
        odd = Odd()
        def backward(ctx, g): return g * odd
        """,
    "a class that raises": """
        class Odd:
            @property
            def __class__(self): raise RuntimeError
        odd = Odd()
        def backward(ctx, g): return g * odd.k
        """,
    "a metaclass that raises": """
        class Meta(type):
            def __getattribute__(self, name): raise RuntimeError(name)
            def __eq__(self, other): raise RuntimeError
        class Odd(metaclass=Meta): pass
        def backward(ctx, g): return Odd.k(g, Odd)
        """,
    "an object of another class": """
        import math, types
        class Odd:
            __class__, __name__, __self__ = types.BuiltinFunctionType, "sqrt", math
            def __call__(self, g): return g
        odd = Odd()
        def backward(ctx, g): return odd(g)
        """,
    "a module of another class": """
        import types
        class Odd(types.ModuleType):
            def __getattr__(self, name): return 2.0
        odd = Odd("odd")
        def backward(ctx, g): return g * odd.k
        """,
    "a closure without a value": """
        def make():
            def backward(ctx, g): return g * k
            return backward
            k = 1
        backward = make()
        """,
    "an import beyond the top": "def backward(ctx, g):\n    from ... import k\n    return g * k",
    "code without an end": """
        import dis
        def backward(ctx, g): return g
        backward.__code__ = backward.__code__.replace(co_code=bytes([dis.opmap["RESUME"], 0]))
        """,
    "code without a stack": """
        def backward(ctx, g): return g
        backward.__code__ = backward.__code__.replace(co_code=bytes([83, 0, 83, 0]))
        """,
    "a jump to nowhere": """
        import dis
        def backward(ctx, g): return g
        backward.__code__ = backward.__code__.replace(co_code=bytes([dis.opmap["JUMP_FORWARD"], 7]))
        """,
    "functions too deep": "f0 = lambda g: g\n"
    + "\n".join(f"def f{i}(g): return f{i - 1}(g)" for i in range(1, 400))
    + "\ndef backward(ctx, g): return f399(g)",
    "too many functions": "\n".join(f"def f{i}(g): return g" for i in range(501))
    + "\ndef backward(ctx, g):\n"
    + "\n".join(f"    f{i}(g)" for i in range(501)),
    "a large table": "K = list(range(10_001))\ndef backward(ctx, g): return g * K[0]",
}


@pytest.mark.parametrize("name", ODD)
def test_what_looks_for_trouble_is_not_kept(name: str) -> None:
    assert data_of(program(ODD[name]).op) in (OBJECTS, CALLS, CODE)


def test_operators_of_torch_s_own_are_known_by_name() -> None:
    importlib.import_module("torch._dynamo._trace_wrapped_higher_order_op")
    data = operator_digest(torch.ops.flex_lib.zeros_and_scatter.default)
    assert data == operator_digest(torch.ops.flex_lib.zeros_and_scatter.default)
    assert "torch._dynamo._trace_wrapped_higher_order_op" in str(data)


KEPT = {
    "operators": "def backward(ctx, g): return torch.where(g > 0, g.exp(), torch.sin(g)) @ torch.ones(2, 2)",
    "functional": "import torch.nn.functional as F\n"
    "def backward(ctx, g): return F.relu(F.gelu(g) * F.pad(g, (0, 0)))",
    "functional by name": "from torch.nn.functional import softmax\n"
    "def backward(ctx, g): return softmax(g, dim=-1)",
    "operators by name": "def backward(ctx, g): return torch.ops.aten.mul.Tensor(g, torch.ops.aten.sin(g))",
    "modules of torch": "def backward(ctx, g): return torch.special.expm1(g) + torch.linalg.vector_norm(g)",
    "methods": "def backward(ctx, g): return g.view(-1).to(torch.float64).mul_(2).float().T.norm() * g",
    "saved tensors": """
        def setup(ctx, inputs, output):
            (x,) = inputs
            ctx.save_for_backward(x)
            ctx.size, ctx._dtype = x.shape, x.dtype
            ctx.set_materialize_grads(False)
        def backward(ctx, g):
            if g is None or not ctx.needs_input_grad[0]:
                return None
            (x,) = ctx.saved_tensors
            return (g * x.cos()).reshape(ctx.size).to(ctx._dtype)
        """,
    "numbers": "import math, numpy as np\nK = np.float32(2)\n"
    "def backward(ctx, g): return g * math.sqrt(2) * np.pi * float(np.sqrt(2.0)) * K * math.prod(g.shape)",
    "a table": "K = {'a': 1, 'b': (2, 3)}\nL = [1, 2]\n"
    "def backward(ctx, g): return g * K['b'][0] * sum(L) * len(K) * max(v for v in L)",
    "helpers": """
        import functools, itertools, operator
        SCALE = 2.0
        def scaled(g, *, by=SCALE, how=torch.mul): return how(g, by)
        def each(f, *gs): return [f(one) for one in gs]
        def backward(ctx, g):
            first, *others = each(functools.partial(scaled, by=3.0), g, g)
            for one, (two, _) in enumerate(zip(others, itertools.repeat(1))):
                first = operator.add(first, two * one)
            return functools.reduce(torch.add, map(scaled, [first, g]))
        """,
    "modes": "def backward(ctx, g):\n    with torch.no_grad():\n        g = g * 2\n    return g",
    "a decorator": "@torch.no_grad()\ndef backward(ctx, g): return g * 2",
    "errors": """
        def shape(x):
            torch._check(x.dim() == 1, lambda: f"wrong: {x.dim()}")
            assert x.dtype is torch.float32, f"a dtype: {x.dtype!r}"
            if not isinstance(x, Tensor) or x.device.type != "cpu":
                raise ValueError("a tensor of the CPU is expected, and not %s" % x.device)
            try:
                return x.new_empty(x.shape)
            finally:
                del x
        def backward(ctx, g):
            try:
                return g.reshape(5)
            except (RuntimeError, TypeError) as error:
                if "shape" not in str(error): raise
            return g
        """,
    "an import": "def backward(ctx, g):\n    import math\n    from torch import nn\n"
    "    return nn.functional.relu(g) * math.pi",
    "itself": "def backward(ctx, g): return op(g)",
    "a rule for vmap": "def rule(info, in_dims, x): return op(x), in_dims[0]\ndef backward(ctx, g): return g",
    "the shape": "shape = torch.empty_like\n"
    "def backward(ctx, g): return g.new_zeros(2, dtype=g.dtype, device=g.device)",
    "recursion": "def f(g, n): return f(g * 2, n - 1) if n else g\ndef backward(ctx, g): return f(g, 3)",
    "while": "def backward(ctx, g):\n    n = 0\n    while n < 3: n, g = n + 1, -g\n    return g",
    "slices": "def backward(ctx, g):\n    g = g.clone()\n    g[0:1] += 1\n    return g[..., None].sum(-1)",
}


@needs_followed_bytecode
@pytest.mark.parametrize("name", KEPT)
def test_what_operators_usually_do_is_followed(name: str) -> None:
    seen = []
    for _ in range(2):
        app = program(KEPT[name])
        seen.append(data_of(app.op))
        assert not isinstance(seen[-1], str), seen[-1]
    assert seen[0][1:] == seen[1][1:]  # but for the name


@needs_followed_bytecode
@pytest.mark.parametrize("name", KEPT)
def test_what_operators_usually_do_is_kept_and_found(name: str, tmp_path: Path) -> None:
    app = program(KEPT[name])
    gradients = []
    with aot.config.patch(cache=tmp_path / "cache"):
        for compiled in (False, True, True):
            x = torch.tensor([0.5, 2.0], requires_grad=True)
            graph = fx.Graph()
            graph.output(graph.call_function(app.op._opoverload, (graph.placeholder("x"),)))
            function: Any = fx.GraphModule(nn.Module(), graph)
            if compiled:
                function = aot.aot_module_simplified(function, (x,), aot.nop)
            (function(x) * torch.tensor([1.0, 3.0])).sum().backward()
            gradients.append(x.grad)
        stats = aot.cache.stats()
    assert (stats.misses, stats.hits, stats.uncached) == (1, 1, {})
    for one in gradients[1:]:
        torch.testing.assert_close(one, gradients[0])


def test_nothing_is_kept_where_the_bytecode_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Python of another version than that of the instructions that are known."""
    monkeypatch.setattr(bytecode_interpreter, "VERSION", (sys.version_info[0], sys.version_info[1] - 1))
    for source in ("K = 2.0\ndef backward(ctx, g): return g * K", KEPT["helpers"], KEPT["saved tensors"]):
        assert data_of(program(source).op) == CODE
    app = program(KEPT["a table"])
    x = leaf(2)
    graph = fx.Graph()
    graph.output(graph.call_function(app.op._opoverload, (graph.placeholder("x"),)))
    with aot.config.patch(cache=tmp_path / "cache"):
        aot.aot_module_simplified(fx.GraphModule(nn.Module(), graph), (x,), aot.nop)(x).sum().backward()
        stats = aot.cache.stats()
    assert (stats.entries, stats.uncached) == (0, {CODE: 1})
    assert x.grad is not None and x.grad.tolist() == [2 * 3 * 2 * 2] * 2


APPLICATION = """
import json, os, sys
import torch, aot, appcfg
from torch import Tensor
path, factor = sys.argv[1:]

def operator(name, body, backward):
    op = torch.library.custom_op(f"app::{name}", body, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: torch.empty_like(x))
    op.register_autograd(backward)
    def program(x):
        return op(x) * 1
    return program

def imported(ctx, g):
    from appcfg import FACTOR
    return g * FACTOR

def environment(ctx, g): return g * float(os.environ["APP_FACTOR"])

def file(ctx, g): return g * float(open(path).read())

def double(ctx, g): return g * 2

def from_file(x): return x * float(open(path).read())

found = {}
for name, body, backward in (
    ("imported", torch.clone, imported),
    ("environment", torch.clone, environment),
    ("file", torch.clone, file),
    ("kernel", from_file, double),
):
    x = torch.ones(2, requires_grad=True)
    y = torch.compile(operator(name, body, backward), backend="aotfuzz")(x)
    y.sum().backward()
    found[name] = [y[0].item(), x.grad[0].item(), aot.cache.stats().hits]
print(json.dumps(found))
"""


@pytest.mark.nightly
@needs_followed_bytecode
def test_another_process_does_not_get_what_an_older_one_has_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file, folder = tmp_path / "app.py", tmp_path / "factor", tmp_path / "cache"
    script.write_text(APPLICATION)
    found = []
    for factor in ("2.0", "3.0"):
        (tmp_path / "appcfg.py").write_text(f"FACTOR = {factor}")
        file.write_text(factor)
        paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        changed = {"APP_FACTOR": factor, "AOTFUZZ_CACHE_DIR": str(folder), "PYTHONPATH": paths}
        command = [sys.executable, "-W", "error::aot.CacheWarning", str(script), str(file), factor]
        environment = {**os.environ, **changed, "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(json.loads(ran.stdout))
    # The result, the gradient, and how many entries have been found so far.
    read = {"imported": [1, 2, 0], "environment": [1, 2, 0], "file": [1, 2, 0], "kernel": [2, 2, 0]}
    assert found[0] == read
    assert found[1] == {
        "imported": [1, 3, 0],
        "environment": [1, 3, 0],
        "file": [1, 3, 0],
        "kernel": [3, 2, 1],
    }
    with aot.config.patch(cache=folder):
        stats = aot.cache.stats()
    assert (stats.misses, stats.hits, stats.uncached) == (3, 1, {OBJECTS: 2, CALLS: 2})
    assert main(["--folder", str(folder), "stats"]) == 0
    shown = capsys.readouterr().out
    assert f"2 {OBJECTS}" in shown and f"2 {CALLS}" in shown
