"""The IR: one fuzzing case as pure data, and its JSON form, which is read as a stranger's.

A `Program` is storages, arguments on them (roots, views, duplicates, Python numbers), statements that name
rows of the operator table, in blocks, a tree of results and a scenario. `to_json` and `from_json`
are the corpus format; `from_json` believes nothing: a document that is not a program of this format raises
`ProgramError` with the place and what to do, in bounded time and memory, and nothing in it is executed.

>>> program = Program(
...     storages=(Storage("float32", (3,), seed=1),),
...     arguments=(Root(0),),
...     parameters=(Ref("a0"),),
...     statements=(Statement("mul_number_", ("a0",), (("value", 2.0),), ()),),
...     returns=Ref("a0"),
... )
>>> from_json(to_json(program)) == program
True
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast, get_args

from fuzz.abstract.interpret import (
    Sizes,
    check_blocks,
    check_module,
    check_names,
    check_values,
    final_state,
    initial_state,
    interpret_statement,
    literal_sizes,
    merge_sizes,
    sizes_if_taken,
)
from fuzz.ir import json_readers as read
from fuzz.ir.argument_rules import BASES, LAZY, VIAS, FieldError, root_error, view_error
from fuzz.ir.control_flow import MAX_BLOCKS, MAX_TURNS, enclosing_blocks
from fuzz.ir.control_flow import MAX_DEPTH as MAX_WITHIN
from fuzz.ir.encode import FORMAT, to_json
from fuzz.ir.json_readers import MAX_DEPTH, MAX_INTEGER, ProgramError, shorten
from fuzz.ir.migrations import EARLIER, migrate
from fuzz.ir.nodes import (
    BOTH,
    Argument,
    Autocast,
    Block,
    Branch,
    Call,
    Dict,
    Duplicate,
    Literal,
    Loop,
    Module,
    Program,
    Ref,
    Region,
    Require,
    Root,
    Scalar,
    Scenario,
    Seq,
    Statement,
    Step,
    Storage,
    TensorStep,
    Tree,
    View,
    Write,
    split_calls,
    tree_references,
)
from fuzz.ir.value_classes import VALUES
from fuzz.operators import OPERATORS, Kind
from fuzz.operators.dtypes import ITEM_SIZE, reads_bytes
from fuzz.operators.row import Constant
from oracles.observation.steps import Backward, How

__all__ = [
    "FORMAT",
    "FORMATS",
    "Argument",
    "Autocast",
    "Block",
    "Branch",
    "Call",
    "Constant",
    "Dict",
    "Duplicate",
    "Literal",
    "Loop",
    "Module",
    "Program",
    "ProgramError",
    "Ref",
    "Region",
    "Require",
    "Root",
    "Scalar",
    "Scenario",
    "Seq",
    "Sizes",
    "Statement",
    "Step",
    "Storage",
    "TensorStep",
    "Tree",
    "View",
    "Write",
    "check",
    "final_state",
    "from_json",
    "initial_state",
    "interpret_statement",
    "literal_sizes",
    "split_calls",
    "to_json",
    "tree_references",
]

FORMATS = (*EARLIER, FORMAT)

MAX_STORAGES = MAX_ARGUMENTS = 32
MAX_STATEMENTS = 200
MAX_LATER = MAX_STEPS = 16

_DEVICE = re.compile(rf"cpu|cuda(:[0-9])?|{BOTH}")
MODES = ("no_grad", "enable_grad", "inference_mode", "swapped", "checkpoint")
BLOCKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(MODES, ()),
    "autocast": ("dtype", "enabled"),
    "if": ("argument", "value", "holds"),
    "for": ("count",),
}
CAST_TO = ("bfloat16", "float16")
WRAPPED = ("one", "two", "twice", "nested")


def check(program: Program) -> None:
    """Raise `ProgramError` unless a program that was made in Python is a valid case.

    It is exactly what `from_json` asks of a document.
    """
    from_json(to_json(program))


# ---------------------------------------------------------------------------------------------------------
# from JSON


def from_json(data: object) -> Program:
    """The program that a JSON document describes, or `ProgramError`.

    Everything is looked at: the format version, unknown and missing fields, types, bounds (4096 elements per
    tensor, rank 8, 200 statements, 32 blocks, 32 storages and arguments, 16 later calls, 16 steps, depth 12),
    views within their storage, names that are defined, operators and attributes that are in the table, shapes
    and dtypes that fit, in each call, and that no size which the text has as a number differs between calls.
    """
    if not isinstance(data, dict):
        raise ProgramError("", f"expected an object, found {shorten(data)}", "give one program as JSON")
    version = data.get("format")
    if type(version) is not int or version not in FORMATS:
        raise ProgramError(
            "format",
            f"found format version {shorten(version)}, expected {FORMAT}",
            "record the case again with this version, or use the version that wrote it",
        )
    if version != FORMAT:
        data = migrate(data, version)
    names = (
        *("format", "storages", "arguments", "parameters", "module", "statements", "blocks", "returns"),
        *("scenario", "later"),
    )
    fields = read.read_fields(data, "", names)
    storages, arguments = _decode_inputs(fields, "")
    parameters = tuple(
        _decode_tree(item, f"parameters[{i}]", 0)
        for i, item in enumerate(read.items(fields["parameters"], "parameters", MAX_ARGUMENTS))
    )
    module = None if fields["module"] is None else _decode_module(fields["module"], "module")
    placed = [name for tree in parameters for name in tree_references(tree)]
    placed += module.names if module is not None else ()
    if sorted(placed) != sorted(f"a{i}" for i in range(len(arguments))):
        raise ProgramError(
            "parameters",
            f"they, and the module, hold {shorten(placed)}, but there are {len(arguments)} arguments",
            "name each argument once",
        )
    statements = tuple(
        _decode_statement(item, f"statements[{i}]")
        for i, item in enumerate(read.items(fields["statements"], "statements", MAX_STATEMENTS))
    )
    blocks: list[Block] = []
    for i, item in enumerate(read.items(fields["blocks"], "blocks", MAX_BLOCKS)):
        blocks.append(_decode_block(item, f"blocks[{i}]", blocks))
    program = Program(
        storages,
        arguments,
        parameters,
        statements,
        _decode_tree(fields["returns"], "returns", 0),
        _decode_scenario(fields["scenario"], "scenario"),
        tuple(
            _call(item, f"later[{i}]")
            for i, item in enumerate(read.items(fields["later"], "later", MAX_LATER))
        ),
        tuple(blocks),
        module,
    )
    check_blocks(program)
    shared = any(OPERATORS[statement.operator].kind is Kind.PYTHON for statement in statements)
    if shared and any(call.scenario.threads for call in split_calls(program)):
        hint = "make the call in one thread, or leave it out"
        raise ProgramError("statements", "they touch Python state, which two threads would share", hint)
    for i, later in enumerate(program.later):
        place = f"later[{i}]"
        if len(later.arguments) != len(arguments):
            raise ProgramError(
                place,
                f"{len(later.arguments)} arguments, the first call has {len(arguments)}",
                "give as many",
            )
        if later.scenario.device != program.scenario.device:
            raise ProgramError(f"{place}.scenario.device", "not the first call's", "use one device")
    for i, one in enumerate(split_calls(program)):
        check_module(one, f"later[{i - 1}]." if i else "")
    first, *others = split_calls(program)
    sizes = check_values(first)
    sizes = sizes_if_taken(first) | sizes
    check_names(program)
    for i, other in enumerate(others):
        try:
            merge_sizes(sizes, check_values(other))
        except ProgramError as error:
            raise ProgramError(f"later[{i}] with {error.place}", error.what, error.hint) from None
    return program


def _decode_module(data: object, place: str) -> Module:
    fields = read.read_fields(data, place, ("held", "training", "attributes"))
    training = fields["training"]
    if training is not None:
        (training,) = read.read_names([training], f"{place}.training")
    held = read.read_names(fields["held"], f"{place}.held")
    attributes = read.read_names(fields["attributes"], f"{place}.attributes")
    if not set(attributes) <= set(held):
        raise ProgramError(f"{place}.attributes", "not all of these are held", "name some that are")
    return Module(held, training, attributes)


def _decode_inputs(fields: dict[str, Any], place: str) -> tuple[tuple[Storage, ...], tuple[Argument, ...]]:
    storages = tuple(
        _decode_storage(item, f"{place}storages[{i}]")
        for i, item in enumerate(read.items(fields["storages"], f"{place}storages", MAX_STORAGES))
    )
    arguments: list[Argument] = []
    for i, item in enumerate(read.items(fields["arguments"], f"{place}arguments", MAX_ARGUMENTS)):
        arguments.append(_decode_argument(item, f"{place}arguments[{i}]", storages, arguments))
    return storages, tuple(arguments)


def _call(data: object, place: str) -> Call:
    fields = read.read_fields(data, place, ("storages", "arguments", "scenario"))
    return Call(
        *_decode_inputs(fields, f"{place}."), _decode_scenario(fields["scenario"], f"{place}.scenario")
    )


def _decode_storage(data: object, place: str) -> Storage:
    names = ("dtype", "size", "seed", "requires_grad", "leaf", "values", "detached", "inference", "precision")
    fields = read.read_fields(data, place, names)
    precision = fields["precision"]
    storage = Storage(
        read.dtype(fields["dtype"], f"{place}.dtype"),
        read.read_size(fields["size"], f"{place}.size"),
        read.integer(fields["seed"], f"{place}.seed", 0, MAX_INTEGER),
        read.boolean(fields["requires_grad"], f"{place}.requires_grad"),
        read.boolean(fields["leaf"], f"{place}.leaf"),
        read.choice(fields["values"], f"{place}.values", VALUES),
        read.boolean(fields["detached"], f"{place}.detached"),
        read.boolean(fields["inference"], f"{place}.inference"),
        None if precision is None else read.dtype(precision, f"{place}.precision"),
    )
    _fit(root_error(storage), place)
    return storage


def _fit(reason: FieldError | None, place: str) -> None:
    if reason is not None:
        raise ProgramError(f"{place}.{reason.field}", reason.what, reason.hint)


def _decode_argument(
    data: object, place: str, storages: tuple[Storage, ...], earlier: list[Argument]
) -> Argument:
    kind = data.get("kind") if isinstance(data, dict) else None
    match kind:
        case "root":
            fields = read.read_fields(data, place, ("kind", "storage"))
            return Root(read.integer(fields["storage"], f"{place}.storage", 0, len(storages) - 1))
        case "view":
            names = ("kind", "storage", "size", "stride", "offset", "via", "dtype", "leaf", "wrapped")
            fields = read.read_fields(data, place, (*names, "lazy", "base"))
            storage = read.integer(fields["storage"], f"{place}.storage", 0, len(storages) - 1)
            size = read.read_size(fields["size"], f"{place}.size")
            stride = tuple(
                read.integer(item, f"{place}.stride[{i}]", 0, MAX_INTEGER)
                for i, item in enumerate(read.items(fields["stride"], f"{place}.stride", len(size)))
            )
            if len(stride) != len(size):
                raise ProgramError(f"{place}.stride", "shorter than the size", "give one stride a dimension")
            offset = read.integer(fields["offset"], f"{place}.offset", 0, MAX_INTEGER)
            via = read.choice(fields["via"], f"{place}.via", VIAS)
            dtype = fields["dtype"]
            if dtype is not None:
                dtype = read.dtype(dtype, f"{place}.dtype")
            room = _elements_in_storage(storages[storage], dtype, place)
            leaf = read.boolean(fields["leaf"], f"{place}.leaf")
            wrapped = _one_or_none(fields["wrapped"], f"{place}.wrapped", WRAPPED)
            lazy = _one_or_none(fields["lazy"], f"{place}.lazy", LAZY)
            base = read.choice(fields["base"], f"{place}.base", BASES)
            view = View(storage, size, stride, offset, via, dtype, leaf, wrapped, lazy, base)
            _fit(view_error(view, storages[storage]), place)
            empty = 0 in size
            last = offset if empty else offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
            if last > room or (last == room and not empty):
                raise ProgramError(
                    place,
                    f"the view reaches element {last} of a storage of {room}",
                    "keep offset and extent within the storage",
                )
            return view
        case "same":
            fields = read.read_fields(data, place, ("kind", "argument"))
            index = read.integer(fields["argument"], f"{place}.argument", 0, len(earlier) - 1)
            if isinstance(earlier[index], Scalar):
                raise ProgramError(f"{place}.argument", "names a scalar", "duplicate a tensor argument")
            return Duplicate(index)
        case "scalar":
            fields = read.read_fields(data, place, ("kind", "value"))
            return Scalar(read.read_constant(fields["value"], f"{place}.value"))
    raise ProgramError(
        f"{place}.kind", f"unknown argument kind {shorten(kind)}", "use root, view, same or scalar"
    )


def _elements_in_storage(storage: Storage, dtype: str | None, place: str) -> int:
    """How many elements of a dtype, None for its own, a storage holds."""
    count = math.prod(storage.size)
    if dtype is None or dtype == storage.dtype:
        return count
    if "bool" in (dtype, storage.dtype):
        raise ProgramError(
            f"{place}.dtype", f"{storage.dtype} seen as {dtype}", "only 0 and 1 are bools: leave it"
        )
    room, rest = divmod(count * ITEM_SIZE[storage.dtype], ITEM_SIZE[dtype])
    if rest and reads_bytes(storage.dtype, dtype):
        raise ProgramError(f"{place}.dtype", f"{count} {storage.dtype} are no whole {dtype}", "use another")
    return room


def _one_or_none(data: object, place: str, words: Iterable[str]) -> str | None:
    return None if data is None else read.choice(data, place, words)


def _decode_statement(data: object, place: str) -> Statement:
    fields = read.read_fields(data, place, ("operator", "operands", "attributes", "results", "block"))
    name = fields["operator"]
    if not isinstance(name, str) or name not in OPERATORS:
        raise ProgramError(
            f"{place}.operator",
            f"unknown operator {shorten(name)}",
            "the table is fuzz.operators.OPERATORS; a newer version may know it",
        )
    row = OPERATORS[name]
    operands = read.read_names(fields["operands"], f"{place}.operands")
    if len(operands) != len(row.operands):
        raise ProgramError(
            f"{place}.operands", f"{name} takes {len(row.operands)}, found {len(operands)}", "correct it"
        )
    given = read.read_fields(
        fields["attributes"], f"{place}.attributes", tuple(a.name for a in row.attributes)
    )
    attributes = []
    for attribute in row.attributes:
        where = f"{place}.attributes.{attribute.name}"
        value = read.read_constant(given[attribute.name], where)
        if not attribute.accepts(value):
            raise ProgramError(where, f"{shorten(value)} is not of type {attribute.type}", "correct it")
        attributes.append((attribute.name, value))
    results = read.read_names(fields["results"], f"{place}.results")
    for result in results:
        if result[0] != "v":
            raise ProgramError(f"{place}.results", f"{result} is an argument's name", "name results v0, v1")
    block = read.integer(fields["block"], f"{place}.block", -1, MAX_BLOCKS)
    return Statement(name, operands, tuple(attributes), results, block)


def _decode_block(data: object, place: str, earlier: Sequence[Block]) -> Block:
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in BLOCKS:
        raise ProgramError(f"{place}.kind", f"unknown block {shorten(kind)}", f"use {', '.join(BLOCKS)}")
    fields = read.read_fields(data, place, ("kind", "within", *BLOCKS[kind]))
    within = read.integer(fields["within"], f"{place}.within", -1, len(earlier) - 1)
    if len(enclosing_blocks(earlier, within)) >= MAX_WITHIN:
        raise ProgramError(f"{place}.within", "nested too deeply", f"stay within {MAX_WITHIN} levels")
    if within >= 0 and earlier[within] == Region("checkpoint", earlier[within].within):
        raise ProgramError(f"{place}.within", "a block in a checkpoint", "put it around the checkpoint")
    match kind:
        case "autocast":
            dtype = read.choice(fields["dtype"], f"{place}.dtype", CAST_TO)
            return Autocast(dtype, read.boolean(fields["enabled"], f"{place}.enabled"), within)
        case "if":
            (argument,) = read.read_names([fields["argument"]], f"{place}.argument")
            value = read.read_constant(fields["value"], f"{place}.value")
            return Branch(argument, value, read.boolean(fields["holds"], f"{place}.holds"), within)
        case "for":
            return Loop(read.integer(fields["count"], f"{place}.count", 1, MAX_TURNS), within)
        case mode:
            return Region(mode, within)


def _decode_tree(data: object, place: str, depth: int) -> Tree:
    if depth >= MAX_DEPTH:
        raise ProgramError(place, "nested too deeply", f"stay within {MAX_DEPTH} levels")
    if not isinstance(data, dict) or len(data) != 1:
        raise ProgramError(place, f"{shorten(data)} is not a tree", "use one of ref, tuple, list, dict, lit")
    [(kind, value)] = data.items()
    match kind:
        case "ref":
            return Ref(read.read_names([value], place)[0])
        case "tuple" | "list":
            found = read.items(value, place)
            return Seq(
                kind,
                tuple(_decode_tree(item, f"{place}.{kind}[{i}]", depth + 1) for i, item in enumerate(found)),
            )
        case "dict":
            entries = []
            for i, entry in enumerate(read.items(value, place)):
                where = f"{place}.dict[{i}]"
                if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
                    raise ProgramError(where, "not a pair of a key and a tree", "write [key, tree]")
                key = read.read_constant(entry[0], where)
                assert isinstance(key, str)
                entries.append((key, _decode_tree(entry[1], where, depth + 1)))
            if len({key for key, _ in entries}) < len(entries):
                raise ProgramError(place, "a key stands twice", "use distinct keys")
            return Dict(tuple(entries))
        case "lit":
            return Literal(read.read_constant(value, place))
    raise ProgramError(place, f"{shorten(kind)} is not a tree", "use one of ref, tuple, list, dict, lit")


def _decode_scenario(data: object, place: str) -> Scenario:
    names = (
        "device",
        "grad",
        "differentiate",
        "inference",
        "steps",
        "threads",
        "autocast",
        "swapped",
        "marked",
    )
    fields = read.read_fields(data, place, names)
    device = fields["device"]
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise ProgramError(f"{place}.device", f"unknown device {shorten(device)}", "use cpu, cuda or both")
    return Scenario(
        device,
        read.boolean(fields["grad"], f"{place}.grad"),
        _indices(fields["differentiate"], f"{place}.differentiate"),
        read.boolean(fields["inference"], f"{place}.inference"),
        tuple(
            _decode_step(item, f"{place}.steps[{i}]")
            for i, item in enumerate(read.items(fields["steps"], f"{place}.steps", MAX_STEPS))
        ),
        read.boolean(fields["threads"], f"{place}.threads"),
        _one_or_none(fields["autocast"], f"{place}.autocast", CAST_TO),
        read.boolean(fields["swapped"], f"{place}.swapped"),
        read.read_names(fields["marked"], f"{place}.marked"),
    )


def _decode_step(data: object, place: str) -> Step:
    if isinstance(data, dict) and "write" in data:
        return Write(_named(data, place, "write"))
    if isinstance(data, dict) and "require" in data:
        return Require(_named(data, place, "require"))
    fields = read.read_fields(data, place, ("backward", "roots", "retain"))
    how = read.choice(fields["backward"], f"{place}.backward", get_args(How))
    roots = _indices(fields["roots"], f"{place}.roots")
    return Backward(roots, cast(How, how), read.boolean(fields["retain"], f"{place}.retain"))


def _named(data: object, place: str, field: str) -> str:
    return read.read_names([read.read_fields(data, place, (field,))[field]], f"{place}.{field}")[0]


def _indices(data: object, place: str) -> tuple[int, ...] | None:
    if data is None:
        return None
    found = read.items(data, place)
    return tuple(read.integer(item, f"{place}[{i}]", 0, read.MAX_ITEMS) for i, item in enumerate(found))
