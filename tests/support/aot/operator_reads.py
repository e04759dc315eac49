"""Ways for the Python of a custom operator to read something that may change."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from aot.cache import bytecode_interpreter

OBJECTS = "a custom operator that reads Python objects"
CALLS = "a custom operator that calls what may read anything"
CHANGES = "a custom operator that changes what is outside of it"
CODE = "a custom operator with code that is not followed"
UNKNOWN = "a custom operator of which the source is not known"
# Bytecode of one version of Python is followed. On others, no graph that calls such operators is kept.
FOLLOWED = sys.version_info[:2] == bytecode_interpreter.VERSION
needs_followed_bytecode = pytest.mark.skipif(
    not FOLLOWED,
    reason="the bytecode of this Python is not followed (issue 47): custom operators are not kept",
)


@dataclass(frozen=True)
class Way:
    """A way to read a number in a derivative.

    Attributes:
        source: of a module, with the derivative.
        change: makes the number 3, which was 2.
        reason: why it is not kept; "" if what is read is followed into the key.
    """

    source: str
    change: str
    reason: str = ""


PLAIN = "def backward(ctx, g): return g * K"
HOLDER = "class Holder:\n    pass\nholder = Holder(); holder.k = 2.0\n"
WAYS = {
    "a global": Way(f"K = 2.0\n{PLAIN}", "K = 3.0"),
    "a closure": Way(
        """
        def make(k):
            def backward(ctx, g): return g * k
            return backward
        backward = make(2.0)
        """,
        "backward.__closure__[0].cell_contents = 3.0",
    ),
    "a default": Way("def backward(ctx, g, k=2.0): return g * k", "backward.__defaults__ = (3.0,)"),
    "a default by name": Way(
        "def backward(ctx, g, *, k=2.0): return g * k", "backward.__kwdefaults__ = {'k': 3.0}"
    ),
    "replaced code": Way(
        "def backward(ctx, g): return g * 2.0\ndef other(ctx, g): return g * 3.0",
        "backward.__code__ = other.__code__",
    ),
    "a helper": Way("K = 2.0\ndef f(g): return g * K\ndef backward(ctx, g): return f(g)", "K = 3.0"),
    "another helper": Way(
        "def f(g): return g * 2.0\ndef backward(ctx, g): return f(g)", "def f(g): return g * 3.0"
    ),
    "a lambda": Way("K = 2.0\nbackward = lambda ctx, g: (lambda y: y * K)(g)", "K = 3.0"),
    "a nested function": Way(
        """
        K = 2.0
        def backward(ctx, g):
            def inner(y):
                def innermost(): return y * K
                return innermost()
            return inner(g)
        """,
        "K = 3.0",
    ),
    "a comprehension": Way("K = 2.0\ndef backward(ctx, g): return sum([y * K for y in (g,)])", "K = 3.0"),
    "a generator": Way("K = 2.0\ndef backward(ctx, g): return sum(y * K for y in (g,))", "K = 3.0"),
    "an import of a name": Way(
        "def backward(ctx, g):\n    from appcfg import K\n    return g * K", "cfg.K = 3.0"
    ),
    "an import of a module": Way(
        "def backward(ctx, g):\n    import appcfg\n    return g * appcfg.K", "cfg.K = 3.0"
    ),
    "a replaced module": Way(
        "def backward(ctx, g):\n    import appcfg\n    return g * appcfg.K",
        "import sys, types\nsys.modules['appcfg'] = other = types.ModuleType('appcfg')\nother.K = 3.0",
    ),
    "an import of a submodule": Way(
        "def backward(ctx, g):\n    import appcfg.sub as sub\n    return g * sub.K", "sub.K = 3.0"
    ),
    "an import of a function": Way(
        "def backward(ctx, g):\n    from appcfg import scaled\n    return scaled(g)", "cfg.K = 3.0"
    ),
    "an import that comes later": Way(
        "def backward(ctx, g):\n    from applater import K\n    return g * K", "later(3.0)", OBJECTS
    ),
    "an attribute of a module": Way(
        "import appcfg\ndef backward(ctx, g): return g * appcfg.K", "cfg.K = 3.0"
    ),
    "an attribute of a package's module": Way(
        "import appcfg.sub\ndef backward(ctx, g): return g * appcfg.sub.K", "sub.K = 3.0"
    ),
    "an attribute of a library": Way(
        "import math\nmath.appk = 2.0\ndef backward(ctx, g): return g * math.appk", "math.appk = 3.0"
    ),
    "an attribute of torch": Way(
        "torch.appk = 2.0\ndef backward(ctx, g): return g * torch.appk", "torch.appk = 3.0"
    ),
    "a replaced function of torch": Way(
        "def backward(ctx, g): return torch.appf(g)\ntorch.appf = lambda g: g * 2.0",
        "torch.appf = lambda g: g * 3.0",
    ),
    "an attribute of a function": Way(
        "def f(): pass\nf.k = 2.0\ndef backward(ctx, g): return g * f.k", "f.k = 3.0"
    ),
    "an attribute of itself": Way(
        "def backward(ctx, g): return g * backward.k\nbackward.k = 2.0", "backward.k = 3.0"
    ),
    "an attribute of a function that is passed": Way(
        "def f(): pass\nf.k = 2.0\ndef k_of(f): return f.k\ndef backward(ctx, g): return g * k_of(f)",
        "f.k = 3.0",
        OBJECTS,
    ),
    "an attribute as of a context": Way(
        """
        def f(): pass
        f.k = 2.0
        def k_of(f): return f.k
        def setup(ctx, inputs, output): ctx.k = 5.0
        def backward(ctx, g): return g * k_of(f)
        """,
        "f.k = 3.0",
        OBJECTS,
    ),
    "an attribute of a class": Way(
        "class Holder:\n    k = 2.0\ndef backward(ctx, g): return g * Holder.k", "Holder.k = 3.0"
    ),
    "an attribute of a base": Way(
        "class Base: k = 2.0\nclass Holder(Base): pass\ndef backward(ctx, g): return g * Holder.k",
        "Base.k = 3.0",
    ),
    "a static method": Way(
        "class Holder:\n    @staticmethod\n    def f(g): return g * K\nK = 2.0\n"
        "def backward(ctx, g): return Holder.f(g)",
        "K = 3.0",
    ),
    "a class method": Way(
        "class Holder:\n    k = 2.0\n    @classmethod\n    def f(cls, g): return g * cls.k\n"
        "def backward(ctx, g): return Holder.f(g)",
        "Holder.k = 3.0",
        OBJECTS,
    ),
    "a metaclass": Way(
        "class Meta(type):\n    @property\n    def k(cls): return K\nclass Holder(metaclass=Meta): pass\n"
        "K = 2.0\ndef backward(ctx, g): return g * Holder.k",
        "K = 3.0",
        OBJECTS,
    ),
    "an enumeration": Way(
        "import enum\nclass Factor(enum.Enum):\n    K = 2.0\ndef backward(ctx, g): return g * Factor.K.value",
        "Factor.K._value_ = 3.0",
        OBJECTS,
    ),
    "an instance": Way(f"{HOLDER}def backward(ctx, g): return g * holder.k", "holder.k = 3.0", OBJECTS),
    "a dataclass": Way(
        "import dataclasses\n@dataclasses.dataclass\nclass Settings:\n    k: float = 2.0\ns = Settings()\n"
        "def backward(ctx, g): return g * s.k",
        "s.k = 3.0",
        OBJECTS,
    ),
    "an instance that is made": Way(
        "class Holder:\n    def __init__(self): self.k = K\nK = 2.0\n"
        "def backward(ctx, g): return g * Holder().k",
        "K = 3.0",
        CALLS,
    ),
    "an instance that is passed": Way(
        f"{HOLDER}def k_of(h): return h.k\ndef backward(ctx, g): return g * k_of(holder)",
        "holder.k = 3.0",
        OBJECTS,
    ),
    "a module that is passed": Way(
        "import appcfg\ndef k_of(m): return m.K\ndef backward(ctx, g): return g * k_of(appcfg)",
        "cfg.K = 3.0",
        OBJECTS,
    ),
    "a descriptor": Way(
        "class Read:\n    def __get__(self, one, cls): return K\nclass Holder: k = Read()\nK = 2.0\n"
        "def backward(ctx, g): return g * Holder.k",
        "K = 3.0",
        OBJECTS,
    ),
    "a method": Way(
        "class Holder:\n    def f(self, ctx, g): return g * self.k\nholder = Holder(); holder.k = 2.0\n"
        "backward = holder.f",
        "holder.k = 3.0",
        CALLS,
    ),
    "a callable object": Way(
        "class Holder:\n    def __call__(self, ctx, g): return g * self.k\n"
        "backward = Holder(); backward.k = 2.0",
        "backward.k = 3.0",
        CALLS,
    ),
    "a partial": Way(
        "import functools\ndef b(k, ctx, g): return g * k\nbackward = functools.partial(b, 2.0)",
        "backward.__setstate__((b, (3.0,), {}, {}))",
    ),
    "a partial below no_grad": Way(
        "import functools\ndef b(k, ctx, g): return g * k\npart = functools.partial(b, 2.0)\n"
        "backward = torch.no_grad()(part)",
        "part.__setstate__((b, (3.0,), {}, {}))",
    ),
    "below no_grad": Way(f"K = 2.0\n@torch.no_grad()\n{PLAIN}", "K = 3.0"),
    "below autocast": Way(f"K = 2.0\n@torch.autocast('cpu', torch.float32)\n{PLAIN}", "K = 3.0", CALLS),
    "a decorator of its own": Way(
        "import functools\nK = 2.0\ndef scaled(f):\n    @functools.wraps(f)\n"
        "    def inner(ctx, g): return f(ctx, g) * K\n    return inner\n"
        "@scaled\ndef backward(ctx, g): return g",
        "K = 3.0",
    ),
    "a cached function": Way(
        "import functools\nK = 2.0\n@functools.lru_cache\ndef k(): return K\n"
        "def backward(ctx, g): return g * k()",
        "K = 3.0; k.cache_clear()",
        CALLS,
    ),
    "a context manager": Way(
        "import contextlib\nK = 2.0\n@contextlib.contextmanager\ndef k(): yield K\n"
        "def backward(ctx, g):\n    with k() as factor: return g * factor",
        "K = 3.0",
        CALLS,
    ),
    "the environment": Way(
        "import os\nos.environ['APPK'] = '2'\ndef backward(ctx, g): return g * float(os.environ['APPK'])",
        "os.environ['APPK'] = '3'",
        OBJECTS,
    ),
    "getenv": Way(
        "import os\nos.environ['APPK'] = '2'\ndef backward(ctx, g): return g * float(os.getenv('APPK'))",
        "os.environ['APPK'] = '3'",
        CALLS,
    ),
    "the environment within": Way(
        "import os\nos.environ['APPK'] = '2'\n"
        "def backward(ctx, g):\n    import os\n    return g * float(os.environ.get('APPK', '0'))",
        "os.environ['APPK'] = '3'",
        OBJECTS,
    ),
    "a file": Way(
        "open(path, 'w').write('2')\ndef backward(ctx, g): return g * float(open(path).read())",
        "open(path, 'w').write('3')",
        CALLS,
    ),
    "a path": Way(
        "import pathlib\nfile = pathlib.Path(path); file.write_text('2')\n"
        "def backward(ctx, g): return g * float(file.read_text())",
        "file.write_text('3')",
        OBJECTS,
    ),
    "an array in a file": Way(
        "import numpy\nopen(path, 'w').write('2')\n"
        "def backward(ctx, g): return g * float(numpy.loadtxt(path))",
        "open(path, 'w').write('3')",
        CALLS,
    ),
    "a tensor in a file": Way(
        "torch.save(2.0, path)\ndef backward(ctx, g): return g * torch.load(path)",
        "torch.save(3.0, path)",
        CALLS,
    ),
    "a tensor of a file": Way(
        "torch.tensor([2.0]).numpy().tofile(path)\n"
        "def backward(ctx, g): return g * torch.from_file(path, size=1)",
        "torch.tensor([3.0]).numpy().tofile(path)",
        CALLS,
    ),
    "an operator that reads a file": Way(
        "torch.tensor([2.0]).numpy().tofile(path)\n"
        "def backward(ctx, g): return g * torch.ops.aten.from_file(path, False, 1)",
        "torch.tensor([3.0]).numpy().tofile(path)",
        CALLS,
    ),
    "getattr of a module": Way(
        "import appcfg\ndef backward(ctx, g): return g * getattr(appcfg, 'K')", "cfg.K = 3.0"
    ),
    "getattr by another name": Way(
        "import appcfg\nname = 'K'\ndef backward(ctx, g): return g * getattr(appcfg, name)", "name = 'L'"
    ),
    "getattr by a computed name": Way(
        "import appcfg\ndef backward(ctx, g): return g * getattr(appcfg, ''.join(['K']))",
        "cfg.K = 3.0",
        CALLS,
    ),
    "getattr by itself": Way(
        "import appcfg\nread = getattr\ndef f(*a): return read(*a)\n"
        "def backward(ctx, g): return g * f(appcfg, 'K')",
        "cfg.K = 3.0",
        CALLS,
    ),
    "attrgetter": Way(
        "import operator, appcfg\nk = operator.attrgetter('K')\ndef backward(ctx, g): return g * k(appcfg)",
        "cfg.K = 3.0",
        CALLS,
    ),
    "vars": Way("import appcfg\ndef backward(ctx, g): return g * vars(appcfg)['K']", "cfg.K = 3.0", CALLS),
    "__dict__": Way(
        "import appcfg\ndef backward(ctx, g): return g * appcfg.__dict__['K']", "cfg.K = 3.0", OBJECTS
    ),
    "globals": Way("K = 2.0\ndef backward(ctx, g): return g * globals()['K']", "K = 3.0", CALLS),
    "__globals__": Way(
        "K = 2.0\ndef backward(ctx, g): return g * backward.__globals__['K']", "K = 3.0", OBJECTS
    ),
    "eval": Way("K = 2.0\ndef backward(ctx, g): return g * eval('K')", "K = 3.0", CALLS),
    "format": Way(
        "K = 2.0\ndef f(): pass\ndef backward(ctx, g): return g * float('{0.__globals__[K]}'.format(f))",
        "K = 3.0",
        OBJECTS,
    ),
    "a frame": Way(
        "import sys\nK = 2.0\ndef backward(ctx, g): return g * sys._getframe().f_globals['K']",
        "K = 3.0",
        CALLS,
    ),
    "a generator's frame": Way(
        "K = 2.0\ndef backward(ctx, g): return g * (y for y in ()).gi_frame.f_globals['K']",
        "K = 3.0",
        OBJECTS,
    ),
    "the names in a library": Way(
        "import math\nnames = math.__dir__\ndef backward(ctx, g): return g * (3 if 'appk' in names() else 2)",
        "math.appk = 1",
        CALLS,
    ),
    "inspect": Way(
        "import inspect, appcfg\ndef backward(ctx, g): return g * dict(inspect.getmembers(appcfg))['K']",
        "cfg.K = 3.0",
        CALLS,
    ),
    "sys.modules": Way(
        "import sys\ndef backward(ctx, g): return g * sys.modules['appcfg'].K", "cfg.K = 3.0", OBJECTS
    ),
    "import_module": Way(
        "import importlib\ndef backward(ctx, g): return g * importlib.import_module('appcfg').K",
        "cfg.K = 3.0",
        CALLS,
    ),
    "__import__": Way("def backward(ctx, g): return g * __import__('appcfg').K", "cfg.K = 3.0", CALLS),
    "__getattr__ of a module": Way(
        "import appcfg\ncfg.__getattr__ = lambda name: cfg.K\ndef backward(ctx, g): return g * appcfg.other",
        "cfg.K = 3.0",
        OBJECTS,
    ),
    "a builtin": Way(
        "import builtins\nbuiltins.appk = 2.0\ndef backward(ctx, g): return g * appk", "builtins.appk = 3.0"
    ),
    "a replaced builtin": Way("def backward(ctx, g): return g * float(2)", "float = lambda x: 3.0"),
    "an annotation": Way(
        "def f(x: 2.0): pass\ndef backward(ctx, g): return g * f.__annotations__['x']",
        "f.__annotations__['x'] = 3.0",
        OBJECTS,
    ),
    "a list": Way("K = [2.0]\ndef backward(ctx, g): return g * K[0]", "K[0] = 3.0"),
    "a dict": Way("K = {'k': 2.0}\ndef backward(ctx, g): return g * K.get('k')", "K['k'] = 3.0"),
    "an order": Way(
        "K = {'b': 2.0, 'a': 3.0}\ndef backward(ctx, g): return g * next(iter(K.values()))",
        "K['b'] = K.pop('b')",
    ),
    "a set": Way("K = {2.0}\ndef backward(ctx, g): return g * (2.0 if 2.0 in K else 3.0)", "K.clear()"),
    "a list that is passed": Way(
        "K = [2.0]\ndef f(k): return k[0]\ndef backward(ctx, g): return g * f(K)", "K[0] = 3.0", OBJECTS
    ),
    "a list of lists": Way("K = [[2.0]]\ndef backward(ctx, g): return g * K[0][0]", "K[0][0] = 3.0", OBJECTS),
    "a list that is written to": Way(
        "K = [2.0]\ndef backward(ctx, g):\n    K[0] = K[0] + 0.0\n    return g * K[0]", "K[0] = 3.0", CHANGES
    ),
    "a list that grows": Way(
        "K = [2.0]\ndef backward(ctx, g):\n    K.append(K[0])\n    return g * K[0]", "K[0] = 3.0", OBJECTS
    ),
    "a global that is written": Way(
        "K = 2.0\ndef backward(ctx, g):\n    global K\n    K += 0.0\n    return g * K", "K = 3.0", CODE
    ),
    "a closure that is written": Way(
        "def make():\n    k = 2.0\n    def backward(ctx, g):\n        nonlocal k\n        k += 0.0\n"
        "        return g * k\n    return backward\nbackward = make()",
        "backward.__closure__[0].cell_contents = 3.0",
        CHANGES,
    ),
    "an attribute that is written": Way(
        "import appcfg\ndef backward(ctx, g):\n    appcfg.K = appcfg.K + 0.0\n    return g * appcfg.K",
        "cfg.K = 3.0",
        CHANGES,
    ),
    "a default that changes": Way(
        "def backward(ctx, g, k=[2.0]): return g * k[0]", "backward.__defaults__[0][0] = 3.0", OBJECTS
    ),
    "arguments": Way(
        "K = (2.0,)\ndef f(g, k): return g * k\ndef backward(ctx, g): return f(g, *K)", "K = (3.0,)"
    ),
    "arguments by name": Way(
        "K = {'k': 2.0}\ndef f(g, k): return g * k\ndef backward(ctx, g): return f(g, **K)", "K['k'] = 3.0"
    ),
    "a number of numpy's": Way(
        "import numpy\nK = numpy.float32(2.0)\ndef backward(ctx, g): return g * K", "K = numpy.float32(3.0)"
    ),
    "an array": Way(
        "import numpy\nK = numpy.array([2.0])\ndef backward(ctx, g): return g * float(K[0])",
        "K[0] = 3.0",
        OBJECTS,
    ),
    "a tensor": Way("K = torch.tensor(2.0)\n" + PLAIN, "K.fill_(3.0)", OBJECTS),
    "a parameter of a module": Way(
        "K = torch.nn.Linear(1, 1); K.k = 2.0\ndef backward(ctx, g): return g * K.k", "K.k = 3.0", OBJECTS
    ),
    "a call of a module": Way(
        "K = torch.nn.Threshold(5.0, 2.0)\ndef backward(ctx, g): return K(g)", "K.value = 3.0", CALLS
    ),
    "a function of autograd's": Way(
        "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, g): return g * K\n"
        "K = 2.0\ndef backward(ctx, g): return F.apply(g)",
        "K = 3.0",
        OBJECTS,
    ),
    "a context variable": Way(
        "import contextvars\nK = contextvars.ContextVar('K', default=2.0)\n"
        "def backward(ctx, g): return g * K.get()",
        "K.set(3.0)",
        OBJECTS,
    ),
    "a thread's": Way(
        "import threading\nhere = threading.local(); here.k = 2.0\ndef backward(ctx, g): return g * here.k",
        "here.k = 3.0",
        OBJECTS,
    ),
    "a weak reference": Way(
        f"import weakref\n{HOLDER}ref = weakref.ref(holder)\ndef backward(ctx, g): return g * ref().k",
        "holder.k = 3.0",
        CALLS,
    ),
    "a number of C": Way(
        "import ctypes\nK = ctypes.c_double(2.0)\ndef backward(ctx, g): return g * K.value",
        "K.value = 3.0",
        OBJECTS,
    ),
    "a method of a builtin object": Way(
        "D = {'k': 2.0}\nread = D.get\ndef backward(ctx, g): return g * read('k')", "D['k'] = 3.0", CALLS
    ),
    "an iterator": Way(
        "import itertools\nK = itertools.repeat(2.0)\ndef backward(ctx, g): return g * next(K)",
        "K = itertools.repeat(3.0)",
        OBJECTS,
    ),
    "a function of numpy's from Python": Way(
        "import numpy\nk = numpy.frompyfunc(lambda: K, 0, 1)\nK = 2.0\ndef backward(ctx, g): return g * k()",
        "K = 3.0",
        CALLS,
    ),
    "threads": Way(
        "torch.set_num_threads(2)\ndef backward(ctx, g): return g * torch.get_num_threads()",
        "torch.set_num_threads(3)",
        CALLS,
    ),
    "a seed": Way(
        "torch.manual_seed(2)\ndef backward(ctx, g): return g * torch.initial_seed()",
        "torch.manual_seed(3)",
        CALLS,
    ),
    "a switch": Way(
        "torch.backends.cuda.matmul.allow_tf32 = False\n"
        "def backward(ctx, g): return g * (3 if torch.backends.cuda.matmul.allow_tf32 else 2)",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        OBJECTS,
    ),
    "a switch of autocast": Way(
        "torch.set_autocast_cache_enabled(True)\n"
        "def backward(ctx, g): return g * (2 if torch.is_autocast_cache_enabled() else 3)",
        "torch.set_autocast_cache_enabled(False)",
        CALLS,
    ),
    "the time": Way(
        "import time\ndef backward(ctx, g): return g * (2.0 if time.time() >= start else 3.0)\n"
        "start = time.time() - 60",
        "start = time.time() + 60",
        CALLS,
    ),
    "arguments of the process": Way(
        "import sys\nargv = sys.argv; sys.argv = ['app', '2']\n"
        "def backward(ctx, g): return g * float(sys.argv[1])",
        "sys.argv[1] = '3'",
    ),
    "hashes": Way(
        "def backward(ctx, g): return g * (2 if hash('k') == H else 3)\nH = hash('k')", "H += 1", CALLS
    ),
    "a default of a subclass": Way(
        "class Float(float):\n    def __rmul__(self, other): return other * K\n"
        "K = 2.0\nk = Float(5.0)\ndef backward(ctx, g): return (1.0 * k) * g",
        "K = 3.0",
        OBJECTS,
    ),
    "an attribute of Tensor": Way(
        "torch.Tensor.appk = 2.0\ndef backward(ctx, g): return g * g.appk", "torch.Tensor.appk = 3.0", OBJECTS
    ),
    "an attribute of Tensor as of a context": Way(
        "torch.Tensor.appk = 2.0\ndef setup(ctx, inputs, output): ctx.appk = 5.0\n"
        "def backward(ctx, g): return g * g.appk",
        "torch.Tensor.appk = 3.0",
        OBJECTS,
    ),
    "a replaced method of Tensor": Way(
        "old = torch.Tensor.sgn\ntorch.Tensor.sgn = lambda g: g * K\nK = 2.0\n"
        "def backward(ctx, g): return g.sgn()",
        "K = 3.0",
        OBJECTS,
    ),
    "the setup": Way(
        "K = 2.0\ndef setup(ctx, inputs, output): ctx.k = K\ndef backward(ctx, g): return g * ctx.k",
        "K = 3.0",
    ),
    "the setup, with an object": Way(
        f"{HOLDER}def setup(ctx, inputs, output): ctx.h = holder\ndef backward(ctx, g): return g * ctx.h.k",
        "holder.k = 3.0",
        OBJECTS,
    ),
    "a class that is written": Way(
        "def backward(ctx, g):\n    class Holder: k = K\n    return g * Holder.k\nK = 2.0", "K = 3.0", CODE
    ),
    "what an exception says": Way(
        "K = 2.0\ndef backward(ctx, g):\n    try: raise ValueError(K)\n"
        "    except ValueError as error: return g * error.args[0]",
        "K = 3.0",
    ),
    "where no exception is": Way(
        "K = 0\ndef backward(ctx, g):\n    try:\n        1 // K\n    except ZeroDivisionError: return g * 2\n"
        "    return g * 3",
        "K = 1",
    ),
    "a branch": Way("K = 0\ndef backward(ctx, g): return g * 3 if K else g * 2", "K = 1"),
    "a loop": Way(
        "K = 2\ndef backward(ctx, g):\n    total = 0 * g\n    for _ in range(K): total = total + g\n"
        "    return total",
        "K = 3",
    ),
    "one of two functions": Way(
        "def f(g): return g * 2\ndef h(g): return g * K\nK = 2\n"
        "def backward(ctx, g):\n    one = f if g.dim() == 7 else h\n    return one(g)",
        "K = 3",
    ),
    "a function that is passed": Way(
        "K = 2\ndef h(g): return g * K\ndef call(f, g): return f(g)\ndef backward(ctx, g): return call(h, g)",
        "K = 3",
    ),
    "another operator": Way(
        """
        K = 2.0
        def other(x: Tensor) -> Tensor: return x * K
        other = torch.library.custom_op(f"aotcachereadsother::x{id(other)}", other, mutates_args=())
        def backward(ctx, g): return other(g)
        """,
        "K = 3.0",
        CALLS,
    ),
    "another operator by name": Way(
        """
        K = 2.0
        library = torch.library.Library("aotcachereadsnamed", "FRAGMENT")
        if not hasattr(torch.ops.aotcachereadsnamed, "composed"):
            library.define("composed(Tensor x) -> Tensor")
        library.impl("composed", lambda x: x * K, "CompositeImplicitAutograd")
        def backward(ctx, g): return torch.ops.aotcachereadsnamed.composed(g)
        """,
        "K = 3.0",
        CALLS,
    ),
    "a derivative registered below": Way(
        """
        K = 2.0
        def backward(ctx, g): return g
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, g): return g * K
        def after(op):
            global library
            space, name = op._qualname.split("::")
            library = torch.library.Library(space, "FRAGMENT")
            library.impl(name, F.apply, "AutogradCPU")
        """,
        "K = 3.0",
        UNKNOWN,
    ),
}
