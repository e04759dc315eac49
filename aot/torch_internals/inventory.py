"""The inventory of private torch API: every name that the sources use, and what torch has under it.

In: the sources of the packages `aot`, `oracles` and `fuzz`, and the record ``private_api.json``, which has
the signature of each name in each tested version. Out: the names that are missing in the installed torch, or
have another signature there, and where they are used. Names come from the syntax of the sources: imports,
chains of attributes that begin at torch, and strings that are Python source. What syntax does not show is in
`UNSEEN`.

This module imports nothing of aot, so that it runs where aot cannot be imported:

    python -m aot.torch_internals.inventory           # what is missing or has changed
    python -m aot.torch_internals.inventory --write   # record the installed torch as a tested version
    python -P aot/torch_internals/inventory.py --json # the same without aot, as `aotfuzz doctor` runs it
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("aot", "oracles", "fuzz")
ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("private_api.json")

# Names that syntax does not show: attributes of instances, by their classes, and names that are put together.
UNSEEN: Mapping[str, tuple[str, ...]] = {
    "torch.Tensor": (
        *("_backward_hooks", "_base", "_has_symbolic_sizes_strides", "_is_view", "_is_zerotensor"),
        *("_use_count", "_version", "_view_func_unsafe"),
    ),
    "torch.UntypedStorage": ("_cdata",),
    "torch.Generator": ("get_state", "set_state"),
    "torch._C": ("_cuda_synchronize", "_fft", "_linalg", "_nn", "_special"),
    "torch._C.DispatchKey": ("AutocastCPU", "AutocastCUDA"),
    "torch._C._autograd.CreationMeta": (
        *("DEFAULT", "IN_CUSTOM_FUNCTION", "INFERENCE_MODE", "MULTI_OUTPUT_NODE", "NO_GRAD_MODE"),
    ),
    "torch._C._dynamo.eval_frame": ("_FrameAction", "_FrameExecStrategy", "set_code_exec_strategy"),
    "torch._dynamo.backends.registry": ("_COMPILER_FNS", "lookup_backend", "register_backend"),
    "torch._dynamo.compiled_autograd": ("_disable", "compiled_autograd_enabled"),
    "torch._dynamo.variables.builder.GraphArg": ("pass_arg_as_tensor",),
    "torch._guards.TracingContext": ("aot_graph_name", "fw_metadata", "output_strides"),
    "torch._higher_order_ops.flex_attention": ("flex_attention",),
    "torch._higher_order_ops.invoke_subgraph": ("invoke_subgraph",),
    "torch._higher_order_ops.map": ("map_impl",),
    "torch._higher_order_ops.scan": ("scan_op",),
    "torch._higher_order_ops.while_loop": ("while_loop_op",),
    "torch._higher_order_ops.cond": ("cond_op",),
    "torch._library.custom_ops.CustomOpDef": (
        *("_abstract_fn", "_autocast_cpu_dtype", "_autocast_cuda_dtype", "_autocast_dtype", "_backward_fn"),
        *("_init_fn", "_opoverload", "_setup_context_fn", "_torch_dispatch_fns", "_vmap_fn"),
    ),
    "torch._ops.HigherOrderOperator": ("fallthrough", "non_fallthrough_keys", "py_impl", "py_kernels"),
    "torch._ops.OpOverload": (
        *("_handle", "_name", "_op_dk", "_opname", "_overloadname", "_schema", "is_view", "py_kernels"),
        *("redispatch",),
    ),
    "torch._subclasses.fake_tensor.FakeTensor": ("constant", "fake_device", "fake_mode", "real_tensor"),
    "torch._subclasses.fake_tensor.FakeTensorMode": ("from_tensor", "shape_env"),
    "torch.autograd.function.BackwardCFunction": ("_input_metadata", "_sequence_nr"),
    "torch.autograd.graph.Node": ("_input_metadata", "_register_hook_dict", "_sequence_nr"),
    "torch.distributed._functional_collectives": ("_are_we_tracing",),
    "torch.fx.Graph": (
        *("_codegen", "_find_nodes_lookup_table", "_graph_namespace", "_insert", "_len", "_target_to_str"),
    ),
    "torch.fx.Node": ("_erased",),
    "torch.fx._lazy_graph_module._LazyGraphModule": ("_needs_recompile",),
    "torch.fx.experimental.sym_node.SymNode": ("_expr",),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv": (
        *("create_symbol", "create_symintnode", "create_unbacked_symint"),
    ),
    "torch.fx.graph._Namespace": (*("_base_count", "_used_names", "associate_name_with_obj", "create_name"),),
    "torch.nn.Module": ("_buffers", "_forward_hooks", "_forward_pre_hooks", "_modules", "_parameters"),
    "torch.utils.checkpoint._CheckpointFrame": ("input_saver", "recompute_fn", "saved_args"),
}

# Only builds of torch with CUDA have these.
_CUDA_NAMES = frozenset(("torch._C._cuda_synchronize",))


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A private name that the installed torch does not have as the tested versions do.

    Attributes:
        name: the dotted name, as `torch._C._len_torch_dispatch_stack`.
        before: its signature in the tested version that is nearest.
        after: its signature in the installed torch; None where it is missing.
        users: where the sources use it, as ``aot/torch_internals/mode_stacks.py: dispatch_modes_off``.
    """

    name: str
    before: str
    after: str | None
    users: tuple[str, ...]

    def __str__(self) -> str:
        where = f"(used in {', '.join(self.users)})"
        if self.after is None:
            return f"missing {self.name} {where}"
        return f"changed signature {self.name} from {self.before} to {self.after} {where}"


def private_names(root: Path = ROOT) -> dict[str, tuple[str, ...]]:
    """Every private name of torch that the sources below `root` use, and the functions that use it.

    Example:
        >>> private_names()["torch._C._len_torch_function_stack"][0]
        'aot/torch_internals/mode_stacks.py'
    """
    users: dict[str, set[str]] = {}
    attributes: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            if file.name == Path(__file__).name and file.parent.name == Path(__file__).parent.name:
                continue  # whose strings are the names themselves
            source = _Source(file.relative_to(root).as_posix())
            source.visit(ast.parse(file.read_text(encoding="utf-8")))
            for found, noted in ((users, source.names), (attributes, source.attributes)):
                for name, where in noted.items():
                    found.setdefault(name, set()).update(where)
    door = Path(__file__).parent.relative_to(ROOT).as_posix()
    for owner, names in UNSEEN.items():
        for name in names:
            where = attributes.get(name, set())
            at_door = {one for one in where if one.startswith(door)}
            users.setdefault(f"{owner}.{name}", set()).update(at_door or where or {"by its registered name"})
    return {name: tuple(sorted(users[name])) for name in sorted(users)}


class _Source(ast.NodeVisitor):
    """The private names in one file.

    Attributes:
        names: dotted names of torch, and where they are used.
        attributes: names of attributes of whatever else and words in strings, and where they are used.
    """

    def __init__(self, file: str) -> None:
        self.names: dict[str, set[str]] = {}
        self.attributes: dict[str, set[str]] = {}
        self._file = file
        self._within: list[str] = []
        self._aliases: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] in ("torch", "functorch"):
                own = alias.asname or alias.name.split(".")[0]
                self._aliases[own] = alias.name if alias.asname else own
                self._note_name(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level and node.module.split(".")[0] in ("torch", "functorch"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                self._aliases[alias.asname or alias.name] = name
                self._note_name(name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    visit_ClassDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name is None:
            self._note(self.attributes, node.attr)
            self.generic_visit(node)
        else:
            self._note_name(name)

    def visit_Call(self, node: ast.Call) -> None:
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger"):  # names of no module
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for part, following in zip(node.values, [*node.values[1:], None], strict=True):
            cut = isinstance(part, ast.Constant) and isinstance(following, ast.FormattedValue)
            if not (cut and str(part.value)[-1:].isidentifier()):  # type: ignore[attr-defined]
                self.visit(part)  # (else a name goes on where the text ends)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            self._note(self.attributes, node.value)
        elif isinstance(node.value, str) and "torch" in node.value:
            for text in (node.value, textwrap.dedent(node.value)):
                try:
                    tree = ast.parse(text)
                except (SyntaxError, ValueError):
                    continue
                inner = _Source(self._file)
                inner._within, inner._aliases = self._within, {"torch": "torch"}
                inner.visit(tree)
                for name, where in inner.names.items():
                    self.names.setdefault(name, set()).update(where)
                return

    def _dotted(self, node: ast.expr) -> str | None:
        """The dotted name of torch that a chain of attributes is."""
        if isinstance(node, ast.Name):
            return self._aliases.get(node.id)
        owner = self._dotted(node.value) if isinstance(node, ast.Attribute) else None
        return None if owner is None else f"{owner}.{node.attr}"  # type: ignore[attr-defined]

    def _note_name(self, name: str) -> None:
        if is_private(name):
            self._note(self.names, name)

    def _note(self, found: dict[str, set[str]], name: str) -> None:
        place = ".".join(self._within)
        found.setdefault(name, set()).add(f"{self._file}: {place}" if place else self._file)


def is_private(name: str) -> bool:
    """Whether a dotted name of torch has a part that is private, or comes from a module that says so.

    Example:
        >>> is_private("torch._C.DispatchKey"), is_private("torch.Tensor.__add__")
        (True, False)
    """
    if name.startswith(("torch.fx.experimental.", "functorch.")):
        return True
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def signature_of_name(name: str) -> str | None:
    """What the installed torch has under a dotted name: a signature, or what kind of object; None if nothing.

    Annotations and long defaults are left out: builds and Python versions write them in different ways.
    """
    parts = name.split(".")
    # The longest path that is a module comes first: a package may have a function of the name of its module.
    for count in (*range(len(parts) - 1, 0, -1), len(parts)):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except Exception:  # of what an import may run
            continue
        for place, part in enumerate(parts[count:], count + 1):
            try:
                found = getattr(found, part)
            except Exception:  # of what a lazy attribute may raise
                if inspect.isclass(found) and place == len(parts) and _assigns(found, part):
                    return "attribute"
                break
        else:
            return _signature(found)
    return None


def _signature(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if hasattr(value, "_schema"):
        return str(value._schema)
    if hasattr(value, "_qualified_op_name"):
        return "; ".join(sorted(str(getattr(value, one)._schema) for one in value.overloads()))
    kind = "class" if inspect.isclass(value) else ""
    if not callable(value) or (kind and issubclass(value, enum.Enum)):  # whose calls are Python's
        return kind or type(value).__name__
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return kind or _documented_signature(value)
    plain = [
        one.replace(annotation=inspect.Parameter.empty, default=_short(one.default)) for one in parameters
    ]
    return f"{kind}{inspect.Signature(plain)}"


class _Long:
    """A default whose text may differ from process to process."""

    def __repr__(self) -> str:
        return "..."


_LONG = _Long()


def _short(default: Any) -> Any:
    empty = default is inspect.Parameter.empty
    return default if empty or type(default) in (bool, int, float, str, type(None)) else _LONG


def _documented_signature(value: Any) -> str:
    """The parameters that pybind11 writes into the documentation of a C++ function."""
    lines = re.findall(r"^(?:\d+\. )?\w+(\(.*\)) -> ", getattr(value, "__doc__", None) or "", re.MULTILINE)
    if not lines:
        return "built-in"
    return "; ".join(f"({', '.join(_parameter_names(line[1:-1]))})" for line in lines)


def _parameter_names(text: str) -> list[str]:
    """The names before the types, which may have commas of their own.

    Example:
        >>> _parameter_names("arg0: int, arg1: dict[str, int]")
        ['arg0', 'arg1']
    """
    depth, names = 0, [""]
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            names.append("")
        else:
            names[-1] += character
    return [name.split(":")[0].strip() for name in names if name.strip()]


def _assigns(kind: type, name: str) -> bool:
    """Whether the source of a class, or of one that it inherits from, gives instances an attribute."""
    for base in kind.__mro__:
        if name in getattr(base, "__annotations__", {}) or name in getattr(base, "__slots__", ()):
            return True
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
                return True
    return False


def signatures(names: Sequence[str]) -> dict[str, str | None]:
    """What the installed torch has under each of these names."""
    import torch

    has_cuda = torch.version.cuda is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: signature_of_name(name) for name in names if has_cuda or name not in _CUDA_NAMES}


def minor_version(version: str) -> str:
    """A version's first two numbers.

    Example:
        >>> minor_version("2.16.0.dev20261127+cpu")
        '2.16'
    """
    return ".".join(version.split(".")[:2])


def read_record() -> dict[str, Any]:
    """The record: its ``versions``, and for each of its ``names`` the signatures, with their versions."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def recorded_signatures(record: Mapping[str, Any], version: str) -> dict[str, str]:
    """What one recorded version has: the names that are in it, with their signatures."""
    return {
        name: signature
        for name, by_signature in record["names"].items()
        for signature, versions in by_signature.items()
        if version in versions
    }


def baselines(record: Mapping[str, Any], version: str) -> list[str]:
    """The recorded versions that one is compared with: itself, or its neighbours.

    Example:
        >>> baselines({"versions": ["2.11", "2.13"]}, "2.16")
        ['2.13']
    """

    def number(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    recorded = sorted(record["versions"], key=number)
    older = [one for one in recorded if number(one) <= number(version)]
    newer = [one for one in recorded if number(one) >= number(version)]
    return list(dict.fromkeys([*older[-1:], *newer[:1]]))


def changes(
    record: Mapping[str, Any],
    users: Mapping[str, tuple[str, ...]],
    found: Mapping[str, str | None],
    version: str,
) -> list[Change]:
    """What the installed torch has otherwise than the recorded versions next to it.

    A name that none of these has is for another version, and is not missing.

    Args:
        users: the names that the sources use, from `private_names`.
        found: what the installed torch has, from `signatures`.
        version: the installed torch, as "2.16".
    """
    known = [recorded_signatures(record, one) for one in baselines(record, version)]
    different = []
    for name, after in found.items():
        before = [signature for one in known if (signature := one.get(name)) is not None]
        absent_before = len(before) < len(known)
        if after is None and before and not absent_before:
            different.append(Change(name, before[0], None, users[name]))
        elif after is not None and before and after not in before:
            different.append(Change(name, before[0], after, users[name]))
    return different


def record_version(
    record: Mapping[str, Any], users: Mapping[str, Any], found: Mapping[str, str | None], version: str
) -> dict[str, Any]:
    """The record with what one version has, and without names that the sources no longer use."""
    names: dict[str, dict[str, list[str]]] = {}
    for name in sorted(users):
        by_version = {
            one: signature
            for one in record["versions"]
            if one != version and (signature := recorded_signatures(record, one).get(name)) is not None
        }
        after = found.get(name)
        if after is not None:
            by_version[version] = after
        for one in sorted(by_version, key=lambda text: [*map(int, text.split("."))]):
            names.setdefault(name, {}).setdefault(by_version[one], []).append(one)
    versions = sorted({*record["versions"], version}, key=lambda text: [*map(int, text.split("."))])
    return {"versions": versions, "names": names}


def _record_text(record: Mapping[str, Any]) -> str:
    """The record as JSON, with a line for each name."""
    lines = [f"  {json.dumps(name)}: {json.dumps(kinds)}" for name, kinds in record["names"].items()]
    names = ",\n".join(lines)
    return f'{{\n "versions": {json.dumps(record["versions"])},\n "names": {{\n{names}\n }}\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the installed torch with the record, or record it; 1 where something has changed."""
    parser = argparse.ArgumentParser(prog="python -m aot.torch_internals.inventory", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--write", action="store_true", help="record the installed torch as a tested version")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    import torch

    version, users = minor_version(str(torch.__version__)), private_names()
    found = signatures(list(users))
    if options.write:
        record = read_record() if RECORD.exists() else {"versions": [], "names": {}}
        record = record_version(record, users, found, version)
        RECORD.write_text(_record_text(record), encoding="utf-8")
        absent = [name for name, signature in found.items() if signature is None]
        print(f"torch {torch.__version__} has {len(found) - len(absent)} of {len(found)} names.")
        print(*(f"It does not have {name} ({', '.join(users[name])})." for name in absent), sep="\n")
        return 0
    record = read_record()
    different = changes(record, users, found, version)
    if options.json:
        data = {
            "torch": str(torch.__version__),
            "tested": record["versions"],
            "compared_with": baselines(record, version),
            "names": len(users),
            "changes": [dataclasses.asdict(one) for one in different],
        }
        print(json.dumps(data))
    else:
        compared = " and ".join(baselines(record, version))
        print(f"torch {torch.__version__}, compared with {compared}: {len(users)} private names")
        print(*different, sep="\n" if different else "")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
