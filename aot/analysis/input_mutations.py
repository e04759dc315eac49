"""What the run did to the arguments: their data, their metadata and storage, their place in autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from aot import errors
from aot.analysis.context import AnalysisContext, is_current, root_of
from aot.analysis.effect_summary import Change, Write
from aot.analysis.histories import before_metadata_mutations, unseen_by_autograd
from aot.capture.memory.metadata_log import StorageRebind
from aot.capture.memory.storage import Storage
from aot.capture.memory.view_ops import CreationMode
from aot.tensors import views
from aot.tensors.geometry import Geometry, IntervalIndex, covers, geometry, same_interpretation
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_graph, autograd_state, plain_fakes


class InputMutations:
    """The effects on arguments, clause by clause.

    Attributes:
        written: arguments that lie, or lay, in a storage that a write changes.
    """

    def __init__(self, world: AnalysisContext) -> None:
        self.world = world
        self.forward = world.forward
        self.recorder = world.recorder
        self.fakes = world.fakes
        self.written: frozenset[int] = frozenset()
        self._moved: dict[Storage, set[int]] = {}
        self._wheres: dict[Storage, dict[int, list[Geometry]]] = {}
        self._repeated = {id(root_of(f)) for f in self.fakes if self.recorder.journal.changes_of(f)}
        # The arguments on a storage by the root that they are, or are views of.
        self._families: dict[tuple[Storage, int], list[int]] = {}
        for state, entered in world.inputs_entered_on.items():
            for i in entered:
                self._families.setdefault((state, id(root_of(self.fakes[i]))), []).append(i)
        self._base_edges = {
            id(base): edge
            for (base, _), edge in zip(self.forward.entry.bases, self.forward.entry.base_edges, strict=True)
        }

    def refuse_unrepeatable_mutations(self) -> None:
        """Refuse what a wrapper cannot repeat.

        Raises:
            AutogradStateMutation: ``backward()`` inside the function accumulated into an argument.
            StorageMutation: autograd derived the history of a view before ``.data =``.
        """
        entry = self.forward.entry
        for i, fake in enumerate(self.fakes):
            self.recorder.journal.sync_data_assignment(fake)
            if is_current(fake) and fake.is_leaf and fake.grad is not entry.grads[i]:
                raise errors.AutogradStateMutation(
                    f"backward() inside the function accumulated into tensor {i}'s .grad; use autograd.grad"
                )
        for i, fake in enumerate(self.fakes):
            if fake._is_view() and version_of(fake) != entry.versions[i] and self._was_derived_before(i):
                raise errors.StorageMutation(
                    f"the memory of tensor {i}, a view, was written to and the view used, and then it, or "
                    f"its base, was put elsewhere with another shape or strides (.data = ...); put it there "
                    f"outside"
                )

    def _was_derived_before(self, i: int) -> bool:
        """Whether autograd derived the history of a view, by how it and its base lay then, before ``.data =``
        let one of them lie in another way. (Else it does that when somebody looks.)"""
        fake = self.fakes[i]
        node = fake.grad_fn if is_current(fake) else None
        if node is None or autograd_graph.sequence_number(node) >= self.forward.nodes:
            return False
        owner = self.world.index_of.get(id(root_of(fake)))
        saved = (getattr(node, f"_saved_{name}", None) for name in ("size", "stride", "storage_offset"))
        as_now = tuple(saved) == geometry(fake)[:3]
        return any(
            isinstance(event, StorageRebind)
            and event.assigned
            and event.where[:3] != self.forward.entry.before[k][:3]
            for k in ((owner,) if as_now else (owner, i))
            if k is not None
            for event in self.recorder.journal.changes_of(self.fakes[k])
        )

    # ---- metadata, storage, requires_grad

    def metadata_mutations(self, required: tuple[int, ...]) -> tuple[tuple[int, Change], ...]:
        """Changes of metadata and storage, in order, each with the argument. (Those of a leaf that begins to
        require grad have no history: they are repeated without grad mode, which allows them before and
        after.)"""
        found: list[tuple[int, Change]] = []
        left = {i: iter(self.recorder.journal.changes_of(fake)) for i, fake in enumerate(self.fakes)}
        for fake in self.recorder.journal.mutations:
            i = self.world.index_of.get(id(fake))
            if i is None:
                continue
            change = self._metadata_mutation(i, next(left[i]))
            without = i in required or self.world.index_of.get(id(root_of(fake))) in required
            if without and change.mode is CreationMode.GRAD:
                change = replace(change, mode=CreationMode.NO_GRAD)
            found.append((i, change))
        return tuple(found)

    def _metadata_mutation(self, i: int, event: Change | StorageRebind) -> Change:
        if not isinstance(event, StorageRebind):
            return event
        if event.state.has_room and event.state is self.recorder.state(self.fakes[i]):
            raise errors.StorageMutation(
                f"tensor {i} was put onto the memory of a result that is larger than it, as the kernel "
                f"leaves room behind it; clone that first"
            )
        root = root_of(self.fakes[i])
        written = any(name == id(root) for _, name in self.recorder.state(root).writes)
        if root is not self.fakes[i] and written and self.changed_history(i):
            raise errors.StorageMutation(
                f"tensor {i} is a view that was put onto another storage, and a view of its base was written "
                f"in grad mode; put it there outside"
            )
        return self.world.rebound(event, event.where)

    def requires_grad_changes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The leaves that begin to require grad in the function, those that no longer do, and the arguments
        whose history it has cut off.

        Raises:
            AutogradStateMutation: one was detached first, so that it has two places in the graph.
        """
        entry = self.forward.entry
        required, released, detached = [], [], []
        for i, fake in enumerate(self.fakes):
            if not is_current(fake):
                continue
            if not entry.leaves[i] and not fake._is_view() and self._is_cut_off(i):
                if id(fake) in entry.states[i].written_in_grad_mode and self._is_shown(fake):
                    raise errors.AutogradStateMutation(
                        f"tensor {i} was written to in grad mode and then detached in place, and another "
                        f"argument is a view of it; use detach()"
                    )
                detached.append(i)
            if entry.requires_grad[i] and entry.leaves[i] and not fake.is_leaf and not fake._is_view():
                released.append(i)  # and then it was written to
            begins = autograd_state.can_accumulate_grad(fake) and entry.edges[i] is None
            if not fake.is_leaf or (fake._is_view() and root_of(fake).requires_grad and not begins):
                continue  # (Such a view, taken before its base required grad, says that it requires grad.)
            if fake.requires_grad and not entry.leaves[i]:
                raise errors.AutogradStateMutation(
                    f"tensor {i} was detached in place and then made to require grad; do it outside"
                )
            in_place = any(
                event.mode is CreationMode.GRAD and not (isinstance(event, StorageRebind) and event.assigned)
                for event in self.recorder.journal.changes_of(fake)
            )
            if fake.requires_grad and entry.requires_grad[i] and in_place:
                raise errors.AutogradStateMutation(
                    f"tensor {i}, a leaf that requires grad, did not for a while and was changed then; do it "
                    f"under torch.no_grad()"
                )
            if begins:
                required.append(i)
            if entry.requires_grad[i] and not fake.requires_grad and entry.leaves[i]:
                released.append(i)
        return tuple(required), tuple(released), tuple(detached)

    def _is_shown(self, root: Tensor) -> bool:
        """Whether another argument is a view of `root`."""
        return any(fake is not root and root_of(fake) is root for fake in self.fakes)

    def _is_cut_off(self, i: int) -> bool:
        """Whether no gradient goes from the argument as it is now to what it was computed from."""
        edge = self.forward.entry.edges[i]
        return edge is not None and not _input_leads_to(self.fakes[i], edge)

    def views_pinned_to_entry(self, parted: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Views that lead to where the argument was that they are views of, one of `parted`, which do not
        require grad any more or were detached; and that one. (Of a view whose version counter has moved since
        it was last looked at autograd derives the history when it is looked at, from what its base is then.)
        """
        entry = self.forward.entry
        found = []
        for i, fake in enumerate(self.fakes):
            owner = self.world.index_of.get(id(root_of(fake)))
            if owner in parted and owner != i and version_of(fake) != entry.versions[i] and is_current(fake):
                edge = entry.edges[owner]
                if edge is not None and _input_leads_to(fake, edge):
                    found.append((i, owner))
        return tuple(found)

    # ---- data

    def input_writes(self) -> tuple[Write, ...]:
        """Copies that together cover all that was written, and carry all history that began or moved."""
        early: list[Write] = []
        late: list[Write] = []
        written: set[int] = set()
        histories = self._roots_with_changed_history()
        for state in {**self.world.inputs_entered_on, **self.world.inputs_now_on}:
            regions = []
            for root, member in histories.get(state, ()):
                region = self._written_region(state, root, member)
                if region is not None:
                    write = self._write_with_history(state, root, member, region)
                    (early if write.early else late).append(write)
                    regions.append(region)
            entered = self.world.inputs_entered_on.get(state, [])
            if (state.writes or regions) and entered:
                written.update(entered)
            if not entered or not state.writes:
                continue  # (A storage that the function made holds what the graph returns.)
            places: dict[int, None] = {}
            exact = {self.forward.entry.before[m]: m for m in reversed(entered)}
            tracked = IntervalIndex(regions)
            shown = IntervalIndex(self.forward.entry.before[m] for m in entered)
            for (where, _), target in state.writes.items():
                if any(covers(regions[k], where) for k in tracked.around(where)):
                    continue
                chosen = exact.get(where)
                if chosen is None or not self.world.count_together(self.fakes[chosen], target):
                    candidates = [entered[k] for k in shown.around(where)]
                    chosen = self._input_covering(candidates, where, target)
                if chosen is None:
                    late.append(self._write_beyond_inputs(state, where, target))
                else:
                    places[chosen] = None
            early += [self._untracked(state, m, self.forward.entry.before[m], True) for m in places]
        self.written = frozenset(written)
        return (*early, *late)

    def _roots_with_changed_history(self) -> dict[Storage, list[tuple[Tensor, int]]]:
        """The roots whose place in the autograd graph moved, each with one argument on it."""
        found: dict[Storage, dict[int, tuple[Tensor, int]]] = {}
        for i, fake in enumerate(self.fakes):
            root = root_of(fake)
            if self.changed_history(i):
                on = found.setdefault(self._written_state(root), {})
                if id(root) not in on or root is fake:
                    on[id(root)] = (root, i)
        return {state: list(roots.values()) for state, roots in found.items()}

    def changed_history(self, i: int) -> bool:
        """Whether the argument's place in the autograd graph moved: an in-place operation in grad mode on
        it, its base or another view of its base."""
        root = root_of(self.fakes[i])
        if root.grad_fn is None:
            return False
        if id(root) in self.world.index_of:
            edge = self.forward.entry.edges[self.world.index_of[id(root)]]
        else:
            edge = self._base_edges.get(id(root))
        return edge is None or root.grad_fn is not edge.node or root.output_nr != edge.output_nr

    def _written_region(self, state: Storage, root: Tensor, member: int) -> Geometry | None:
        """What a tracked write to `root` has to cover; None where the changes that are repeated move the
        history by themselves."""
        wheres = self._mutated_geometries(state).get(id(root), [])
        if not wheres:
            repeated = id(root) in self._repeated and id(root) not in state.roots_with_rebound_views
            return None if repeated else geometry(self.fakes[member])
        if not self._is_write_before_other_mutations(root):
            return geometry(root)
        if self._is_write_to_left_storage(root):
            return self._entry_of(root)
        unnoticed = [unseen_by_autograd(event) for event in self.recorder.journal.changes_of(root)]
        if any(unnoticed):
            # Autograd counts elements where they lay before, and cannot be asked for a view of these now.
            before = self._entry_of(root)
            fits = root.shape == before.size or not all(unnoticed)
            if fits and all(covers(before, w) for w in wheres):
                return before
        members = self._families.get((state, id(root)), [])
        candidates = [*wheres, *(self.forward.entry.before[i] for i in members)]
        fitting = [
            c for c in candidates if not c.overlaps_itself_somehow and all(covers(c, w) for w in wheres)
        ]
        if fitting:
            return min(fitting, key=lambda c: (not same_interpretation(c, geometry(root)), math.prod(c.size)))
        where = geometry(root)
        start = min(w.bytes[0] for w in wheres) // where.dtype.itemsize
        stop = -(-max(w.bytes[1] for w in wheres) // where.dtype.itemsize)
        return Geometry((stop - start,), (1,), start, where.dtype, where.conj, where.neg)

    def _entry_of(self, root: Tensor) -> Geometry:
        """How a root lay when the function began."""
        index = self.world.index_of.get(id(root))
        return geometry(root) if index is None else self.forward.entry.before[index]

    def _mutated_geometries(self, state: Storage) -> dict[int, list[Geometry]]:
        """What was written of the storage, or reshaped, by the identity of the root."""
        if state not in self._wheres:
            found: dict[int, list[Geometry]] = {}
            for where, name in state.writes:
                found.setdefault(name, []).append(where)
            # A change of metadata of a view is an in-place operation on its base for autograd.
            for view in state.reshaped:
                if id(view) not in self.world.index_of:
                    found.setdefault(id(root_of(view)), []).append(geometry(view))
            self._wheres[state] = found
        return self._wheres[state]

    def _is_write_before_other_mutations(self, root: Tensor) -> bool:
        """Whether a write that carries history comes before what else is changed about the root, at the
        places that it showed when the function began."""
        changes = self.recorder.journal.changes_of(root)
        index = self.world.index_of.get(id(root))
        entry = None if index is None else self.forward.entry.states[index]
        if any(isinstance(event, StorageRebind) and event.state is not entry for event in changes):
            return self._is_write_to_left_storage(root)
        unnoticed = [unseen_by_autograd(event) for event in changes]
        if not any(unnoticed):
            # Autograd takes note of the changes, whichever came first; the root is what the last one made.
            return not changes or self._ends_in_metadata_mutation(root)
        if not self._ends_in_metadata_mutation(root):
            return False  # the history counts the elements of what it is now
        before = self._mutated_before_writes(root, unnoticed)
        if not any(b and u for b, u in zip(before, unnoticed, strict=True)):
            return True
        if all(before):
            return False
        raise errors.AutogradStateMutation(
            f"the metadata of tensor {self.world.index_of[id(root)]} was changed under torch.no_grad() "
            f"before and after it was written to in grad mode; change it outside"
        )

    def _mutated_before_writes(self, root: Tensor, unnoticed: list[bool]) -> list[bool]:
        """Of each change of a root's metadata, whether nothing was written to it in grad mode before: its
        history is the one that it came with, or what changes that autograd notices have made of that."""
        edge = self.forward.entry.edges[self.world.index_of[id(root)]]
        expected, turned = None if edge is None else edge.node, False
        before: list[bool] = []
        for node, silent in zip(self.recorder.journal.histories_of(root), unnoticed, strict=True):
            below = () if node is None or expected is None else node.next_functions[:1]
            step = turned and any(one is expected for one, _ in below)
            before.append(before[-1:] != [False] and (node is expected or step))
            expected, turned = node, not silent
        return before

    def _ends_in_metadata_mutation(self, root: Tensor) -> bool:
        """Whether a root was written to in grad mode last before its metadata was changed last."""
        last = self.recorder.journal.histories_of(root)[-1]
        node = root.grad_fn
        if node is None or node is last:
            return True
        noticed = not unseen_by_autograd(self.recorder.journal.changes_of(root)[-1])
        return noticed and any(below is last for below, _ in node.next_functions)

    def _is_write_to_left_storage(self, root: Tensor) -> bool:
        """Whether all writes to a root that carry history went to the storage that it lay in when the
        function began, and it was put elsewhere since."""
        index = self.world.index_of.get(id(root))
        if index is None:
            return False
        entry, now = self.forward.entry.states[index], self.recorder.state(root)
        if entry is now or id(root) not in entry.written_in_grad_mode:
            return False
        if id(root) in now.written_in_grad_mode or root.shape != self.forward.entry.before[index].size:
            raise errors.StorageMutation(
                f"tensor {index} was written to in grad mode and then put onto another storage, where it was "
                f"written to again or has another shape; put it there outside"
            )
        return True

    def _written_state(self, root: Tensor) -> Storage:
        """The storage that a root lay in when it was written to in grad mode."""
        if self._is_write_to_left_storage(root):
            return self.forward.entry.states[self.world.index_of[id(root)]]
        return self.recorder.state(root)

    def _write_with_history(self, state: Storage, root: Tensor, member: int, region: Geometry) -> Write:
        early = self._is_write_before_other_mutations(root)
        base = id(root) not in self.world.index_of
        tensor = member if base else self.world.index_of[id(root)]
        there = self._entry_of(root) if early else geometry(root)
        through = None if region == there else region
        fake = root
        changes = self.recorder.journal.changes_of(root)
        unnoticed = [unseen_by_autograd(event) for event in changes]
        fits = root.shape == there.size or not all(unnoticed)
        if any(unnoticed) and early and fits:
            with self.recorder, torch.enable_grad():
                fake = before_metadata_mutations(root, there.size, changes)
        elif changes and all(unnoticed) and early and self.recorder.state(root) is state:
            # The history is that of a tensor that lies as the root did, not as it does since.
            with plain_fakes.geometry_replaced(root, *there[:3]), torch.enable_grad():
                fake = views.as_strided_view(root, there)
        elif there != geometry(root):
            self.recorder.follow_growth(root)
            with self.recorder, torch.enable_grad():
                fake = views.as_strided_view(root, there)
        value = self.world.value(state.read(region), region, fake)
        other = not same_interpretation(there, region)
        return Write(tensor, value, True, True, early, through, base, reinterpreted=other)

    def _untracked(self, state: Storage, member: int, where: Geometry, early: bool) -> Write:
        through = None
        if where.overlaps_itself:
            where = through = where.once
        value = self.world.value(state.read(where), where, None)
        counted = state.inference or self._counted(state, member)
        return Write(member, value, False, counted, early, through, inference=state.inference)

    def _write_beyond_inputs(self, state: Storage, where: Geometry, target: Tensor) -> Write:
        """A write to elements that no argument showed when the function began."""
        entered = self.world.inputs_entered_on[state]
        together = [i for i in entered if self.world.count_together(self.fakes[i], target)]
        member = together[0] if together else entered[0]
        where = where.once
        value = self.world.value(state.read(where), where, None)
        other = not same_interpretation(where, self.forward.entry.before[member])
        counted = state.inference or (bool(together) and self._counted(state, member))
        return Write(
            member,
            value,
            False,
            counted,
            through=where,
            entry=True,
            reinterpreted=other,
            inference=state.inference,
        )

    def grown(self) -> tuple[tuple[int, int], ...]:
        """Storages that have grown: an argument on each, and how many bytes they have now."""
        return tuple(
            (entered[0], state.grown[-1].nbytes())
            for state, entered in self.world.inputs_entered_on.items()
            if state.grown
        )

    def _input_covering(self, candidates: list[int], where: Geometry, target: Tensor) -> int | None:
        """An argument that showed the elements `where`: of those, one whose version counter the write moved;
        of those, the smallest."""
        return min(
            (m for m in candidates if covers(self.forward.entry.before[m], where)),
            key=lambda m: (
                not self.world.count_together(self.fakes[m], target),
                math.prod(self.forward.entry.before[m].size),
                m,
            ),
            default=None,
        )

    def _counted(self, state: Storage, member: int) -> bool:
        """Whether a write to the storage moved the member's version counter."""
        if state not in self._moved:
            self._moved[state] = {self.world.counter(target) for target in state.version_bumped}
        return self.world.counter(self.fakes[member]) in self._moved[state]

    # ---- version counters

    def silent_version_bumps(self, writes: tuple[Write, ...], moving: set[int]) -> tuple[int, ...]:
        """Arguments whose version counter moved and that nothing else of the epilogue touches; `moving` are
        those that the making of an output touches."""
        late = moving | {w.tensor for w in writes if not w.early and (w.counted or w.tracked)}
        touched = late.union(w.tensor for w in writes if w.early and (w.counted or w.tracked))
        touched.update(i for i, fake in enumerate(self.fakes) if self.recorder.journal.moves(fake))
        silent: dict[int, int] = {}
        counters = {i: self.world.counter(fake) for i, fake in enumerate(self.fakes)}
        last = {
            counters[self.world.index_of[id(fake)]]: id(fake)
            for fake in self.recorder.journal.version_bumps
            if id(fake) in self.world.index_of
        }
        late_counters, touched_counters = ({counters[i] for i in some} for some in (late, touched))
        for i, fake in enumerate(self.fakes):
            if version_of(fake) == self.forward.entry.versions[i]:
                continue
            others = touched_counters
            if self.recorder.journal.moves(fake):
                # Of a view that was reshaped and whose base was written afterwards, autograd derives the
                # history anew.
                if not fake._is_view() or not self.recorder.journal.moved_since(fake):
                    continue
                if last[counters[i]] != id(fake):
                    continue  # as it is when the changes are repeated: another one's came after its own
                others = late_counters
            if counters[i] not in others:
                silent.setdefault(counters[i], i)
        return tuple(silent.values())

    def several_counters(self) -> frozenset[int]:
        """The arguments in storages that are not all counted together."""
        found: set[int] = set()
        for members in self.world.inputs_entered_on.values():
            if len({self.world.counter(self.fakes[i]) for i in members}) > 1:
                found.update(members)
        return frozenset(found)


def _input_leads_to(tensor: Tensor, edge: GradientEdge) -> bool:
    """Whether a gradient of the tensor gets to an edge."""
    stack, seen = [(tensor.grad_fn, tensor.output_nr)], set()
    while stack:
        node, number = stack.pop()
        if node is edge.node and number == edge.output_nr:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(node.next_functions)
    return False
