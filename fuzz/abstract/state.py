"""Abstract state: what is known of a program's tensors at each statement, without running it.

The generator builds a program on an `AbstractState`, and `decode.check` replays one. The state follows
metadata by the rules of the operator table. It follows memory: which tensors share it, and which elements
they show. And it follows as much of autograd as decides whether eager raises: leaves, views and how they were
made, version counters, and saved tensors.

There are three kinds of trouble:

* *invalid*: shapes or dtypes do not fit, or eager's result is undefined (`apply` raises `InvalidProgram`).
  Memory that `resize_` has added is `undefined` until it is written, and a program must leave none.
* *illegal*: eager raises at this statement, and so must a compiler (`eager_rules.eager_error_now` gives the
reason). * *raises later*: eager raises in backward, or when a view is next used
(`eager_rules.eager_error_later` gives the reason).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuzz.abstract import eager_rules
from fuzz.abstract.tensor import (
    AbstractCall,
    AbstractTensor,
    InvalidProgram,
    SavedForBackward,
    Value,
    VersionCounter,
)
from fuzz.ir import subclass
from fuzz.ir.control_flow import Modes, enclosing_blocks, modes_inside
from fuzz.ir.nodes import Block, Storage, View
from fuzz.operators import AUTOCAST
from fuzz.operators.backward_writes import WRITE_IN_BACKWARD
from fuzz.operators.builders import as_number, empty_like
from fuzz.operators.dtypes import DTYPES, HALF, INEXACT, ITEM_SIZE, LESS_THAN_DOUBLE, reads_bytes
from fuzz.operators.layout import contiguous_strides, covered_bytes, end_byte
from fuzz.operators.row import (
    MAX_ELEMENTS,
    MAX_RANK,
    VIEWS_INSIDE,
    Aliasing,
    Attributes,
    Change,
    Constant,
    Kind,
    Meta,
    Mismatch,
    Operator,
    Result,
)
from fuzz.operators.training_scripts import FIRST_DERIVATIVES

__all__ = ["AbstractCall", "AbstractState", "AbstractTensor", "InvalidProgram"]

SPECIAL = (Kind.HOOK, Kind.RETAIN, Kind.MODE, Kind.FUNCTION, Kind.WRAPPER, Kind.PYTHON)
_LINKS = {
    "detach": Aliasing.DETACHED,
    "data": Aliasing.DATA,
    "parameter": Aliasing.DETACHED,
}  # of views that are arguments
_OWN = (
    Aliasing.TIED,
    Aliasing.WRAPPED,
    Aliasing.PART,
)  # results with a history of their own, as far as there is one
_READS = (Aliasing.FRESH, Aliasing.MAYBE)  # results that are made of their operands' elements


def _resolved(result: Result) -> Result:
    """The result for lazily conjugated or negated operands: it has neither bit, and its strides are
    unknown.
    """
    if result.aliasing not in _READS:
        return result
    return result._replace(meta=result.meta._replace(stride=None, offset=0, conj=False, neg=False))


def _wrap(value: AbstractTensor, parts: VersionCounter, history: bool, made: str | None) -> None:
    """Make a tensor a wrapper subclass, with a history or without."""
    value.parts = parts
    value.nested = made == "nested"
    if history:
        value.own = value.grad_fn = True


def _convert_by_autocast(use: AbstractCall, autocast: str) -> None:
    """Let autocast copy operands of less than double precision, by the policy of the row."""
    row = use.row
    policy = AUTOCAST[row.name]
    if policy == "mixed":
        if any(meta.dtype in HALF and meta.dtype != autocast for meta in use.metas):
            raise InvalidProgram(f"{row.name} takes no half precision but autocast's")
        return
    if policy == "lower unless one" and prod(use.metas[0].size[:-1] + use.metas[1].size[1:]) == 1:
        return
    dtype = "float32" if policy == "float32" else autocast
    use.metas = list(use.metas)
    for i, meta in enumerate(use.metas):
        if meta.dtype in LESS_THAN_DOUBLE and meta.dtype != dtype:
            if dtype not in row.operands[i].dtypes:
                raise InvalidProgram(
                    f"{row.name} does not take {dtype}, which autocast makes of its operands"
                )
            use.metas[i] = empty_like(meta, dtype)
            use.converted.add(i)


class AbstractState:
    """The tensors of a program after some of its statements."""

    __slots__ = (
        *(
            "_aliases",
            "_roots",
            "_sizes",
            "_storages",
            "autocast",
            "grad",
            "hazards",
            "inference",
            "kept",
            "names",
        ),
        "undefined",
    )

    def __init__(self, grad: bool = True, inference: bool = False, autocast: str | None = None) -> None:
        self.grad = grad and not inference
        self.inference = inference
        self.autocast = autocast or ""
        self.names: dict[str, Value] = {}
        self.kept = SavedForBackward()
        self.hazards = 0  # the number of statements after which eager raises later
        self.undefined: dict[int, frozenset[int]] = {}  # memory -> bytes that nothing has written yet
        self._roots: list[AbstractTensor] = []
        self._storages: list[Storage] = []
        self._aliases: dict[
            tuple[int, str], AbstractTensor
        ] = {}  # aliases of roots, of which views are taken
        self._sizes: list[int] = []  # memory -> bytes

    # ----------------------------------------------------------------------------------------------------
    # arguments

    def allocate(self, storage: Storage) -> int:
        """Add a storage and its root, and return the storage's number."""
        meta = Meta(storage.dtype, storage.size, contiguous_strides(storage.size))
        self._storages.append(storage)
        self._roots.append(self._fresh(meta, storage.requires_grad))
        self._roots[-1].grad_fn = storage.requires_grad and not storage.leaf
        self._roots[-1].inference = storage.inference
        return len(self._roots) - 1

    def bind_root(self, name: str, storage: int) -> None:
        self.names[name] = self._roots[storage]

    def bind_view(self, name: str, view: View) -> None:
        root, whole = self._base(view), subclass.is_whole(view, self._storages[view.storage])
        bits = {} if view.lazy is None else {view.lazy: True}
        meta = Meta(view.dtype or root.meta.dtype, view.size, view.stride, view.offset, **bits)
        if reads_bytes(root.meta.dtype, meta.dtype):
            root = self._linked(root, Result(root.meta._replace(dtype=meta.dtype), Aliasing.DETACHED))
        apart = view.wrapped is not None and view.base == "root"
        link = Aliasing.DATA if apart else _LINKS.get(view.via, Aliasing.VIEW)
        value = self._linked(root, Result(meta, link), view.via != "no_grad", view.via == "multi")
        value.own = view.leaf
        if apart:
            _wrap(value, root.clock, root.requires_grad and view.via == "view", view.wrapped)
        self.names[name] = root if whole else value

    def _base(self, view: View) -> AbstractTensor:
        """The tensor of which a view is taken: a root, or an alias of one."""
        root = self._roots[view.storage]
        if view.base == "root":
            return root
        place = view.storage, view.wrapped or view.base
        if place not in self._aliases:
            link = Aliasing.DATA if view.base == "wrapper" else _LINKS[view.base]
            alias = self._aliases[place] = self._linked(root, Result(root.meta, link))
            if view.base == "wrapper":
                _wrap(alias, root.clock, root.requires_grad, view.wrapped)
        return self._aliases[place]

    def detach_root(self, storage: int) -> None:
        """Detach a root in place. Tensors that were made from it keep their history."""
        root = self._roots[storage]
        root.own = root.grad_fn = False
        root.clock.split |= root.clock.viewed

    def bind_same(self, name: str, earlier: str) -> None:
        self.names[name] = self.names[earlier]

    def bind_scalar(self, name: str, value: Constant) -> None:
        self.names[name] = value

    # ----------------------------------------------------------------------------------------------------
    # statements

    def tensor(self, name: str) -> AbstractTensor:
        """The tensor of a name.

        Raises:
            InvalidProgram: the name is not defined, or no tensor.
        """
        value = self.names.get(name)
        if not isinstance(value, AbstractTensor):
            raise InvalidProgram(f"{name} is not {'a tensor' if name in self.names else 'defined'}")
        return value

    def meta(self, name: str) -> Meta:
        """The metadata of a tensor or Python number."""
        value = self.names[name]
        return value.meta if isinstance(value, AbstractTensor) else as_number(value)

    def is_stale(self, name: str) -> bool:
        """Whether the tensor is a view that raises when it is used."""
        value = self.names[name]
        return isinstance(value, AbstractTensor) and value.stale

    def is_unwatched(self, name: str) -> bool:
        """Whether a backward has saved the tensor's memory under another version counter.

        Autograd would not notice a later write to the tensor, and gradients would be undefined.
        """
        value = self.names[name]
        reread = isinstance(value, AbstractTensor) and value.memory in self.kept.reread
        return reread or self.is_kept_apart(name)

    def is_kept_apart(self, name: str) -> bool:
        """Whether a backward reads the tensor's memory, and has saved it under another version counter."""
        value = self.names[name]
        return isinstance(value, AbstractTensor) and any(
            read and memory == value.memory and clock is not value.clock
            for memory, clock, _, read in self.kept.saved
        )

    def is_kept(self, name: str) -> bool:
        """Whether a backward needs the tensor's present elements, and notices a write to them."""
        value = self.names[name]
        return isinstance(value, AbstractTensor) and any(
            memory == value.memory and clock is value.clock and version == clock.version
            for memory, clock, version, _ in self.kept.saved
        )

    def is_outdated(self, name: str) -> bool:
        """Whether the tensor is a view of a wrapper subclass that was written to after the view was taken.

        The view was taken without grad mode, or as one of several results. A compiler may refuse to return
        it, although autograd follows it.
        """
        value = self.names[name]
        if (
            not isinstance(value, AbstractTensor)
            or not value.wrapped
            or value.base is None
            or value.made == "plain"
        ):
            return False
        return value.requires_grad and value.taken != value.clock.version

    def is_hooked(self, name: str) -> bool:
        """Whether a tensor on the same memory has a hook."""
        value = self.names[name]
        return isinstance(value, AbstractTensor) and value.memory in self.kept.hooked

    def use(
        self,
        row: Operator,
        operands: Sequence[str],
        attributes: Attributes,
        modes: Modes | None = None,
        metas: Sequence[Meta] | None = None,
    ) -> AbstractCall:
        """A statement on the tensors of these names.

        `modes` are those of the statement's block, or None without a block. `metas` are the operands'
        metadata, if the caller has already checked them.

        Raises:
            InvalidProgram: the operands are not what the row takes.
        """
        values = self.names
        if metas is None:
            metas = self._fitting(row, operands)
        tensors = [value for name in operands if isinstance(value := values[name], AbstractTensor)]
        if modes is None:
            use = AbstractCall(row, metas, tensors, attributes, self.grad, self.inference)
            autocast = self.autocast
        else:
            use = AbstractCall(row, metas, tensors, attributes, modes.grad, modes.inference)
            use.repeated, use.contained = modes.repeated, modes.contained
            autocast = modes.autocast
        if autocast and row.name in AUTOCAST:
            _convert_by_autocast(use, autocast)
        return use

    def _fitting(self, row: Operator, operands: Sequence[str]) -> list[Meta]:
        metas = []
        for name, operand in zip(operands, row.operands, strict=True):
            if operand.number:
                value = self.names.get(name)
                if not isinstance(value, (int, float, complex)) or isinstance(value, bool):
                    raise InvalidProgram(f"{name} is not a Python number")
                meta = as_number(value)
            else:
                meta = self.tensor(name).meta
            if meta.dtype not in operand.dtypes:
                raise InvalidProgram(f"{name} is {meta.dtype}, which {row.name} does not take there")
            metas.append(meta)
        return metas

    def modes(self, blocks: Sequence[Block], number: int) -> Modes | None:
        """The modes of a block's statements; None for no block."""
        if number < 0:
            return None
        modes = Modes(self.grad, self.inference, autocast=self.autocast)
        for outer in enclosing_blocks(blocks, number):
            modes = modes_inside(modes, blocks[outer])
        return modes

    def apply(
        self,
        row: Operator,
        operands: Sequence[str],
        attributes: Attributes,
        results: Sequence[str],
        modes: Modes | None = None,
    ) -> None:
        """Append a statement.

        Raises:
            InvalidProgram: it is not valid. Then nothing has changed.
        """
        use = self.use(row, operands, attributes, modes)
        outcome = self.infer(use)
        count = 0 if row.metadata else len(outcome)
        if len(results) != count:
            raise InvalidProgram(f"it has {count} results, not {len(results)}")
        again = modes is None and any(name in self.names for name in results)  # in a block they may be
        if again or len(set(results)) < len(results):
            raise InvalidProgram(f"of the results {', '.join(results)} one is defined already")
        self.commit(use, outcome, results)

    def infer(self, use: AbstractCall) -> tuple[Result, ...]:
        """The outcome of a statement. The state does not change.

        Raises:
            InvalidProgram: it is not valid.
        """
        row = use.row
        if use.repeated and (row.writes or row.change is not None or row.defines):
            raise InvalidProgram("a write that a backward repeats")
        if use.repeated and use.handles_inference:
            raise InvalidProgram("a tensor made under inference mode, which checkpoint would keep")
        if row.kind in SPECIAL:
            unfit = eager_rules.not_generated(use)
            if unfit is not None:
                raise InvalidProgram(unfit)
        if row.change is Change.DETACH and use.target.hidden:
            raise InvalidProgram("eager detaches no view in place, and this may be one")
        if self.kept.retained and (row.writes or row.change is not None):
            written = (use.tensors[number].memory for number in row.writes or (0,))
            if not self.kept.retained.isdisjoint(written):
                raise InvalidProgram("a write to what is to keep its gradient, after which eager may crash")
        try:
            outcome = row.rule(use.metas, use.attributes)
        except Mismatch as mismatch:
            raise InvalidProgram(str(mismatch)) from None
        if row.change is None and any(meta.conj or meta.neg for meta in use.metas):
            outcome = tuple(map(_resolved, outcome))
        reads = bool(row.writes)
        for meta, link in outcome:
            if meta.dtype not in DTYPES:
                raise InvalidProgram(f"a {meta.dtype} result")
            if len(meta.size) > MAX_RANK or prod(meta.size) > MAX_ELEMENTS:
                raise InvalidProgram(f"a result of size {meta.size} is larger than any program's tensor")
            if (
                link is Aliasing.VIEW
                and meta.stride is not None
                and end_byte(meta) > self._sizes[use.target.memory]
            ):
                raise InvalidProgram("it reaches beyond the storage")
            reads = reads or link in _READS
        undefined = eager_rules.undefined_write(use) if row.writes else None
        if undefined is None and (use.inference or use.handles_inference):
            undefined = eager_rules.unmodelled_inference(use, outcome)
        if undefined is None and use.wraps:
            undefined = eager_rules.unmodelled_wrapper(use, outcome)
        if undefined is not None:
            raise InvalidProgram(undefined)
        if row.change is Change.RESIZE and outcome[0].meta.stride is not None:
            meta = outcome[0].meta
            start = meta.offset * ITEM_SIZE[meta.dtype]
            if end_byte(meta) > start > self._sizes[use.target.memory]:
                raise InvalidProgram("its storage grows by elements that the tensor does not cover")
        if self.undefined and reads:
            for tensor in use.tensors[1 if row.fills else 0 :]:
                if self._is_undefined(tensor):
                    raise InvalidProgram("it reads memory that nothing has been written to")
        return outcome

    def commit(self, use: AbstractCall, outcome: tuple[Result, ...], results: Sequence[str]) -> None:
        """Append a statement whose outcome `infer` gave, under new names."""
        row, tensors = use.row, use.tensors
        if row.kind is Kind.MODE:
            self.grad = bool(use.attributes["enabled"])
        elif row.kind is Kind.HOOK:
            self.kept.hooked.add(tensors[0].memory)
        elif row.kind is Kind.RETAIN:
            self.kept.retained.add(tensors[0].memory)
        tracked = use.followed and row.differentiable
        self.kept.once |= tracked and (
            row.has_side_effect
            or row.kind is Kind.HIGHER_ORDER
            or row.name in WRITE_IN_BACKWARD
            or row.name in FIRST_DERIVATIVES
        )
        if tracked and row.kind is Kind.HIGHER_ORDER:
            self.kept.asked.add(tensors[0].memory)
        made: list[AbstractTensor] = []
        if row.writes or row.change is not None:
            target = tensors[0]
            if eager_rules.eager_error_later(use, self.kept):
                self.hazards += 1
            if row.change is not None:
                self._change(row.change, tensors, outcome[0].meta, use.attributes)
            for number in row.writes or (0,):
                if row.bumps_version and row.change not in eager_rules.SILENT:
                    written, follows = tensors[number], tracked and number not in row.statistics
                    self._write(written, follows and written.meta.dtype in INEXACT)
            if row.fills is not None and target.memory in self.undefined:
                self._fill(target.memory, row.fills([tensor.meta for tensor in tensors], use.attributes))
            if not row.statistics:
                made.append(target)
        for name, result in zip(results, outcome, strict=False):
            if result.aliasing is Aliasing.FRESH:
                needed = tracked and result.meta.dtype in INEXACT
                value = self._fresh(result.meta, needed)
                value.grad_fn = needed
                value.inference = use.inference
                value.parts = VersionCounter() if use.wraps else None
                value.nested = any(tensor.nested for tensor in tensors)
                value.hidden = row.kind in VIEWS_INSIDE
            else:
                multi = row.kind is Kind.MULTI_VIEW
                value = self._linked(tensors[0], result, use.grad and not row.defines, multi)
                if result.aliasing in _OWN:
                    value.own = value.grad_fn = tracked and result.meta.dtype in INEXACT
                elif row.defines and tracked:
                    value.grad_fn = True
            value.several = value.several or len(outcome) > 1  # the result may be an operand
            self.names[name] = value
            made.append(value)
        if use.repeated and use.grad:
            self.kept.reread.update(tensor.memory for tensor in tensors)
        itself = outcome and all(result.aliasing is Aliasing.SELF for result in outcome)
        if tracked and (row.writes or row.change is not None or not itself):
            self._follow(use, made)  # autograd does not see a call that returns its operand itself

    def _follow(self, use: AbstractCall, made: list[AbstractTensor]) -> None:
        """Record what autograd saves for a statement that it follows."""
        for tensor in use.tensors:
            if tensor.base is not None and tensor.base.grad_fn:
                tensor.grad_fn = True
        for which, when in () if use.repeated else use.row.saves:
            if any(use.needs[i] for i in when):
                if isinstance(which, int):
                    if which in use.converted:
                        continue
                    kept = use.tensors[which]
                else:
                    kept = made[0 if which == "result" else 1]
                read = (
                    use.row.bumps_version or which not in use.row.writes
                )  # the backward would read elements that the statement has overwritten
                self.kept.saved.append((kept.memory, kept.clock, kept.clock.version, read))

    # ----------------------------------------------------------------------------------------------------

    def _fresh(self, meta: Meta, requires_grad: bool) -> AbstractTensor:
        return AbstractTensor(meta, self._allocate(meta), VersionCounter(), own=requires_grad, grad_fn=False)

    def _allocate(self, meta: Meta) -> int:
        self._sizes.append(prod(meta.size) * ITEM_SIZE[meta.dtype])
        return len(self._sizes) - 1

    def _linked(
        self, parent: AbstractTensor, result: Result, grad: bool = True, multi: bool = False
    ) -> AbstractTensor:
        if result.aliasing is Aliasing.SELF:
            return parent
        own_clock = result.aliasing in (Aliasing.DATA, Aliasing.UNSAFE, Aliasing.WRAPPED)
        clock = VersionCounter() if own_clock else parent.clock
        if result.aliasing is Aliasing.PART:
            assert parent.parts is not None
            clock = parent.parts
        value = AbstractTensor(result.meta, parent.memory, clock, own=False, grad_fn=False)
        value.inference = parent.inference
        value.parts, value.nested = parent.parts, parent.nested and result.aliasing is not Aliasing.PART
        if result.aliasing in (Aliasing.WRAPPED, Aliasing.PART):
            value.parts = parent.clock if result.aliasing is Aliasing.WRAPPED else None
        if result.aliasing is Aliasing.UNSAFE:
            value.own = value.grad_fn = grad and parent.requires_grad
            if value.own:
                self.kept.unsafe.add(value.memory)
        if result.aliasing in (Aliasing.DETACHED, Aliasing.DATA, Aliasing.UNSAFE, *_OWN):
            return value
        value.base = parent.base or parent
        clock.viewed = True
        value.grad_fn = grad and parent.requires_grad
        if parent.made != "plain":
            value.made = parent.made
        elif not grad:
            value.made = "no_grad"
        elif multi:
            value.made = "multi"
        if value.made != "plain":
            self.kept.fragile.append(value)
        return value

    def _change(
        self, change: Change, tensors: Sequence[AbstractTensor], meta: Meta, attributes: Attributes
    ) -> None:
        """Apply a row's change to its first operand as an object."""
        target = tensors[0]
        target.meta = meta
        match change:
            case Change.RESIZE if meta.stride is not None:
                grown = range(self._sizes[target.memory], end_byte(meta))
                if grown:
                    known = self.undefined.get(target.memory, frozenset())
                    self.undefined[target.memory] = known.union(grown)
                    self._sizes[target.memory] = end_byte(meta)
            case Change.STORAGE | Change.UNTYPED | Change.DATA:
                target.memory = tensors[1].memory if len(tensors) > 1 else self._allocate(meta)
                target.clock.split |= target.clock.viewed
            case Change.DETACH:
                target.own = target.grad_fn = False
                target.clock.split |= target.clock.viewed
            case Change.REQUIRE if not target.requires_grad or not attributes["value"]:
                target.own = bool(attributes["value"])

    def _fill(self, memory: int, written: Meta) -> None:
        if written.stride is None:
            return
        left = self.undefined.pop(memory) - covered_bytes(written)
        if left:
            self.undefined[memory] = left

    def _is_undefined(self, tensor: AbstractTensor) -> bool:
        bytes_left = self.undefined.get(tensor.memory)
        if not bytes_left:
            return False
        return tensor.meta.stride is None or not bytes_left.isdisjoint(covered_bytes(tensor.meta))

    def _write(self, target: AbstractTensor, tracked: bool) -> None:
        target.clock.version += 1
        if not tracked:
            return
        target.grad_fn = True
        target.born = target.clock.version
        owner = target.base or target
        owner.own = owner.grad_fn = True
