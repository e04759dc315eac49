"""Faults in what is found out about arguments and outputs when the function has run."""

from __future__ import annotations

from functools import partial

from bench.fuzzer.seeded_bugs.seeded_bug import Fault

_fault = partial(Fault, stage="effects")
_DATA = ("input-data", "values", "gradients")

FAULTS = (
    _fault(
        name="a write without history is dropped beside one with",
        module="aot.analysis.input_mutations",
        find="if any(covers(regions[k], where) for k in tracked.around(where)):",
        replace="if regions:",
        clauses=_DATA,
        wrong="What is written past autograd is lost where something on the storage is written with grad.",
    ),
    _fault(
        name="a write goes to an argument that does not show it",
        module="aot.analysis.input_mutations",
        find="(m for m in candidates if covers(self.forward.entry.before[m], where))",
        replace="(m for m in candidates)",
        clauses=_DATA,
        wrong="What is written between the elements of one argument is written back to that one.",
    ),
    _fault(
        name="data are written after changes of metadata",
        module="aot.analysis.input_mutations",
        find="early += [self._untracked(state, m, self.forward.entry.before[m], True) for m in places]",
        replace="late += [self._untracked(state, m, self.forward.entry.before[m], False) for m in places]",
        clauses=_DATA,
        wrong="An argument that is written to and transposed gets its elements at other places.",
    ),
    _fault(
        name="a write with history always comes first",
        module="aot.analysis.input_mutations",
        find="return Write(tensor, value, True, True, early, through, base, reinterpreted=other)",
        replace="return Write(tensor, value, True, True, True, through, base, reinterpreted=other)",
        clauses=_DATA,
        wrong="What is written after `t_` under no_grad is written before it.",
    ),
    _fault(
        name="what nothing shows is not written back",
        module="aot.analysis.input_mutations",
        find="late.append(self._write_beyond_inputs(state, where, target))",
        replace="pass",
        clauses=("input-data", "values", "aliasing"),
        wrong="Elements of a storage that a function reaches by `as_strided` keep their old numbers.",
    ),
    _fault(
        name="changes under no_grad count as noticed",
        module="aot.analysis.histories",
        find=(
            "return isinstance(event, StorageRebind) or event.mode is not CreationMode.GRAD or "
            "event.op in _RESIZES"
        ),
        replace="return isinstance(event, StorageRebind) or event.op in _RESIZES",
        clauses=("gradients", "errors"),
        wrong="`t_` under no_grad moves the gradient of what was written before.",
    ),
    _fault(
        name="noticed changes are undone in the wrong order",
        module="aot.analysis.histories",
        find="for event, before in reversed(undo):",
        replace="for event, before in undo:",
        clauses=("gradients", "errors"),
        wrong="The history of a tensor that is reshaped twice belongs to other elements.",
    ),
    _fault(
        name="what is written is not known to be",
        module="aot.analysis",
        find="written=arguments.written,",
        replace="written=frozenset(),",
        clauses=("gradients", "errors"),
        wrong="An argument that the backward reads is saved as it is, and then overwritten.",
    ),
    _fault(
        name="counters that count apart are taken for one",
        module="aot.analysis",
        find="several_counters=arguments.several_counters(),",
        replace="several_counters=frozenset(),",
        clauses=("versions", "errors", "gradients"),
        wrong="A write to `x.data` makes the backward of `x` raise, or one that is to raise does not.",
    ),
    _fault(
        name="the edges of detached arguments are taken late",
        module="aot.runtime.codegen.wrapper",
        find="        moving |= {plan.storages[i] for i in (*plan.end_requires_grad, *plan.detached)}\n",
        replace="",
        clauses=("gradients", "autograd-metadata"),
        wrong="A result leads nowhere where an argument was, as that has been detached in place by then.",
    ),
    _fault(
        name="retain_grad is lost",
        module="aot.analysis",
        find="_retaining([forward.wrapped.get(i, v) for i, v in enumerate(forward.outputs)])",
        replace="()",
        clauses=("autograd-metadata", "gradients"),
        wrong="A result on which the function has called `retain_grad` gets no `.grad`.",
    ),
    _fault(
        name="old views are taken anew",
        module="aot.analysis.view_facts",
        find="return self.moved and self.root.requires_grad\n",
        replace="return False\n",
        clauses=("gradients", "autograd-metadata", "strides"),
        wrong="A view that was taken before a write has the history of one that was taken after it.",
    ),
    _fault(
        name="hidden parts are taken to be shown",
        module="aot.tensors.geometry",
        find="return bool(torch.isin(elements(inner), elements(outer)).all())",
        replace="return True",
        clauses=_DATA,
        wrong="A tensor with gaps counts as one that shows what lies in its gaps.",
    ),
    _fault(
        name="graphs with a backward write to their inputs",
        module="aot.analysis.in_graph_mutations",
        find="    if any(value.history is not None for value in world.values):\n        return ()\n",
        replace="",
        clauses=("gradients", "errors", "input-data"),
        wrong="The forward overwrites an argument that the backward still reads.",
        target="aot-min-cut",
    ),
    _fault(
        name="graphs write to inputs that change otherwise",
        module="aot.analysis.in_graph_mutations",
        find="        and entry.states[write.tensor] not in elsewhere\n",
        replace="",
        clauses=(*_DATA, "errors"),
        wrong="A graph writes to an argument of which it got a stretch, or that is transposed.",
        target="aot-min-cut",
    ),
    _fault(
        name="graphs write to parts of their inputs",
        module="aot.analysis.in_graph_mutations",
        find="        and write.through is None\n",
        replace="",
        clauses=(*_DATA, "errors"),
        wrong="A graph writes to all of an argument what is meant for a part of it.",
        target="aot-min-cut",
    ),
)
