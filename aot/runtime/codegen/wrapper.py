"""The wrapper's source: a `Plan` written out as straight-line Python.

What was known when compiling is not tested at the call: there is no loop over metadata, only the statements
that this specialization needs. `generate` returns text; `build` turns it into the callable and the backward
of each segment's `autograd.Function`, which `backward` writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from aot.analysis.effect_summary import (
    AliasRoot,
    ArgumentRoot,
    BaseRoot,
    Change,
    Constant,
    FunctionViewRoot,
    IsRoot,
    Rebound,
    Root,
    SameAsOutput,
    ValueRoot,
    View,
    ViewTime,
    WrapperRoot,
    Write,
    value_of,
    version_bumps_by_outputs,
)
from aot.capture.autograd.edge_targets import ArgumentEdge, CotangentEdge, OutputEdge, Target, WrittenEdge
from aot.capture.memory.metadata_log import MetadataMutation
from aot.capture.memory.view_ops import CreationMode
from aot.runtime.codegen.backward import is_node_asked_by_wrapper, write_backward, write_forward
from aot.runtime.codegen.writer import (
    GradModeTracker,
    SourceWriter,
    alias,
    as_strided,
    attribute,
    storage_view,
    tuple_text,
    write_change,
    write_resident,
    write_storages,
    write_subclass,
    write_view,
)
from aot.runtime.plan import Plan
from aot.runtime.saved_values import OUTSIDE_OF_AUTOGRAD, SaveStrategy
from aot.tensors.jagged_views import JaggedView


def generate(plan: Plan) -> tuple[str, dict[str, Any]]:
    """The wrapper's source and the constants that it names.

    The source defines ``call(t0, t1, ...)``, given one argument per tensor of the call, and, for part k of
    the backward, ``backward{k}(ctx, ...)`` of its autograd.Function.
    """
    writer = SourceWriter()
    writer.methods = not plan.wrapped
    written = {w.value for w in plan.writes if w.tracked and not w.carried}
    for number, part in enumerate(plan.parts):
        write_backward(writer, number, part, plan.runs_python, written, plan.numbers.every)
        writer.line("")
        write_forward(writer, number, part, written, is_node_asked_by_wrapper(part, written, plan))
        writer.line("")
    _WrapperSource(writer, plan).write()
    return "\n".join(writer.lines) + "\n", writer.names


class _WrapperSource:
    """The function that a call runs."""

    def __init__(self, writer: SourceWriter, plan: Plan) -> None:
        self.writer = writer
        self.plan = plan
        self.mode = GradModeTracker(writer, plan.grad, plan.inference)
        self.moved = version_bumps_by_outputs(plan.outputs, plan.roots, plan.storages)
        # A write to a part has the history of the whole, which no value looks like.
        self.written = {w.value for w in plan.writes if w.tracked and (w.through is not None or w.carried)}
        self.recorded = {w.value for w in plan.writes if w.tracked and not w.carried}
        self.carriers = {w.value: w for w in plan.writes if w.carried}
        self.made = {r.history: r for r in plan.roots if isinstance(r, WrapperRoot) and r.history is not None}
        self.entrances = {
            entrance.value: CotangentEdge(number, e)
            for number, part in enumerate(plan.parts)
            for e, entrance in enumerate(part.segment.cotangent_inputs)
            if entrance.value is not None
        }
        # Values that reach the caller as an alias of other memory, not as the graph returned them.
        self.carried = {
            r.history: r
            for r in plan.roots
            if isinstance(r, (AliasRoot, FunctionViewRoot)) and r.history is not None
        }
        self.replaced: set[tuple[int, tuple[str, ...]]] = set()
        self.views: dict[ViewTime, list[tuple[int, View]]] = {}
        for position, output in enumerate(plan.outputs):
            if isinstance(output, View):
                self.views.setdefault(output.taken, []).append((position, output))

    def write(self) -> None:
        writer, plan = self.writer, self.plan
        numbers = (f"i{k}" for k in range(plan.numbers.given))
        writer.line(f"def call({', '.join([*(f't{i}' for i in range(plan.tensors)), *numbers])}):")
        writer.indent += 1
        for line in plan.numbers.lines:
            writer.line(line)
        if plan.numbers.names:
            writer.line(f"numbers = {tuple_text(plan.numbers.names)}")
        inputs = self._write_inputs()
        writer.line("try:")
        writer.indent += 1
        self._forward(inputs)
        for i in self._arguments_left_on_entry_memory():
            writer.line(f"m{i} = t{i}.detach()")
        rebound = [change for root in plan.roots if isinstance(root, WrapperRoot) for change in root.rebound]
        write_storages(writer, [*(change for _, change in plan.changes), *rebound])
        for i, nbytes in plan.grown_storages:  # before a view shows what there is then
            writer.line(f"m{i}.untyped_storage().resize_({writer.literal(nbytes)})")
        for position, output in self.views.get(ViewTime.BEFORE_WRITES, ()):
            self._view(position, output, self._write_root(plan.roots[output.root]))
        for kind, number in plan.order:
            if kind == "segment":
                self._write_segment(number)
            elif kind == "storage":
                self._write_storage_effects(number)
            elif kind == "root":
                root = plan.roots[number]
                if isinstance(root, ArgumentRoot):  # views that are taken from now on are of what it has then
                    self._replace([root.tensor])
                writer.line(f"r{number} = {self._write_root(root)}")
                for change in root.rebound if isinstance(root, WrapperRoot) else ():
                    write_change(writer, self.mode, f"r{number}", change)
                self._write_leaf(number)
            else:
                self._write_output(number)
        self._replace(range(plan.tensors))
        self._write_kept_for_backward()
        self._leave()
        writer.flush()
        if writer.lines[-1].strip() == "try:":  # a front end's graph that does nothing and returns nothing
            writer.line("pass")
        writer.indent -= 1
        writer.line("except BaseException:")
        writer.line(f"    set_grad_enabled({plan.grad})")
        writer.line("    raise")
        hidden = "" if plan.num_user_outputs == len(plan.outputs) else "[:visible]"
        writer.line(f"return [{', '.join(f'o{i}' for i in range(len(plan.outputs)))}]{hidden}")
        writer.indent -= 1

    def _leave(self) -> None:
        """Set the grad mode that the function leaves behind."""
        now = self.plan.grad if self.plan.inference else self.mode.now
        if now != self.plan.grad_after:
            self.writer.line(f"set_grad_enabled({self.plan.grad_after})")

    def _write_inputs(self) -> list[str]:
        names = []
        changed = {i for i, _ in self.plan.changes}
        written = {write.tensor for write in self.plan.kept}
        for k, graph_input in enumerate(self.plan.inputs):
            where = graph_input.span
            name = f"t{graph_input.tensor}"
            source: str | None = None
            if where is not None and where.dtype == graph_input.dtype:
                source = f"physical({name})" if graph_input.lazy else f"{name}.detach()"
                source = as_strided(self.writer, source, where)
            elif where is not None:
                start_and_count = self.writer.literal((where.offset, *where.size))[1:-1]
                source = f"reinterpreted({name}, {where.dtype}, {start_and_count})"
            elif graph_input.lazy:
                source = f"physical({name})"
            elif graph_input.tensor in written:  # compiled graphs need not count their writes
                source = f"{name}.data"
            elif graph_input.tensor in changed:  # as it is before the change, whoever keeps it
                source = f"{name}.detach()"
            if source is not None:
                name = f"p{k}"
                self.writer.line(f"{name} = {source}")
            names.append(name)
        return names

    def _forward(self, inputs: list[str]) -> None:
        """Run the graph, and put aside what is saved before anything is overwritten."""
        if not self.plan.forward_is_empty:
            self._write_graph_run(inputs)
        self._write_put_aside(inputs)

    def _write_graph_run(self, inputs: list[str]) -> None:
        plan = self.plan
        self.mode.set(False)
        generators = {f"rng{i}": self.writer.name("device", d) for i, d in enumerate(plan.generators)}
        if generators:
            self.writer.line("with rng_lock:")
            self.writer.indent += 1
            for name, device in generators.items():
                self.writer.line(f"{name} = get_rng_state({device})")
        results = [*(f"v{i}" for i in plan.returned), *generators, *(f"s{i}" for i in range(plan.saved))]
        results += plan.numbers.computed
        numbers = ", numbers" if plan.numbers.names else ""
        self.writer.line(f"results = run_forward([{', '.join([*inputs, *generators])}]{numbers})")
        self.writer.line(f"if len(results) != {len(results)}:")
        self.writer.line(f"    raise miscounted(results, {len(results)}, 'forward')")
        if results:
            self.writer.line(f"{', '.join(results)}, = results")
            self.writer.line("del results")
        if plan.numbers.computed:
            self.writer.line(f"numbers = {tuple_text(plan.numbers.every)}")
        if generators:
            for name, device in generators.items():
                self.writer.line(f"set_rng_state({device}, {name})")
            self.writer.indent -= 1
        for write in plan.kept:
            if write.counted:
                self.writer.line(f"torch.autograd.graph.increment_version(t{write.tensor})")
        for i in plan.inference_values:
            self.writer.line(f"v{i} = inference_tensor(v{i})")

    def _write_put_aside(self, inputs: list[str]) -> None:
        plan = self.plan
        keep = {
            SaveStrategy.AS_IS: "detached({0})",
            SaveStrategy.COPY: "copied({0}, {1})",
            SaveStrategy.OWN_COUNTER: "{0}.data",
            SaveStrategy.RESIDENT: "None",
            SaveStrategy.LIVE: "None",
        }
        applied = [number for kind, number in plan.order if kind == "segment"]
        for number, part in enumerate(plan.parts):
            later = applied[applied.index(number) + 1 :]
            others = {value for one in later for value in self._own_results(one)}
            saved = []
            for one in part.saved:
                name = f"s{one.index}" if one.primal is None else inputs[one.primal]
                how = keep[one.how]
                if one.how is SaveStrategy.AS_IS and not others.isdisjoint(one.values):
                    # A history that leads to a node which keeps the very tensor would keep itself alive.
                    how = "{0}.detach()"
                saved.append(how.format(name, self.writer.literal(one.offset)))
            self.writer.line(f"b{number} = {tuple_text(saved)}")
        for edge in self._moved_edges():
            self.mode.set(True)
            self.writer.line(f"{_passed(edge)} = passing({_argument(edge)})")

    def _own_results(self, number: int) -> Iterator[int]:
        """The values of the graph that get their history by themselves, not by an alias, from a node."""
        for entrance in self.plan.parts[number].segment.cotangent_inputs:
            value = entrance.value
            if value is None or value in self.carriers or value in self.made or value in self.written:
                continue
            if value not in self.carried and value not in self.plan.input_values:
                yield value

    def _moved_edges(self) -> list[ArgumentEdge]:
        """The arguments' edges that a segment is applied to after the arguments have been written."""
        plan = self.plan
        moving = {plan.storages[w.tensor] for w in plan.writes} | {
            plan.storages[i] for i in plan.version_bumps_only
        }
        moving |= {plan.storages[i] for i, _ in plan.changes}
        moving |= {plan.storages[i] for i in (*plan.end_requires_grad, *plan.detached)}
        first = {position for position, _ in self.views.get(ViewTime.BEFORE_WRITES, ())}
        done = {storage for storage, outputs in self.moved.items() if first.intersection(outputs)}
        self.late = set(done)
        found: dict[ArgumentEdge, None] = {}
        for kind, number in plan.order:
            if kind == "storage" and number in moving:
                done.add(number)
            elif kind == "output":
                done.update(storage for storage, outputs in self.moved.items() if number in outputs)
            elif kind == "segment":
                segment = plan.parts[number].segment
                for target in (*(g.target for g in segment.gradients), *segment.second_order_targets):
                    if (
                        isinstance(target, ArgumentEdge)
                        and plan.storages[target.tensor] in done
                        and target.tensor not in plan.begin_requires_grad
                    ):
                        found[target] = None
        self.passed = set(found)
        return list(found)

    def _write_segment(self, number: int) -> None:
        """Make one node of the caller's autograd graph."""
        writer, segment = self.writer, self.plan.parts[number].segment
        results, names = [], []
        values = {entrance.value for entrance in segment.cotangent_inputs}
        carried = {value: root for value, root in self.carried.items() if value in values}
        views = {value: root for value, root in carried.items() if isinstance(root, FunctionViewRoot)}
        handed = self._write_handed_results(views, values)
        for e, entrance in enumerate(segment.cotangent_inputs):
            if entrance.value in self.carriers:
                results.append(self._write_subclass_carrier(self.carriers[entrance.value]))
            elif entrance.value in self.made:
                self.mode.set(False)
                writer.line(f"v{entrance.value} = {self._wrapper(self.made[entrance.value])}")
                results.append(f"v{entrance.value}")
            elif entrance.value is None or entrance.value in self.written:
                size, dtype = self.writer.literal(entrance.size), self.writer.name("dtype", entrance.dtype)
                results.append(f"nothing({size}, {dtype}, {self.writer.name('device', entrance.device)})")
            else:
                results.append(handed.get(entrance.value) or self._write_node_result(entrance.value))
            names.append(self._write_gradient_target(CotangentEdge(number, e)))
        targets = [self._write_gradient_target(gradient.target) for gradient in segment.gradients]
        self.mode.set(True)
        edges = [
            self._write_edge_tensor(g.target, t) for g, t in zip(segment.gradients, targets, strict=True)
        ]
        edges += [
            self._write_edge_tensor(target, self._write_gradient_target(target))
            for target in segment.second_order_targets
        ]
        given = f"b{number}, {tuple_text(results)}, {tuple_text(edges if segment.results else [])}"
        if is_node_asked_by_wrapper(self.plan.parts[number], self.recorded, self.plan):
            self.writer.line(f"b{number} = [{given}]")
            given = f"b{number}"
        else:
            given = f"({given})"
        # What leads nowhere requires grad all the same.
        arguments = ", ".join(targets) or "nowhere()"
        self.writer.line(f"{', '.join(names)}, = apply{number}({given}, {arguments})")
        if self.plan.numbers.every:
            self.writer.line(f"b{number}[0].numbers = numbers")
        for value, view in views.items():
            self.writer.line(f"set_creation_meta(v{value}, {self.writer.literal(view.made)})")

    def _write_subclass_carrier(self, write: Write) -> str:
        """What is like a wrapper subclass among the arguments, or the base of one, when the call ends."""
        tensor = write.tensor
        every = [change for i, change in self.plan.changes if i == tensor and not write.base]
        changes = [change for change in every if isinstance(change, MetadataMutation) and not change.path]
        if not changes:
            return f"{_root_of(write)}.detach()"
        self.mode.set(False)
        self.writer.line(f"c{tensor} = t{tensor}.detach()")
        for change in changes:
            write_change(self.writer, self.mode, f"c{tensor}", change)
        return f"c{tensor}"

    def _write_handed_results(
        self, views: dict[int, FunctionViewRoot], values: set[int | None]
    ) -> dict[int, str]:
        """Make those results of a node that are views, and those that they are views of; by their values."""
        handed: dict[int, str] = {}
        for value, view in views.items():
            self.mode.set(False)
            own = value_of(self.plan.roots[view.base])
            source = f"r{view.base}"
            if own is not None and own in values:  # not made yet: this node makes it
                if own not in handed:
                    handed[own] = f"f{own}"
                    self.writer.line(f"f{own} = {self._write_node_result(own)}")
                source = handed[own]
            seen = storage_view(self.writer, source, view.where, view.reinterpreted)
            self.writer.line(f"f{value} = {seen}")
            handed[value] = f"f{value}"
        return handed

    def _write_node_result(self, value: int) -> str:
        """A result of a node as it is handed to it."""
        root = self.carried.get(value)
        if isinstance(root, AliasRoot):
            return alias(self.writer, root)
        if value in self.plan.input_values:  # the tensor itself keeps its history
            return f"v{value}.detach()"
        self._detached(value)
        return f"v{value}"

    def _detached(self, value: int) -> None:
        """Have a result of the graph be a tensor of its own: graphs may end in a view, or return one tensor
        twice, which then has a history already. Optional results may be absent."""
        self.writer.line(f"if v{value} is not None and (v{value}._is_view() or v{value}.requires_grad):")
        self.writer.line(f"    v{value} = v{value}.detach()")

    def _write_gradient_target(self, target: Target) -> str:
        """The tensor that a gradient goes to."""
        if isinstance(target, ArgumentEdge):
            late = target in self.passed and self.plan.storages[target.tensor] in self.late
            return _passed(target) if late else _argument(target)
        if isinstance(target, WrittenEdge):
            return f"t{target.tensor}._base" if target.of_base else f"t{target.tensor}"
        if isinstance(target, OutputEdge):
            return f"o{target.output}"
        value = self.plan.parts[target.segment].segment.cotangent_inputs[target.cotangent_input].value
        hidden = value is None or value in self.written
        return f"h{target.segment}_{target.cotangent_input}" if hidden else f"v{value}"

    def _write_edge_tensor(self, target: Target, name: str) -> str:
        """A tensor that has the edge of a target and does not keep its memory, if the edge does not."""
        if isinstance(target, ArgumentEdge) and not target.of_base and target.tensor in self.plan.leaves:
            return name
        is_hidden = isinstance(target, CotangentEdge) and name.startswith("h")
        if is_hidden or (isinstance(target, ArgumentEdge) and name == _passed(target)):
            return name
        return f"passing({name})"

    def _write_storage_effects(self, number: int) -> None:
        """Everything that happens to the arguments on one storage."""
        plan, storages = self.plan, self.plan.storages
        self.late.add(number)
        writes = [w for w in plan.writes if storages[w.tensor] == number]
        changes = [(i, change) for i, change in plan.changes if storages[i] == number]
        required = self._on_storage(number, plan.begin_requires_grad)
        noticed = {i for i, change in changes if change.mode is CreationMode.GRAD or not required}
        lost = [("requires_grad_(False)", i) for i in self._on_storage(number, plan.end_requires_grad)]
        lost += [("detach_()", i) for i in self._on_storage(number, plan.detached)]
        last = {output.required for _, output in self.views.get(ViewTime.BEFORE_RELEASE, ())}
        last.update(owner for _, owner in plan.pinned_views)
        self._write_input_writes(w for w in writes if w.early and not w.tracked)
        self._write_input_changes(change for change in changes if change[0] not in noticed)
        for tensor in required:
            self._write_requires_grad(tensor)
        for name, tensor in lost:
            if tensor not in last:
                self.writer.line(f"t{tensor}.{name}")
        self._write_input_writes(w for w in writes if w.early and w.tracked)
        self._write_views_before_metadata(number)
        self._write_input_changes(change for change in changes if change[0] in noticed)
        self._write_input_writes(w for w in writes if not w.early)
        for tensor in self._on_storage(number, plan.version_bumps_only):
            self.writer.line(f"torch.autograd.graph.increment_version(t{tensor})")
        for name, tensor in lost:
            if tensor in last:
                self._write_requires_no_grad(tensor, name)

    def _on_storage(self, number: int, tensors: Iterable[int]) -> list[int]:
        return [tensor for tensor in tensors if self.plan.storages[tensor] == number]

    def _write_views_before_metadata(self, number: int) -> None:
        for position, output in self.views.get(ViewTime.BEFORE_METADATA, ()):
            root = self.plan.roots[output.root]
            if isinstance(root, ArgumentRoot) and self.plan.storages[root.tensor] == number:
                self._view(position, output, f"t{root.tensor}")

    def _write_input_writes(self, writes: Iterable[Write]) -> None:
        for write in writes:
            self._write_input_write(write)

    def _write_input_changes(self, changes: Iterable[tuple[int, Change]]) -> None:
        for tensor, change in changes:
            write_change(self.writer, self.mode, f"t{tensor}", change)

    def _write_requires_grad(self, tensor: int) -> None:
        """Let an argument require grad, after the views that were taken before."""
        for position, output in self.views.get(ViewTime.BEFORE_REQUIRES_GRAD, ()):
            if output.required == tensor:
                self._view(position, output, self._write_root(self.plan.roots[output.root]))
        self.writer.line(f"t{tensor}.requires_grad_()")

    def _write_requires_no_grad(self, tensor: int, name: str) -> None:
        """Let an argument require no grad any more, of which there are views that lead to where it was."""
        for view, owner in self.plan.pinned_views:
            if owner == tensor:
                self.writer.line(f"t{view}.grad_fn")  # has autograd derive it
        for position, output in self.views.get(ViewTime.BEFORE_RELEASE, ()):
            if output.required == tensor:
                self._view(position, output, self._write_root(self.plan.roots[output.root]))
        self.writer.line(f"t{tensor}.{name}")

    def _write_input_write(self, write: Write) -> None:
        copies = write.tracked and write.through is None and not write.carried
        if self._is_plain(write):
            self.mode.set(False)
            groups = [n for n, group in enumerate(self.plan.foreach_groups) if write.tensor in group]
            if groups and write.value not in self.plan.in_input_memory:  # a GPU writes to all at once
                self.writer.copy(f"t{write.tensor}", f"v{write.value}", groups[0])
            else:
                self.writer.line(f"t{write.tensor}.copy_(v{write.value})")
        elif not copies and not write.carried:
            self.mode.set(False)  # a graph may return a view of its input, which requires grad
            target = _past_autograd(write)
            if write.through is not None:
                target = storage_view(self.writer, target, write.through, write.reinterpreted)
            within = self.mode.within(CreationMode.INFERENCE) if write.inference else ""
            self.writer.line(f"{within}{target}.copy_(v{write.value})")
        if write.tracked:
            self.mode.set(True)
            edge = self.entrances[write.value]
            kept = (
                self.plan.parts[edge.segment].segment.cotangent_inputs[edge.cotangent_input].kept
                and not write.carried
            )
            keeper = f", b{edge.segment}[0], {edge.cotangent_input}" if kept else ""
            root = _root_of(write)
            silently = "" if write.counted else f"with uncounted({root}): "
            self.writer.line(
                f"{silently}written({root}, {self._write_gradient_target(edge)}, {copies}{keeper})"
            )

    def _is_plain(self, write: Write) -> bool:
        """Whether it is a write to all that the argument shows, which autograd counts and has no part in as
        long as grad mode is off."""
        apart = write.tracked or write.carried or write.through is not None or write.base or write.entry
        return write.counted and not apart and not (write.inference or self.plan.inference)

    def _arguments_left_on_entry_memory(self) -> list[int]:
        """The arguments whose memory on entry is needed after they were put elsewhere."""
        plan = self.plan
        memories = [root.memory for root in plan.roots if isinstance(root, AliasRoot)]
        memories += [c.memory for _, c in plan.changes if isinstance(c, Rebound)]
        views = [output for output in plan.outputs if isinstance(output, View)]
        memories += [view.rebound.memory for view in views if view.rebound is not None]
        left = {m.tensor for m in memories if m is not None and m.entry and m.tensor is not None}
        left.update(write.tensor for write in plan.writes if write.entry)
        return sorted(left.union(tensor for tensor, _ in plan.grown_storages))

    def _write_leaf(self, number: int) -> None:
        """Let a root that the function made a leaf require grad, after the views that were taken before."""
        root = self.plan.roots[number]
        if isinstance(root, ValueRoot) and root.requires_grad:
            for position, output in self.views.get(ViewTime.BEFORE_REQUIRES_GRAD, ()):
                if output.root == number:
                    self._view(position, output, f"r{number}")
            self.writer.line(f"r{number}.requires_grad_()")

    def _write_output(self, position: int) -> None:
        output = self.plan.outputs[position]
        self.late.update(storage for storage, outputs in self.moved.items() if position in outputs)
        if isinstance(output, Constant):
            self.writer.line(f"o{position} = {self.writer.literal(output.value)}")
        elif isinstance(output, SameAsOutput):
            self.writer.line(f"o{position} = o{output.output}")
        elif isinstance(output, IsRoot):
            self.writer.line(f"o{position} = r{output.root}")
        elif output.taken is ViewTime.AT_END:
            start = f"r{output.root}" if output.through is None else f"o{output.through}"
            self._view(position, output, start)

    def _view(self, position: int, view: View, source: str) -> None:
        write_view(self.writer, self.mode, f"o{position}", view, source)

    def _write_root(self, root: Root) -> str:
        if isinstance(root, ArgumentRoot):
            return attribute(f"t{root.tensor}", root.path)
        if isinstance(root, BaseRoot):
            return f"t{root.tensor}._base"
        if isinstance(root, ValueRoot):
            if root.value not in self.entrances:
                self._detached(root.value)
            return f"v{root.value}"
        if isinstance(root, WrapperRoot) and root.history is None:
            self.mode.set(root.meta.kind is JaggedView)  # which gets the history of its values
            return self._wrapper(root)
        if isinstance(root, (FunctionViewRoot, WrapperRoot)) or root.history is not None:
            return f"v{root.history}"
        return alias(self.writer, root)

    def _wrapper(self, root: WrapperRoot) -> str:
        return write_subclass(self.writer, root.meta, [f"o{i}" for i in range(len(self.plan.outputs))])

    def _replace(self, tensors: Collection[int]) -> None:
        """Put what the function has put into the places of what wrapper subclasses are made of."""
        for tensor, path, position in self.plan.replaced:
            if tensor not in tensors or (tensor, path) in self.replaced:
                continue
            self.replaced.add((tensor, path))
            self.writer.line(f"{attribute(f't{tensor}', path)} = o{position}")

    def _write_kept_for_backward(self) -> None:
        """What the backward keeps besides what autograd keeps for it, and the caller's `retain_grad`s."""
        plan = self.plan
        for i in plan.views_with_history:
            self.writer.line(f"t{i}.grad_fn")  # derived now: without it, another write would be one to a leaf
        for name in [f"t{i}" for i in plan.retaining] + [f"o{i}" for i in plan.retaining_outputs]:
            self.writer.line(f"{name}.retain_grad()")
        for number, part in enumerate(plan.parts):
            if part.segment.shared:
                shared = [f"{'t' if kind == 'tensor' else 'o'}{i}" for kind, i in part.segment.shared]
                self.writer.line(f"b{number}[0].shared = {tuple_text(shared)}")
            if part.watched:
                names = [f"t{k.tensor}" if k.tensor is not None else f"r{k.root}" for k in part.watched]
                watched = "".join(f"(counter({n}), {n}._version, {n}.shape), " for n in names)
                self.writer.line(f"b{number}[0].watched = ({watched})")
            if part.segment.rebuilt_targets:
                names = [self._write_gradient_target(one) for one in part.segment.rebuilt_targets]
                native = tuple_text([f"(weakly({n}), {n}._version)" for n in names])
                self.writer.line(f"b{number}[0].native = {native}")
            if part.needs_history:
                names = [f"t{k.tensor}" if k.tensor is not None else f"r{k.root}" for k in part.needs_history]
                self.writer.line(f"b{number}[0].attached = {tuple_text([f'weakly({n})' for n in names])}")
            outside = [one for one in part.saved if one.how in OUTSIDE_OF_AUTOGRAD]
            if outside:
                resident = ", ".join(write_resident(self.writer, one) for one in outside)
                self.writer.line(f"b{number}[0].resident = packed([{resident}])")


def _root_of(write: Write) -> str:
    """The argument that is written to, or its base."""
    return f"t{write.tensor}._base" if write.base else f"t{write.tensor}"


def _past_autograd(write: Write) -> str:
    """An alias of what is written to that has no history, and its version counter or one of its own."""
    name = f"m{write.tensor}" if write.entry else _root_of(write)
    counted = write.counted and not write.tracked  # as what gets a history is
    return f"{name}.detach()" if counted else f"{name}.data"


def _argument(edge: ArgumentEdge) -> str:
    return f"t{edge.tensor}._base" if edge.of_base else f"t{edge.tensor}"


def _passed(edge: ArgumentEdge) -> str:
    return f"{'base' if edge.of_base else 'entry'}{edge.tensor}"
