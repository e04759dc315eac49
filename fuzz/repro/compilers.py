"""Compilers in repro scripts: the lines that each needs, and the expression that compiles `f`.

A shipped target has lines of its own here. Any other one is imported by the script, and made ready as in a
worker. What stands in a script is made of literals of this module and of names of modules and functions that
have been checked to be such: a name out of a file is never an expression.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from keyword import iskeyword

from fuzz.errors import TargetError
from fuzz.targets.adapters import ADAPTED, adapter
from fuzz.targets.dynamo_backends import PREFIX, dynamo_backends
from fuzz.targets.plugins import registered_targets

# As `fuzz.targets.builtin_targets` prepares Inductor: by default it times kernels, chooses, and keeps them.
_INDUCTOR = """
import torch._functorch.config
import torch._inductor.config

torch._inductor.config.deterministic = True
torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False
""".strip()
_COMPILE = {
    "aot": ("import aot", "aot.aot_function(f, fw_compiler=aot.nop)"),
    "aot-min-cut": (
        "import aot",
        "aot.aot_function(f, aot.nop, partition_fn=aot.min_cut_rematerialization_partition)",
    ),
    "aot-recompute": (
        "import functools, aot",
        "aot.aot_function(f, aot.nop, partition_fn=functools.partial("
        "aot.min_cut_rematerialization_partition, memory_budget=0))",
    ),
    "aot-rng": (
        "import functools, aot",
        "aot.aot_function(f, aot.nop, partition_fn=functools.partial("
        "aot.min_cut_rematerialization_partition, memory_budget=0), functionalize_rng_ops=True)",
    ),
    "aot-dynamic": (
        "import aot",
        # Compiled for other sizes than it is called with.
        "aot.config.patch(traced_size=lambda n: 2 * n)(aot.aot_function(f, aot.nop, dynamic=True))",
    ),
    "aot-inductor": (f"import aot\n{_INDUCTOR}", 'torch.compile(f, backend="aotfuzz_inductor")'),
    "aot-compile": ("import aot", 'torch.compile(f, backend="aotfuzz")'),
    "torch-aot-function": (
        "from functorch.compile import aot_function, nop",
        # In a dict, because aot_function returns a list for a tuple, which is another difference.
        'lambda *args: aot_function(lambda *a: {"": f(*a)}, nop, nop)(*args)[""]',
    ),
    "torch-aot-eager": ("", 'torch.compile(f, backend="aot_eager")'),
    "torch-inductor": (_INDUCTOR, 'torch.compile(f, options={"fallback_random": True})'),
    "torch-inductor-strict": (
        _INDUCTOR,
        'torch.compile(f, options={"fallback_random": True, "numerics": "strict"})',
    ),
    "torch-inductor-dynamic": (
        _INDUCTOR,
        'torch.compile(f, dynamic=True, options={"fallback_random": True})',
    ),
    "torch-dynamo": ("", 'torch.compile(f, backend="eager")'),
    "eager": ("", "f"),
    "eager-threads": ("", "lambda *args: torch.set_num_threads(2) or f(*args)"),
}
# These run the very kernels of eager, so their numbers are equal bit for bit; another compiler's may be
# rounded otherwise. A finding is judged against float64; a script makes do with a tolerance.
_EXACT = (
    "aot",
    "aot-min-cut",
    "aot-recompute",
    "aot-rng",
    "aot-dynamic",
    "aot-compile",
    "torch-aot-function",
    "torch-aot-eager",
    "torch-inductor-strict",
    "torch-dynamo",
    "eager",
    "eager-threads",
)
_IMPORT = """
sys.path.insert(0, "")  # the current folder, too
try:
    import {imported}

    if hasattr({target}, "prepare"):  # a fuzz.Target
        {target}.prepare()
except BaseException as error:
    print(f"{target} cannot be used: {{type(error).__name__}}: {{error}}")
    sys.exit(2)
""".strip()
# Names that scripts give to something else than a module.
_TAKEN = frozenset(
    (
        *("f", "make", "named", "cotangent", "edge", "strides", "base", "versions", "memory", "same", "look"),
        *(
            "last_look",
            "target_function",
            "in_two_threads",
            "counted",
            "Counted",
            "runs",
            "compiled",
            "grown",
        ),
        *("run", "run_here", "eager", "target", "device", "differences", "key", "seen", "status", "error"),
        *("Module", "Wrapper", "Wrap", "notes", "args", "function", "compiler"),
    )
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler in a script: its name, the lines that it needs, `f` compiled as an expression, and whether
    it runs the kernels of eager, so that numbers are equal bit for bit; the packages that it comes in."""

    name: str
    setup: str
    compiled: str
    exact: bool = False
    distributions: tuple[str, ...] = ()

    @property
    def is_torch(self) -> bool:
        """Whether it is a target of torch's own compilers, of which a report goes to PyTorch."""
        return self.name in _COMPILE and self.name.startswith("torch-")

    @property
    def modules(self) -> tuple[str, ...]:
        """The packages that its lines import, without torch and the standard library."""
        found = [
            name
            for node in ast.walk(ast.parse(self.setup))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        ]
        tops = dict.fromkeys(name.partition(".")[0] for name in found)
        return tuple(top for top in tops if top not in sys.stdlib_module_names and top != "torch")


def compiler_named(target: str) -> Compiler:
    """The compiler of that name: a shipped or registered target, or package.module:function.

    Raises TargetError for a name that is none of these. Nothing is imported.
    """
    if target in _COMPILE:
        return Compiler(target, *_COMPILE[target], exact=target in _EXACT)
    if target in ADAPTED:
        adapted = adapter(target)
        return Compiler(target, adapted.setup, adapted.compiled, distributions=adapted.distributions)
    backend = target.removeprefix(PREFIX)
    if target.startswith(PREFIX) and backend in dynamo_backends():
        return Compiler(target, "", f"torch.compile(f, backend={backend!r})")
    module, colon, function = registered_targets().get(target, target).partition(":")
    words = f"{module}.{function}".split(".")
    if not colon or not all(word.isidentifier() and not iskeyword(word) for word in words):
        raise TargetError(f"target {target!r} is not of the form package.module:function")
    imported = module
    if module.split(".")[0] in _TAKEN:
        imported, module = f"{module} as tested_module", "tested_module"
    given = f"{module}.{function}"
    return Compiler(target, _IMPORT.format(imported=imported, target=given), f"{given}(f)")
