"""A script that shows one difference with torch alone: `aotfuzz repro FILE > repro.py; python repro.py`.

It holds the program as it ran, the line that compiles it, and the few lines that look at what the finding is
about: nothing of this project is imported, unless the compiler is this project's. It prints what eager and
the target gave where they differ, and exits with 1 while they differ and with 0 when they no longer do.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzz import buckets
from fuzz.corpus import Case
from fuzz.plugins import registered
from fuzz.program import Program
from fuzz.source import render
from oracles import Finding

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
    "torch-aot-function": (
        "from functorch.compile import aot_function, nop",
        # In a dict, because aot_function returns a list for a tuple, which is another difference.
        'lambda *args: aot_function(lambda *a: {"": f(*a)}, nop, nop)(*args)[""]',
    ),
    "torch-aot-eager": ("", 'torch.compile(f, backend="aot_eager")'),
    "torch-inductor": ("", "torch.compile(f)"),
    "torch-dynamo": ("", 'torch.compile(f, backend="eager")'),
    "eager": ("", "f"),
}
# These run the very kernels of eager, so their numbers are equal bit for bit; another compiler's may be
# rounded otherwise. A finding is judged against float64; a script makes do with a tolerance.
_EXACT = (
    "aot",
    "aot-min-cut",
    "aot-recompute",
    "torch-aot-function",
    "torch-aot-eager",
    "torch-dynamo",
    "eager",
)

_NAMED = """
def named(tree, path):
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from named(item, f"{path}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for number, item in enumerate(tree):
            yield from named(item, f"{path}[{number}]")
"""

_COTANGENT = """
def cotangent(root, number):
    values = ((7 * torch.arange(root.numel()) + 3 * number) % 11 * 2 - 11) / 8
    if number % 2:  # with other strides than a contiguous tensor
        values = values.reshape(root.shape[::-1]).permute(tuple(reversed(range(root.dim()))))
    return values.reshape(root.shape).to(root)
"""

_EDGE = """
def edge(tensor):
    if not tensor.requires_grad:
        return None
    try:
        return torch.autograd.graph.get_gradient_edge(tensor)
    except (AssertionError, RuntimeError):  # a view that autograd has lost
        return None
"""

_EDGES = """
edges = {name: found for name, tensor in inputs.items() if (found := edge(tensor))}
"""

_ROOTS = """
roots = [tensor for tensor in outputs.values() if edge(tensor)]
roots += [tensor for name, tensor in inputs.items() if edge(tensor) not in (None, edges.get(name))]
wanted = [name for name in edges if name in leaves or name not in tensors]
"""

_GRADIENTS = """
for chosen in CHOSEN:
    if roots and wanted:
        gradients = torch.autograd.grad(
            [roots[number] for number in chosen],
            [edges[name] for name in wanted],
            [cotangent(roots[number], number) for number in chosen],
            retain_graph=True,
            allow_unused=True,
        )
        for name, gradient in zip(wanted, gradients):
            seen[f"gradient of {name} from results {chosen}"] = gradient
"""

_LATER_WRITES = """
for writer, tensor in {id(tensor): (name, tensor) for name, tensor in outputs.items()}.values():
    if tensor.is_floating_point() and not (tensor.is_leaf and tensor.requires_grad):
        try:
            tensor.mul_(2)
        except RuntimeError as error:
            seen[f"{writer}.mul_(2)"] = f"RuntimeError: {error}".splitlines()[0]
        for name, other in {**inputs, **outputs}.items():
            seen[f"{name} after {writer}.mul_(2)"] = other.detach().clone()
            seen[f"requires_grad of {name} after {writer}.mul_(2)"] = other.requires_grad
"""

# What each topic (a clause, or a part of one) looks at, as lines of `look`: before the call, and after it.
_BODIES: dict[str, tuple[str, str]] = {
    "structure": (
        "",
        """
def describe(tree):
    if isinstance(tree, torch.Tensor):
        return type(tree).__name__
    if isinstance(tree, dict):
        return {key: describe(item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(describe(item) for item in tree)
    return f"{type(tree).__name__} {tree!r}"
seen["the result"] = describe(result)
seen["the arguments"] = describe(args)
""",
    ),
    "values": (
        "",
        """
for name, tensor in outputs.items():
    seen[name] = tensor.detach().clone()
""",
    ),
    "input-data": (
        "",
        """
for name, tensor in inputs.items():
    seen[f"{name} after the call"] = tensor.detach().clone()
""",
    ),
    "input-metadata": (
        """
storages = {name: tensor.untyped_storage() for name, tensor in inputs.items()}
""",
        """
for name, tensor in inputs.items():
    seen[f"{name} after the call"] = {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "strides": strides(tensor),
        "offset": tensor.storage_offset(),
        "bytes of storage": tensor.untyped_storage().nbytes(),
        "same storage": tensor.untyped_storage().data_ptr() == storages[name].data_ptr(),
        "conj, neg": (tensor.is_conj(), tensor.is_neg()),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad_fn": tensor.grad_fn is not None,
        "view of": base(tensor, inputs),
    }
""",
    ),
    "versions": (
        """
versions = {name: tensor._version for name, tensor in inputs.items()}
""",
        """
for name, tensor in inputs.items():
    seen[f"version counter of {name} moved"] = tensor._version != versions[name]
""",
    ),
    "strides": (
        "",
        """
for name, tensor in outputs.items():
    seen[f"strides of {name}"] = strides(tensor)
    seen[f"conj and neg bits of {name}"] = (tensor.is_conj(), tensor.is_neg())
    for other, partner in {**inputs, **outputs}.items():
        if tensor.untyped_storage().data_ptr() == partner.untyped_storage().data_ptr() != 0:
            seen[f"offset of {name} from {other}"] = tensor.storage_offset() - partner.storage_offset()
""",
    ),
    "identity": (
        "",
        """
everything = {**inputs, **outputs}
for name, tensor in outputs.items():
    same_object = [other for other in everything if everything[other] is tensor and other != name]
    seen[f"{name} is the very object"] = same_object
""",
    ),
    "aliasing": (
        "",
        """
everything = {name: tensor.detach() for name, tensor in {**inputs, **outputs}.items()}
for writer in everything:
    for tensor in everything.values():
        tensor.zero_()
    for number, place in enumerate(itertools.product(*map(range, everything[writer].shape))):
        everything[writer][place] = number + 1
    for reader, tensor in everything.items():
        if reader != writer:
            seen[f"{reader} after writing 1, 2, 3... to {writer}"] = tensor.tolist()
""",
    ),
    "a later write": (
        _EDGES,
        f"""
{_LATER_WRITES}
{_ROOTS}
try:
    if roots and wanted:
        cotangents = [cotangent(root, number) for number, root in enumerate(roots)]
        wanted_edges = [edges[name] for name in wanted]
        gradients = torch.autograd.grad(roots, wanted_edges, cotangents, allow_unused=True)
        for name, gradient in zip(wanted, gradients):
            seen[f"gradient of {{name}} after the later writes"] = gradient
except RuntimeError as error:
    seen["a backward after the later writes"] = f"RuntimeError: {{error}}".splitlines()[0]
""",
    ),
    "autograd-metadata": (
        _EDGES,
        """
for name, tensor in outputs.items():
    seen[name] = {
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad_fn": tensor.grad_fn is not None,
        "view of": base(tensor, {**inputs, **outputs}),
    }
for name, tensor in inputs.items():
    seen[f"{name} has another history"] = edge(tensor) not in (None, edges.get(name))
""",
    ),
    "gradients": (_EDGES, f"{_ROOTS}{_GRADIENTS}"),
    "randomness": (
        _EDGES,
        f"""
seen["next random number after the call"] = torch.rand(()).item()
torch.manual_seed(1)
{_ROOTS}{_GRADIENTS}
seen["next random number after the backward"] = torch.rand(()).item()
""",
    ),
    "ambient": (
        _EDGES,
        f"""
{_ROOTS}{_GRADIENTS}
seen.clear()
seen["grad mode"] = torch.is_grad_enabled()
seen["inference mode"] = torch.is_inference_mode_enabled()
seen["autocast"] = (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"))
seen["default dtype"] = torch.get_default_dtype()
seen["default device"] = torch.get_default_device()
seen["deterministic"] = torch.are_deterministic_algorithms_enabled()
""",
    ),
    "errors": (_EDGES, f"{_ROOTS}{_GRADIENTS}"),
    "errors in the call": ("", ""),
}
_STRIDES = """
def strides(tensor):  # where they mean something
    return [step for length, step in zip(tensor.shape, tensor.stride()) if length > 1 and tensor.numel()]
"""
_BASE = """
def base(tensor, known):
    if not tensor._is_view():
        return None
    return next((name for name in known if known[name] is tensor._base), "something else")
"""


def main_finding(case: Case) -> Finding:
    """The finding that a corpus case is about; its clause alone where none is recorded."""
    if case.findings:
        return buckets.main(case.findings)
    return Finding(case.clause, "", "", "", case.note)


def script(program: Program, target: str, finding: Finding) -> str:
    """The script for a program on a target, about what a finding is about.

    `target` is the name of a shipped or registered target, or package.module:function.
    """
    setup, compiled = _compiled(target)
    title = _comment(f"{finding.clause}: {finding.message}")
    parts = [
        f"{title}\n#\n# Exits with 1 while {target} differs from eager, with 0 when it no longer does.",
        "import sys\n\n" + render(program).rstrip(),
    ]
    if "itertools" in _BODIES[_topic(finding)][1]:
        parts[1] = parts[1].replace("import sys\n", "import itertools\nimport sys\n", 1)
    if setup:
        parts[1] = parts[1].replace("import torch\n", f"import torch\n\n{setup}\n", 1)
    if finding.clause == "errors" and finding.target.startswith(("crash", "timeout")):
        parts[1] = parts[1].replace("import sys\n", "import subprocess\nimport sys\n", 1)
        parts.append(_dying(program, compiled))
    else:
        parts.append(_looking(program, target, compiled, finding))
    return "\n\n\n".join(parts) + "\n"


def _compiled(target: str) -> tuple[str, str]:
    if target in _COMPILE:
        return _COMPILE[target]
    module, _, function = registered().get(target, target).partition(":")
    return f"import {module}", f"{module}.{function}(f)"


def _looking(program: Program, target: str, compiled: str, finding: Finding) -> str:
    """`look` for the finding's topic, and the comparison of what it saw."""
    before, after = _BODIES[_topic(finding)]
    after = after.replace("CHOSEN", _chosen(program))
    body = f"{before}\n{after}"
    helpers = [
        helper
        for helper, name in (
            (_NAMED, "named("),
            (_COTANGENT, "cotangent("),
            (_EDGE, "edge("),
            (_STRIDES, "strides("),
            (_BASE, "base("),
        )
        if helper is _NAMED or name in body
    ]
    call = "result = function(*args)"
    if program.scenario.inference:
        call = f"with torch.inference_mode():\n    {call}"
    elif not program.scenario.grad:
        call = f"with torch.no_grad():\n    {call}"
    lines = [
        "args, leaves, tensors = make()",
        'inputs = dict(named(args, "arg"))',
        "for name, tensor in {**leaves, **tensors}.items():",
        "    if not any(tensor is known for known in inputs.values()):",
        "        inputs[name] = tensor",
        *_lines(before),
        "torch.manual_seed(0)",
        "seen = {}",
    ]
    look = [*call.splitlines(), 'outputs = dict(named(result, "out"))', *_lines(after)]
    if finding.clause == "errors":
        lines += [
            "try:",
            *_indent([*look, 'return {"outcome": "no exception"}']),
            "except BaseException as error:",
            '    return {"outcome": f"{type(error).__name__}: {error}"}',
        ]
    else:
        lines += [*look, "return seen"]
    text = "\n\n".join(helper.strip() + "\n" for helper in helpers)
    return "\n".join(
        [text, "", "def look(function):", *_indent(lines), "", "", *_comparison(target, finding, compiled)]
    )


def _topic(finding: Finding) -> str:
    """The key of `_BODIES` for a finding."""
    if finding.clause == "errors":
        return "errors in the call" if finding.path == "call" else "errors"
    later = ".mul_(2)" in finding.message or "later" in finding.path
    return "a later write" if later else finding.clause


def _comparison(target: str, finding: Finding, compiled: str) -> list[str]:
    if finding.clause == "errors":
        same = ["return str(left).split(':')[0] == str(right).split(':')[0]"]
    else:
        rtol, atol = ("0", "0") if target in _EXACT else ("1e-3", "1e-5")
        same = []
        if _topic(finding) == "a later write":
            same = [
                "if isinstance(left, str) and isinstance(right, str):  # the type of an exception",
                '    return left.split(":")[0] == right.split(":")[0]',
            ]
        same += [
            "if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):",
            "    if left.dtype != right.dtype or left.shape != right.shape:",
            "        return False",
            f"    return torch.allclose(left.double(), right.double(), {rtol}, {atol}, equal_nan=True)",
            "return type(left) is type(right) and left == right",
        ]
    return [
        "def same(left, right):",
        *_indent(same),
        "",
        "",
        "eager = look(f)",
        # Compiled inside, because a compiler may raise.
        f"target = look(lambda *args: ({compiled})(*args))",
        "differences = [key for key in {**eager, **target} if not same(eager.get(key), target.get(key))]",
        "for key in differences:",
        '    print(f"{key}\\n    eager:  {eager.get(key)}\\n    target: {target.get(key)}")',
        'print("eager and the target differ" if differences else "no difference")',
        "sys.exit(1 if differences else 0)",
    ]


def _dying(program: Program, compiled: str) -> str:
    """For a target that takes its process down or never returns: it runs in a process of its own."""
    mode = "" if program.scenario.grad else "torch.set_grad_enabled(False)\n    "
    if program.scenario.inference:
        mode = "torch.inference_mode().__enter__()\n    "
    return f"""
def run(function):
    args, leaves, tensors = make()
    torch.manual_seed(0)
    {mode}result = function(*args)
    stack = [result]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor) and item.requires_grad:
            item.sum().backward(retain_graph=True)
        elif isinstance(item, (tuple, list)):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()


if sys.argv[1:] == ["target"]:
    try:
        run({compiled})
    except Exception as error:
        print(f"raised {{type(error).__name__}}: {{error}}")
    sys.exit(0)
run(f)
print("eager:  returned")
try:
    status = subprocess.run([sys.executable, __file__, "target"], timeout=60).returncode
except subprocess.TimeoutExpired:
    status = "none: it did not return within 60 s"
print("target:", "returned" if status == 0 else f"exit status {{status}}")
sys.exit(0 if status == 0 else 1)
""".strip()


def _chosen(program: Program) -> str:
    """Which results a backward starts from, as an expression: the wanted ones, then the first alone."""
    wanted = program.scenario.differentiate
    if wanted is None:
        return "(list(range(len(roots))), [0])"
    return f"(sorted({{number % max(len(roots), 1) for number in {wanted!r}}}), [0])"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def _comment(text: str) -> str:
    """Text as comment lines of at most 100 columns."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 95:
            lines.append("")
        lines[-1] += f" {word}"
    return "\n".join(f"#{line}" for line in lines)
