"""What is known of an output that is a view: the questions that the rules for such outputs ask.

A view was taken at some moment of the run. Most questions are about time: what has changed since, of the
view, of the tensor it was taken from, and of the root that both hang on.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from functools import cached_property

from torch import Tensor

from aot import errors
from aot.analysis.context import AnalysisContext, is_current, made_a_leaf
from aot.analysis.effect_summary import Rebound
from aot.analysis.histories import history_leads_to, is_of_stale, made_by_function, regenerated_view
from aot.capture.memory.metadata_log import StorageRebind
from aot.capture.memory.view_ops import CreationMode, ViewOp
from aot.tensors.geometry import Geometry, geometry, same_interpretation
from aot.tensors.version_counters import version_of
from aot.torch_internals import autograd_state


class ViewFacts:
    """One output that is a view.

    Args:
        required: the identities of arguments that the function lets require grad.

    Attributes:
        value, root: the output, and the root that it is a view of.
        origin: how it came to lie as it does; None where nothing has told.
        start: what the steps start from: an argument that they pass through, else the root.
        steps: the operations that lead from there to the output; none where they do not lead there.
        reshapes, version, place: how often the start had been reshaped by then, its version counter and its
            geometry then.
        state: the storage that the output was made on.
        rebound: where it was put after it was made.
    """

    def __init__(self, world: AnalysisContext, value: Tensor, root: Tensor, required: Set[int]) -> None:
        self.world = world
        self.value = value
        self.root = root
        self._required = required
        self._journal = world.recorder.journal
        self.origin = world.view_origin(value)
        self.start, self.steps, self.reshapes, self.version, self.place = self._find_steps()
        self.state = world.recorder.state(value) if self.origin is None else self.origin.state
        self.rebound = self._find_rebind()

    def _find_steps(self) -> tuple[Tensor, tuple[ViewOp, ...], int, int, Geometry]:
        value, root = self.value, self.root
        steps: list[ViewOp] = []
        origin, view = self.origin, value
        while origin is not None:
            parent = origin.parent
            by_function = view is not parent and made_by_function(view, parent)
            made = value.requires_grad and view is not parent and made_a_leaf(view)
            step = origin.step
            if by_function or made:
                step = replace(step, by_custom_function=by_function, leaf=made)
            steps.insert(0, step)
            if origin.put and value.requires_grad and parent is not root:
                raise errors.StorageMutation(
                    f"an output of shape {tuple(value.shape)} is a view of a view that was put elsewhere "
                    f"(.data = ..., set_), where its history does not tell; do it under torch.no_grad"
                )
            if parent is root or id(parent) in self.world.index_of:
                return parent, tuple(steps), origin.reshapes, origin.version, origin.parent_where
            origin, view = origin.before, parent
        return root, (), 0, 0, geometry(root)

    def _find_rebind(self) -> Rebound | None:
        """Where it was put after it was made, by ``set_`` or ``.data =``."""
        value, origin = self.value, self.origin
        state, where = self.world.recorder.state(value), geometry(value)
        if origin is None or (origin.state is state and origin.where == where):
            return None
        known = [e for e in self._journal.changes_of(value) if isinstance(e, StorageRebind)]
        event = known[-1] if known else StorageRebind(state, where, True, CreationMode.GRAD)
        return self.world.rebound(event, where)

    # ---- who is who

    @property
    def index(self) -> int | None:
        """The number of the argument that the steps start from."""
        return self.world.index_of.get(id(self.start))

    @property
    def owner(self) -> int | None:
        """The number of the argument that is the root."""
        return self.world.index_of.get(id(self.root))

    @property
    def of_input(self) -> bool:
        """Whether the root is an argument or the base of one."""
        return id(self.root) in self.world.index_of or id(self.root) in self.world.base_of

    @property
    def starts_at_input(self) -> bool:
        """Whether the steps start from an argument or the base of one."""
        return self.index is not None or id(self.start) in self.world.base_of

    # ---- what has changed since

    @cached_property
    def root_reshaped_since(self) -> int:
        """How often the root was reshaped since; an argument, since the function began."""
        return self._journal.reshaped(self.root) - (0 if self.of_input else self.reshapes)

    @property
    def start_reshaped_since(self) -> bool:
        """Whether the metadata of the start were changed after the view was taken."""
        return self._journal.reshaped(self.start) != self.reshapes

    @cached_property
    def elsewhere(self) -> bool:
        """Whether the start does not lie any more as it did when the view was taken.

        (Nothing else notices that `.data` of a tensor of the function's own was assigned.)
        """
        placed = bool(self.steps) and not self.steps[0].in_place and geometry(self.start) != self.place
        return placed or self.start_reshaped_since

    @cached_property
    def start_on_other_storage(self) -> bool:
        """Whether the start lies on another storage by now."""
        return self.world.recorder.state(self.start) is not self.state

    @property
    def from_first_version(self) -> bool:
        """Whether it was taken from an argument as the call found that."""
        versions = self.world.forward.entry.versions
        return self.index is not None and not self.reshapes and self.version == versions[self.index]

    @cached_property
    def moved(self) -> bool:
        """Whether the version counter moved after autograd last took note of the view."""
        return self.origin is not None and version_of(self.value) != self.origin.version

    @cached_property
    def stale(self) -> bool:
        """Whether autograd derives its history anew when it is asked."""
        return self.moved and self.root.requires_grad

    @cached_property
    def of_stale(self) -> bool:
        """Whether autograd had to derive the history of what it is a view of anew, from how that lies."""
        return self.root.requires_grad and is_of_stale(self.value, self.origin)

    @property
    def derived(self) -> bool:
        """Whether its history, or that of what it is a view of, is derived anew."""
        return self.stale or self.of_stale

    @cached_property
    def regenerated(self) -> tuple[Geometry | None, tuple[ViewOp, ...]]:
        """How autograd comes to it then: see `histories.regenerated_view`."""
        noticed = any(step.in_place and step.mode is CreationMode.GRAD for step in self.steps)
        followed = self.made == "DEFAULT" or self.special is not None
        if not (self.derived and self.steps and followed) or noticed:
            return None, ()
        assert self.origin is not None
        return regenerated_view(self.root, self.origin, self.stale)

    # ---- its place in autograd

    @cached_property
    def made(self) -> autograd_state.CreationMeta:
        """How autograd remembers its making."""
        return autograd_state.creation_meta(self.value)

    @property
    def special(self) -> autograd_state.CreationMeta | None:
        """The same, if a view that is taken later has to be told. (Where it is stale, it has no history.)"""
        return self.made if self.made == "MULTI_OUTPUT_NODE" and not self.stale else None

    @cached_property
    def leaf(self) -> bool:
        """Whether it is a leaf now."""
        return is_current(self.value) and self.value.is_leaf

    @property
    def reinterpreted(self) -> bool:
        """Whether it shows the root as another dtype, or lazily as other numbers."""
        return not same_interpretation(geometry(self.value), geometry(self.root))

    @property
    def forgets(self) -> bool:
        """Whether a write makes autograd forget the history of the root."""
        loses = self.owner in self.world.forward.entry.loses_history_on_write
        return loses and not self._journal.reshaped(self.root)

    @property
    def has_own_history(self) -> bool:
        """Whether it requires grad, and neither is a leaf nor has a root that does."""
        return not self.leaf and self.value.requires_grad and not self.root.requires_grad

    @property
    def start_begins(self) -> bool:
        """Whether it starts from a view that the function lets require grad."""
        return self.start is not self.root and id(self.start) in self._required

    @property
    def root_begins(self) -> bool:
        """Whether the function lets the root require grad."""
        begins = self.root.requires_grad and self.root.is_leaf and not self.of_input
        return id(self.root) in self._required or begins

    @property
    def follows_begin(self) -> bool:
        """Whether the root begins to require grad, and autograd can tell what that makes of the view.

        (Of a view that was taken before a write autograd derives the history now, or cannot tell it.)
        """
        return self.root_begins and not (self.stale and not self.leaf)

    @property
    def parted_by_begin(self) -> bool:
        """Whether it was taken after its root began to require grad, of a view taken before that."""
        return not self.leaf and self.passes(lambda view: view.is_leaf and view is not self.start)

    @property
    def cut_off(self) -> bool:
        """Whether it, or what it is a view of, is cut off from a root that requires grad, as one that was
        taken before that did."""
        if not self.root.requires_grad or id(self.root) in self._required or not self.root_required_grad:
            return False
        return self.passes(lambda view: view.is_leaf and autograd_state.creation_meta(view) == "DEFAULT")

    @property
    def root_required_grad(self) -> bool:
        """Whether the root was one that required grad when the function began."""
        entry = self.world.forward.entry
        if self.owner is not None:
            return entry.requires_grad[self.owner]
        return any(
            base is self.root and edge is not None
            for (base, _), edge in zip(entry.bases, entry.base_edges, strict=True)
        )

    @property
    def before_release(self) -> bool:
        """Whether it was taken from an argument that required grad, and that was released later; and nothing
        else has happened to either."""
        released_later = self.owner is None or (
            not self.world.forward.entry.leaves[self.owner] and history_leads_to(self.value, self.root)
        )
        changed = self.start_reshaped_since or id(self.root) in self.state.written_in_grad_mode
        return not (self.index is None or changed or released_later or not self.root_required_grad)

    @property
    def counts_with_a_followed_view(self) -> bool:
        """Whether an argument that is a view with a history shares its version counter."""
        return any(
            fake.requires_grad and fake._is_view() and self.world.count_together(fake, self.value)
            for fake in self.world.fakes
        )

    def passes(self, is_such: Callable[[Tensor], bool]) -> bool:
        """Whether it, or a view on the way to it from an argument or its base, is such a one."""
        view, origin = self.value, self.origin
        while view is not self.root and id(view) not in self.world.index_of:
            if is_current(view) and is_such(view):
                return True
            if origin is None:
                return False
            view, origin = origin.parent, origin.before
        return False
