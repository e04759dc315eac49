"""Faults in the recording of the backward: its cuts, where gradients go, what of the caller's it keeps."""

from __future__ import annotations

from functools import partial

from bench.fuzzer.seeded_bugs.seeded_bug import Fault

_fault = partial(Fault, stage="backward")
_GRADIENTS = ("gradients",)
_NOTICED = ("errors", "versions", "gradients")

FAULTS = (
    _fault(
        name="a base's gradient goes to its view",
        module="aot.joint.boundary",
        find="ends.setdefault(key_of(edge), ArgumentEdge(view, True))",
        replace="ends.setdefault(key_of(edge), ArgumentEdge(view, False))",
        clauses=(*_GRADIENTS, "errors"),
        wrong="The gradient of a base that is no argument comes to the view that is.",
    ),
    _fault(
        name="of several gradients one counts",
        module="aot.capture.autograd.engine",
        find="found[target] = gradient if known is None else known + gradient",
        replace="found[target] = gradient",
        clauses=(*_GRADIENTS, "double-backward"),
        wrong="An argument that is read twice gets the gradient of one reading.",
    ),
    _fault(
        name="a gradient that has left goes on",
        module="aot.capture.autograd.engine",
        find="                passed[i] = None\n",
        replace="",
        clauses=_GRADIENTS,
        wrong="What leaves a segment counts there, and where it would have gone without the cut.",
    ),
    _fault(
        name="a gradient depends on one of its tangents",
        module="aot.capture.autograd.engine",
        find="recorded.reach[sink] = recorded.reach.get(sink, 0) | segment.reach[node]",
        replace="recorded.reach[sink] = segment.reach[node]",
        clauses=_GRADIENTS,
        wrong="A backward from some of the results gives None in place of a gradient.",
    ),
    _fault(
        name="zeros in place of None",
        module="aot.partition.segment_split",
        find="            elif gradients and len(lacking) == len(gradients):\n"
        "                copies[node] = None\n",
        replace="            elif gradients and len(lacking) == len(gradients):\n"
        "                copies[node] = _zeros(graph, node)\n",
        clauses=_GRADIENTS,
        wrong="An argument that some results do not depend on gets a gradient from them.",
    ),
    _fault(
        name="reach is not handed on",
        module="aot.capture.autograd.segments",
        find="segment.reach[edge[0]] |= segment.reach[node]",
        replace="segment.reach[edge[0]] = segment.reach[node]",
        clauses=_GRADIENTS,
        wrong="Of two results that depend on a value, a backward from the one gives None.",
    ),
    _fault(
        name="the backward is not cut",
        module="aot.capture.autograd.segments",
        find="numbers.setdefault(0 if whole else masks[item], len(numbers))",
        replace="numbers.setdefault(0, len(numbers))",
        clauses=("errors", *_GRADIENTS),
        wrong="A backward from one result frees and checks what only another one needs.",
    ),
    _fault(
        name="what eager raises in backward is forgotten",
        module="aot.joint.trace_backward",
        find="(type(failure.error), str(failure.error)), failure.strides)",
        replace=")",
        clauses=("errors",),
        wrong="A function that writes to what its own backward needs gives None as a gradient.",
    ),
    _fault(
        name="nothing is freed",
        module="aot.joint.trace_backward",
        find=(
            "frees, idle = frees_saved_tensors(recorder, graph, engine, len(segments), (*arguments, *roots))"
        ),
        replace="frees = idle = False",
        clauses=("errors",),
        wrong="A second backward, which raises in eager, works.",
    ),
    _fault(
        name="second derivatives stop at arguments beside",
        module="aot.runtime.codegen.wrapper",
        find=(
            "edges += [\n"
            "            self._write_edge_tensor(target, self._write_gradient_target(target))\n"
            "            for target in segment.second_order_targets\n"
            "        ]"
        ),
        replace='edges += [f"{self._write_edge_tensor(t, self._write_gradient_target(t))}'
        '.detach().requires_grad_()" '
        "for t in segment.second_order_targets]",
        clauses=("double-backward", "errors"),
        wrong="What an in-place operation on a view reads gets no second derivative.",
    ),
    _fault(
        name="kept arguments are not watched",
        module="aot.joint.saved_tensors",
        find="if mine:",
        replace="if mine and argument is None:",
        clauses=_NOTICED,
        wrong="A write to an argument between forward and backward goes unnoticed.",
    ),
    _fault(
        name="kept results are not watched",
        module="aot.joint.saved_tensors",
        find="if mine:",
        replace="if mine and root is None:",
        clauses=_NOTICED,
        wrong="A write to a result between forward and backward goes unnoticed.",
    ),
    _fault(
        name="what is kept past the counter is watched",
        module="aot.joint.saved_tensors",
        find="return SavedInput(argument, root, 0, counted=False)",
        replace="return SavedInput(argument, root, 0, counted=argument is not None)",
        clauses=_NOTICED,
        wrong="A write to an argument of which eager keeps `.data` makes the backward raise.",
    ),
    _fault(
        name="what a written view's node keeps is not asked",
        module="aot.joint.saved_tensors",
        find="in _saved_tensors_by_trial(self._recorder, node, unknown, wrapped):",
        replace="in ():",
        clauses=_NOTICED,
        wrong="A write to what an in-place operation on a view has read goes unnoticed.",
    ),
    _fault(
        name="segments keep none of their results",
        module="aot.joint.saved_tensors",
        find="found.append(frozenset(seen.intersection([*segment.cotangent_inputs, *graph.rebuilt_edges])))",
        replace="found.append(frozenset())",
        clauses=("double-backward", "errors", "gradients"),
        wrong="A second derivative does not go through a result that the backward is computed from.",
    ),
    _fault(
        name="tangents are laid out over themselves",
        module="aot.capture.autograd.engine",
        find='where = where._replace(stride=torch.empty(like.shape, device="meta").stride())',
        replace="pass",
        clauses=("gradients", "errors"),
        wrong="The gradient of an expanded result has one number for all elements.",
    ),
    _fault(
        name="gradients that are one tensor are one gradient",
        module="aot.joint.retrace",
        find="return result.view_as(result)",
        replace="return result",
        clauses=("double-backward",),
        wrong="Of the second derivatives of gradients that are one tensor, or a tangent, some are lost.",
    ),
    _fault(
        name="values of one operation are one value",
        module="aot.joint.retrace",
        find="key = (node.target, repr(arguments))",
        replace="key = (node.target, len(node.args))",
        clauses=("double-backward", "errors"),
        wrong="A second derivative is computed from another result of the same operation.",
    ),
    _fault(
        name="a second backward needs no tangent's history",
        module="aot.joint.retrace",
        find="key_of(autograd_state.gradient_edge(fake)) for fake in cotangents",
        replace="",
        clauses=("double-backward", "errors"),
        wrong="The second derivatives of tangents go to the targets that come after these.",
    ),
    _fault(
        name="written arguments have no history of their own",
        module="aot.joint.boundary",
        find="add(fake, WrittenEdge(i), None, written.get(id(root_of(fake)), []))",
        replace="add(fake, None, None, [])",
        clauses=_GRADIENTS,
        wrong="A backward from a written argument finds no way to what was written.",
    ),
)
