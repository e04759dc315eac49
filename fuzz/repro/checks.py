"""The parts of a script that look at one call: for each clause, or part of one, a few lines of Python.

`CHECKS` has for each topic the lines before the call and those after it, inside a function that knows `args`,
`leaves`, `tensors`, `inputs` and, after the call, `result` and `outputs`, and notes what it sees in `seen`.
CHOSEN and STEP_LIST stand for what the program's scenario says; a line NOTED(which) is left out, or notes the
gradients that a backward is given (`note_cotangents`).
"""

from __future__ import annotations

import re
import textwrap

from oracles.observation.gradients import MAX_SINGLE_ROOTS

NAMED = """
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

COTANGENT = """
def cotangent(root, number):
    values = ((7 * torch.arange(root.numel()) + 3 * number) % 11 * 2 - 11) / 8
    if number % 2:  # with other strides than a contiguous tensor
        values = values.reshape(root.shape[::-1]).permute(tuple(reversed(range(root.dim()))))
    values = values.reshape(root.shape).to(root)
    if root.is_complex() and number % 2 == 0:  # lazily conjugated
        values = values.conj_physical().conj()
    return values
"""

EDGE = """
def edge(tensor):
    if not tensor.requires_grad:
        return None
    try:
        return torch.autograd.graph.get_gradient_edge(tensor)
    except (AssertionError, RuntimeError):  # a view that autograd has lost
        return None
"""

IN_TWO_THREADS = """
def in_two_threads(function):  # what each sees; neither goes on before both have called
    gate, seen = threading.Barrier(2), []

    def at_once(*args):
        gate.wait()
        try:
            return function(*args)
        finally:
            gate.wait()

    def first(*args):
        thread.start()
        try:
            return at_once(*args)
        finally:
            thread.join()

    thread = threading.Thread(target=lambda: seen.append(look(at_once)))
    seen.append(look(first))
    return seen
"""

EDGES = """
edges = {name: found for name, tensor in inputs.items() if (found := edge(tensor))}
"""

ROOTS = """
roots = [tensor for tensor in outputs.values() if edge(tensor)]
moved = {name: tensor for name, tensor in inputs.items() if edge(tensor) not in (None, edges.get(name))}
roots += [tensor for tensor in moved.values() if tensor.grad_fn]
wanted = [name for name in edges if name in leaves or name not in tensors]
"""

VERSIONS = """
def versions(tensors):  # not of what a wrapper is made of
    return {n: t._version for n, t in tensors.items() if not ("." in n or t.is_inference())}
"""

STEPS = """
def take(number, how, chosen, retain):
    if how == "write":
        made = chosen in inputs and everything[chosen].is_inference()
        before = versions(everything)
        with torch.inference_mode(made), torch.no_grad():
            everything[chosen].mul_(2)
        for name, tensor in everything.items():
            seen[f"{name} after step {number}"] = tensor.detach().clone()
        for name, version in versions(everything).items():
            seen[f"whether the version counter of {name} moved in step {number}"] = version != before[name]
        return
    if how == "require":
        required = everything[chosen].requires_grad
        everything[chosen].requires_grad_()
        for name, tensor in everything.items():
            seen[f"{name} has a history after step {number}"] = tensor.grad_fn is not None
        if everything[chosen].is_leaf and not required:
            edges[f"{chosen} (a leaf since step {number})"] = edge(everything[chosen])
        return
ROOTS
    if not (roots and wanted):
        return
    numbers = sorted({n % len(roots) for n in (range(len(roots)) if chosen is None else chosen)})
    picked = [roots[n] for n in numbers]
    cotangents = [cotangent(root, n) for n, root in zip(numbers, picked)]
    NOTED(number)
    if how == "accumulate":
        torch.autograd.backward(picked, cotangents, retain_graph=retain)
        for name, tensor in everything.items():
            seen[f"grad of {name} after step {number}"] = tensor.grad if tensor.is_leaf else None
        return
    by, double = {name: edges[name] for name in wanted}, how == "double"
    for name, tensor in moved.items() if double else ():
        if tensor.grad_fn and not hasattr(tensor, "__tensor_flatten__"):
            by[f"{name} (as it is now)"] = edge(tensor)
    targets = list(by.values())
    gradients = torch.autograd.grad(
        picked, targets, cotangents, retain_graph=retain or double, create_graph=double, allow_unused=True
    )
    for name, gradient in zip(by, gradients):
        seen[f"gradient of {name} in step {number}"] = gradient if gradient is None else gradient.detach()
    again = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    if double and again:
        seen[f"gradients with a history in step {number}"] = len(again)
        cotangents = [cotangent(gradient, n) for n, gradient in enumerate(again)]
        second = torch.autograd.grad(again, targets, cotangents, retain_graph=True, allow_unused=True)
        for name, gradient in zip(by, second):
            seen[f"second derivative by {name} in step {number}"] = gradient
everything = {**outputs, **inputs}
for number, step in enumerate(STEP_LIST, start=1):
    try:
        take(number, *step)
    except Exception as error:
        seen[f"step {number}"] = f"{type(error).__name__}: {error}".splitlines()[0]
"""

GRADIENTS = """
for chosen in CHOSEN:
    if roots and wanted:
        cotangents = [cotangent(roots[number], number) for number in chosen]
        NOTED(chosen)
        gradients = torch.autograd.grad(
            [roots[number] for number in chosen],
            [edges[name] for name in wanted],
            cotangents,
            retain_graph=True,
            allow_unused=True,
        )
        for name, gradient in zip(wanted, gradients):
            seen[f"gradient of {name} from results {chosen}"] = gradient
"""

LATER_WRITES = """
for writer, tensor in {id(tensor): (name, tensor) for name, tensor in outputs.items()}.values():
    if tensor.is_floating_point() and not (tensor.is_leaf and tensor.requires_grad):
        before = versions({**inputs, **outputs})
        try:
            tensor.mul_(2)
        except RuntimeError as error:
            seen[f"{writer}.mul_(2)"] = f"RuntimeError: {error}".splitlines()[0]
        for name, other in {**inputs, **outputs}.items():
            seen[f"{name} after {writer}.mul_(2)"] = other.detach().clone()
            seen[f"requires_grad of {name} after {writer}.mul_(2)"] = other.requires_grad
        for name, version in versions({**inputs, **outputs}).items():
            seen[f"whether {writer}.mul_(2) moved the version counter of {name}"] = version != before[name]
"""

STEPS = STEPS.replace("ROOTS\n", textwrap.indent(ROOTS.strip(), "    ") + "\n")

# Looks at nothing: whoever wants to know what is still alive has to let go of everything else first.
LIFETIME = """
references = {}
for name, tensor in {**inputs, **outputs}.items():
    references[name] = StorageWeakRef(tensor.untyped_storage())
seen.clear()
seen["alive"] = lambda: [name for name, reference in references.items() if not reference.expired()]
"""


# What each topic (a clause, or a part of one) looks at, as lines of `look`: before the call, and after it.
def note_cotangents(body: str, cotangents: bool) -> str:
    """The lines of a body, which note the gradients that each backward is given, as it may write to them, or
    do not."""
    note = r'\1seen.update({f"cotangent {n} of backward {\2}": one for n, one in enumerate(cotangents)})\n'
    return re.sub(r"(?m)^( *)NOTED\((\w+)\)\n", note if cotangents else "", body)


CHECKS: dict[str, tuple[str, str]] = {
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
        EDGES,
        f"""
{LATER_WRITES}
{ROOTS}
numbers = range(len(roots))
for chosen in ([*numbers], *([number] for number in numbers[:{MAX_SINGLE_ROOTS}])):
    try:
        if roots and wanted:
            gradients = torch.autograd.grad(
                [roots[number] for number in chosen],
                [edges[name] for name in wanted],
                [cotangent(roots[number], number) for number in chosen],
                retain_graph=True,
                allow_unused=True,
            )
            for name, gradient in zip(wanted, gradients):
                seen[f"gradient of {{name}} from results {{chosen}} after the later writes"] = gradient
        if len(chosen) == len(roots):
            break
    except RuntimeError as error:
        seen[f"a backward from results {{chosen}} after the later writes"] = (
            f"RuntimeError: {{error}}".splitlines()[0]
        )
""",
    ),
    "autograd-metadata": (
        EDGES,
        """
for name, tensor in outputs.items():
    seen[name] = {
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad_fn": tensor.grad_fn is not None,
        "retains_grad": tensor.retains_grad,
        "view of": base(tensor, {**inputs, **outputs}),
    }
for name, tensor in inputs.items():
    seen[f"{name} has another history"] = edge(tensor) not in (None, edges.get(name))
""",
    ),
    "gradients": (EDGES, f"{ROOTS}{GRADIENTS}"),
    "randomness": (
        EDGES,
        f"""
seen["next random number after the call"] = torch.rand(()).item()
torch.manual_seed(1)
{ROOTS}{GRADIENTS}
seen["next random number after the backward"] = torch.rand(()).item()
""",
    ),
    "ambient": (
        EDGES,
        f"""
{ROOTS}{GRADIENTS}
seen.clear()
seen["grad mode"] = torch.is_grad_enabled()
seen["inference mode"] = torch.is_inference_mode_enabled()
seen["autocast"] = (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"))
seen["default dtype"] = torch.get_default_dtype()
seen["default device"] = torch.get_default_device()
seen["deterministic"] = torch.are_deterministic_algorithms_enabled()
""",
    ),
    "errors": (EDGES, f"{ROOTS}{GRADIENTS}"),
    "errors in the call": ("", ""),
    "steps": (EDGES, STEPS),
    "lifetime": (EDGES, f"{ROOTS}{GRADIENTS}{LIFETIME}"),
    "lifetime after steps": (EDGES, f"{STEPS}{LIFETIME}"),
    "once": (
        """
global runs
runs = 0
""",
        """
seen["runs of the function"] = runs
""",
    ),
    "python state": (
        "",
        """
for name, tensor in {**inputs, **outputs}.items():
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        seen[f"attributes of {name}"] = {k: str(v) for k, v in vars(tensor).items() if k[0] != "_"}
seen.update(described(globals().get("state"), "state"))
""",
    ),
    "refusals": (
        """
before = reachable(inputs)
""",
        "",
    ),
}
DESCRIBED = """
def described(value, path):  # Python objects, in words
    found = {}
    if isinstance(value, torch.Tensor):
        try:
            found[path] = str((value.detach().tolist(), value.requires_grad))
        except Exception as error:
            found[path] = f"a tensor that cannot be read: {type(error).__name__}"
    elif isinstance(value, torch.optim.Optimizer):
        found |= described(value.param_groups, f"{path}.param_groups")
        found |= described(list(value.state.values()), f"{path}.state")
    elif isinstance(value, dict):
        found[path] = str(list(value)) if path[-5:] != "hooks" else len(value)
        for key, item in value.items() if path[-5:] != "hooks" else ():
            found |= described(item, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        found[path] = f"{type(value).__name__} of {len(value)}"
        for number, item in enumerate(value):
            found |= described(item, f"{path}[{number}]")
    elif hasattr(value, "__dict__"):
        for name, item in vars(value).items():
            if type(value).__module__[:5] != "torch" or name[0] != "_" or "hooks" in name:
                found |= described(item, f"{path}.{name}")
    else:
        found[path] = repr(value)
    return found
"""
REACHABLE = """
def reachable(inputs):  # all that a refused call leaves as it was, in words
    found = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "random state": torch.get_rng_state().tolist(),
        "random state of Python": random.getstate(),
        "random state of NumPy": str(numpy.random.get_state()),
    }
    for name, tensor in inputs.items():
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            geometry = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
            history = (tensor.requires_grad, tensor.grad_fn is not None)
            found[name] = str((tensor.detach().clone().tolist(), geometry, history, vars(tensor)))
    return found | described(globals().get("state"), "state")
"""
THEN_EAGER = """
def then_eager(compiled):  # eager's call on what a refused call has been given
    def call(*args):
        try:
            return compiled(*args)
        except Exception:
            return f(*args)

    return call
"""
STRIDES = """
def strides(tensor):  # where they mean something
    return [step for length, step in zip(tensor.shape, tensor.stride()) if length > 1 and tensor.numel()]
"""
BASE = """
def base(tensor, known):
    if not tensor._is_view():
        return None
    return next((name for name in known if known[name] is tensor._base), "something else")
"""

MEMORY = """
def memory(tensor):  # a wrapper says nothing of it; its parts do
    while type(tensor) is Wrapper:
        tensor = tensor.first
    return tensor.untyped_storage()
"""
SAME_WRAPPERS = """
if type(left) is type(right) is Wrapper:
    return same(left.first, right.first) and same(left.second, right.second)
"""
_PARTS = """
        if type(tree) is Wrapper:
            for part in tree.__tensor_flatten__()[0]:
                yield from named(getattr(tree, part), f"{path}.{part}")
"""
_COTANGENT = """
    if type(root) is Wrapper:
        parts = [root.first] if root.second is None else [root.first, root.second]
        return Wrapper(*(cotangent(part, number) for part in parts))
"""


def with_wrappers(text: str) -> str:
    """Lines of a script, for a program of which arguments are wrapper subclasses (`fuzz.ir.subclass`)."""
    text = text.replace("        yield path, tree\n", f"        yield path, tree{_PARTS}")
    text = text.replace("def cotangent(root, number):\n", f"def cotangent(root, number):{_COTANGENT}")
    text = text.replace("tensor.tolist()", "str(tensor)")
    return re.sub(r"(\w+)\.untyped_storage\(\)", r"memory(\1)", text)
