"""Fuzz entries of the cache on disk: change the structure of real ones, seal them again, and run them.

``python -m tests.support.aot.entry_fuzzer --seconds 3600 --seed 7`` prints a JSON object with the counts, and
exits with 1 if there are findings. A worker process changes one entry at a time. It is sealed with the user's
key, which tests what parses it, and some with another key, which have to be dropped every time. In any case

* nothing happens but what operators do: no file is opened to be written, no process starts, nothing is
  imported, and no Python is compiled that says a word of the dictionary outside of a string (which an audit
  hook sees);
* the compile raises nothing; an entry is a hit, or dropped and counted as such;
* a graph has targets of an independent table alone, and gives what `fx.Interpreter` makes of it;
* who was given something that is dropped gets the result that the right entry gives;
* a call raises what operators raise, and nothing else;
* the worker does not die and does not hang.

An entry that has the right seal and another program in it (``add`` has become ``sub``) is not to be told from
one that the user has written: it is counted (`other`), not found.
"""

from __future__ import annotations

import argparse
import collections
import copy
import io
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterator
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

import aot
from aot.cache import seal
from aot.cache import store as folders
from aot.ops.call_targets import call_by_name, call_with_grad
from aot.ops.classify import call_on_clones
from oracles.observation.ambient import restoring_ambient
from tests.support.aot.cache_entries import content_of
from tests.support.aot.entry_mutator import WORD, Mutator
from tests.support.aot.operator_reads import FOLLOWED

HANG = 120.0  # seconds
MEMORY = 8 << 30  # bytes of address space


def writes_and_views(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x + w
    x.mul_(2)
    x.unsqueeze_(0)
    return x, x.view(-1), y, y[0], (y * w).sum()


def draws(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.rand_like(x) * w, torch.dropout(w * 2, 0.5, True), x.random_(3, 9)


def differentiates(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = (x * w).exp()
    return y.sum(), w.t()[1:], torch.sort(y)[0].cumsum(0)


def calls_custom(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.ops.entry_fuzzer.scaled.default(x * 2, 3.0) + w, w.masked_fill(w > 1, 0.0)


def writes_alone(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x.mul_(w.detach())
    return (x[1],)


@torch.library.custom_op("entry_fuzzer::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


class Case:
    """A front end's graph and a call of it."""

    def __init__(self, name: str, module: fx.GraphModule, *, grad: bool = True, keep: bool = False) -> None:
        self.name = name
        self.module = module
        self.grad = grad
        self.keep = keep

    def arguments(self) -> list[Tensor]:
        torch.manual_seed(0)
        x, w = torch.rand(2, 2) + 1, torch.rand(2, 2) + 1
        return [x, w.requires_grad_() if self.grad else w]

    def compiled(self, compiler: Any) -> Any:
        return aot.aot_module_simplified(
            copy.deepcopy(self.module), self.arguments(), compiler, keep_inference_input_mutations=self.keep
        )

    def outcome(self, function: Callable[..., Any]) -> list[Any]:
        """What a call leaves and returns, and its backward; or what it raises."""
        arguments = self.arguments()
        torch.manual_seed(1)
        try:
            result = function(*arguments)
            leaves = torch.utils._pytree.tree_leaves(result)
            seen: list[Any] = [
                one.detach().clone() if isinstance(one, Tensor) else repr(one) for one in leaves
            ]
            tensors = [one for one in leaves if isinstance(one, Tensor) and one.requires_grad]
            if self.grad and tensors:
                sum(one.sum() for one in tensors).backward()  # type: ignore[union-attr]
            seen += [one.detach().clone() for one in arguments]
            seen += [one.grad.clone() for one in arguments if one.grad is not None]
            return seen
        except Exception as error:
            return [error]


def cases() -> list[Case]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    two = fx.Graph()
    x, w = two.placeholder("x"), two.placeholder("w")
    inner = two.call_module("layers", (x,))
    two.output((two.call_function(torch.mul, (inner, w)), inner))
    root = nn.Module()
    root.layers = layers
    return [
        *(
            Case(f.__name__, fx.symbolic_trace(f))
            for f in (writes_and_views, draws, differentiates, *([calls_custom] if FOLLOWED else []))
        ),
        Case("has_parts", traced_parts()),
        Case("layers", fx.GraphModule(root, two)),
        Case("writes_alone", fx.symbolic_trace(writes_alone), grad=False, keep=True),
        Case("infers", fx.symbolic_trace(writes_and_views), grad=False),
    ]


def traced_parts() -> fx.GraphModule:
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    scale = graph.call_function(torch.full, ((2, 2), 3.0))
    parts = graph.call_method("unbind", (x, 0))
    first = graph.call_function(getitem, (parts, 0))
    second = graph.call_function(getitem, (parts, 1))
    graph.call_method("add_", (first, 1))
    other = graph.call_method("split", (graph.call_function(torch.add, (w, scale)), 1))
    graph.output((second, other, {"size": 3, "kinds": [torch.float64, None, 0.5, "text"]}))
    return fx.GraphModule(nn.Module(), graph)


class Watch:
    """What the process does, as Python's audit hook says it."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.on = False
        self.found: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = args
            writes = (isinstance(mode, str) and any(letter in mode for letter in "wax+")) or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            ours = isinstance(path, str) and (os.path.basename(path) == "events.log" or _is_entry(path))
            if writes and not ours and not isinstance(path, int):  # (whose file has been opened)
                self.found.append(f"opens {path!r:.80} to write")
        elif event == "import" and WORD in str(args[0]):
            self.found.append(f"imports {args[0]}")
        elif event == "compile":
            if _says(args[0]):
                self.found.append(f"compiles {args[0]!r:.300}")
        elif event.partition(".")[0] in (
            "subprocess",
            "socket",
            "shutil",
            "ctypes",
            "pty",
            "ftplib",
            "urllib",
        ) or event in (
            "os.system",
            "os.exec",
            "os.fork",
            "os.forkpty",
            "os.posix_spawn",
            "os.spawn",
            "os.chmod",
        ):
            self.found.append(event)


def _is_entry(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(".aot") or name.startswith(".begun-")


def _says(source: Any) -> bool:
    """Whether source says the word outside of a string."""
    text = source.decode(errors="replace") if isinstance(source, bytes) else source
    if not isinstance(text, str) or WORD not in text:
        return False
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return True
    return any(WORD in token.string and token.type != tokenize.STRING for token in tokens)


def interpreting(module: fx.GraphModule, example_inputs: Any) -> Any:
    return fx.Interpreter(module).run


OURS = (call_by_name, call_with_grad, call_on_clones, getitem)
NEVER = ("from_file", "set_", "_print", "_reshape_alias", "resize", "sparse", "nested", "fbgemm", "quantize")


def wrong_target(node: fx.Node, forward: bool) -> str | None:
    """What of a node no graph may have, by rules of this file's own."""
    if node.op == "call_module" or node.op == "call_method":
        return node.op
    if node.op != "call_function" or node.target in OURS:
        return None
    op: Any = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return str(op)
    name = op._schema.name
    if name == "aten::copy_":
        first: Any = node.args[0]
        return None if forward and first.op == "placeholder" else "copy_"
    if op._schema.is_mutable or name.partition("::")[2].startswith(NEVER):
        return name
    return None if name.split("::")[0] in ("aten", "prims") or name == "entry_fuzzer::scaled" else name


def is_undefined(compiled: Any) -> bool:
    """Whether a graph reads memory that nobody has written, as of `torch.empty`: no two runs are alike."""
    graphs = [
        graph.graph
        for specialization in compiled.compiled.specializations
        for graph in (specialization.forward, *specialization.backwards)
    ]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    called = [one for node in nodes for one in (node.target, *node.args[:1])]
    names = [str(one if isinstance(one, torch._ops.OpOverload) else "") for one in called]
    return any(name.partition(".")[2].startswith(("empty", "new_empty")) for name in names)


RAISED = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, OverflowError, aot.AotError)
NOT_RAISED = (NameError, RecursionError)  # (UnboundLocalError is a NameError.)


def is_operators_own(error: Exception) -> bool:
    """Whether an exception is one that operators raise for arguments that do not fit. (Those of torch that
    are written in Python assert it.)"""
    if isinstance(error, AssertionError):
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        return frame.f_globals.get("__name__", "").startswith(("torch._prims", "torch._refs"))
    return isinstance(error, RAISED) and not isinstance(error, NOT_RAISED)


class Worker:
    """One process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases = cases()
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: list[dict[str, Any]] = []
        self.good: dict[str, tuple[Path, Any, list[Any]]] = {}
        for case in self.cases:
            with aot.config.patch(cache=folder / case.name):
                case.outcome(case.compiled(aot.nop))
                again = case.outcome(case.compiled(aot.nop))
                assert aot.cache.stats().hits >= 1, (case.name, aot.cache.stats())
                (file,) = (folder / case.name).glob("*.aot")
            eager = case.outcome(copy.deepcopy(case.module))
            assert same(again, eager, 1e-5), (case.name, again, eager)
            assert not isinstance(again[0], Exception), (case.name, again)
            self.good[case.name] = (file, content_of(file), again)
        self.watch = Watch(folder)

    def one(self, seed: int) -> None:
        """Change an entry, and run what it answers."""
        rng = random.Random(seed)
        case = rng.choice(self.cases)
        file, good, wanted = self.good[case.name]
        data = copy.deepcopy(good)
        ways = Mutator(rng, data, [one for _, one, _ in self.good.values()]).mutate()
        text = json.dumps(data, separators=(",", ":")).encode()
        if data == good:
            self.counts["unchanged"] += 1
            return
        self.counts["mutations"] += 1
        note = {"seed": seed, "case": case.name, "ways": ways}
        keys = [("sealed", seal.seal_secret())]
        if seed % 8 == 0:  # (All of these are alike to who reads them.)
            keys.append(("strange", b"\0" * 32))
        for name, key in keys:
            problems = self._run(
                case, file, folders._HEAD + seal.seal(key, file.stem, text) + b"\n" + text, name, wanted
            )
            self.findings += [{**note, "seal": name, "problem": one} for one in problems]

    def _run(self, case: Case, file: Path, whole: bytes, name: str, wanted: list[Any]) -> list[str]:
        found: list[str] = []
        results: list[list[Any]] = []
        hits = 0
        for compiler in (aot.nop, interpreting) if name == "sealed" else (aot.nop,):
            file.write_bytes(whole)
            file.chmod(0o600)
            with (
                aot.config.patch(cache=self.folder / case.name),
                warnings.catch_warnings(record=True) as told,
            ):
                warnings.simplefilter("always")
                before = aot.cache.stats()
                self.watch.found, self.watch.on = [], True
                try:
                    compiled = case.compiled(compiler)
                except Exception as error:
                    found.append(f"the compile raises {error!r:.200}")
                    return found
                else:
                    # (What was compiled anew has been put there.)
                    after = aot.cache.stats()
                    hit = after.dropped == before.dropped
                    if after.misses - before.misses != (not hit):
                        found.append("it was looked for under another key")
                    with restoring_ambient():  # an entry may leave another grad mode behind, as functions do
                        results.append(case.outcome(compiled))
                finally:
                    self.watch.on = False
                    found += self.watch.found
            hits += hit
            dropped = any("dropped, and compiled anew" in str(one.message) for one in told)
            if hit == dropped:
                found.append("neither a hit nor dropped, or both")
            if not hit:
                break
            found += self._look(compiled)
            if is_undefined(compiled):
                self.counts["sealed: taken"] += 1
                self.counts["taken: other"] += 1
                return found
        if Path(WORD).exists():
            found.append("a file was written")
            Path(WORD).unlink()
        self.counts[f"{name}: {'taken' if hits else 'dropped'}"] += 1
        found += self._judge(results, wanted, hits, name)
        return found

    def _look(self, compiled: Any) -> Iterator[str]:
        for specialization in compiled.compiled.specializations:
            graphs = (specialization.forward, *specialization.backwards)
            for number, graph in enumerate(graphs):
                for node in graph.graph.nodes:
                    wrong = wrong_target(node, number == 0)
                    if wrong is not None:
                        yield f"a graph has {wrong}"

    def _judge(self, results: list[list[Any]], wanted: list[Any], hits: int, name: str) -> Iterator[str]:
        if name == "strange" and hits:
            yield "an entry with another seal was taken"
        if not hits:
            for result in results:
                if not same(result, wanted, 1e-6):
                    yield f"dropped, and another result: {result!r:.200}"
            return
        first, *others = results
        if not others:
            yield "taken once, and dropped then"
            return
        second = others[0]
        if not same(first, second, 0.0):
            yield f"two ways to run a graph differ: {first!r:.200} {second!r:.200}"
        for result in results:
            error = result[0] if result and isinstance(result[0], Exception) else None
            if error is not None and not is_operators_own(error):
                yield f"the call raises {error!r:.200}"
        raised = bool(first) and isinstance(first[0], Exception)
        kind = (
            f"raised {type(first[0]).__name__}"
            if raised
            else "equal"
            if same(first, wanted, 1e-6)
            else "other"
        )
        self.counts[f"taken: {kind}"] += 1


def same(first: list[Any], second: list[Any], tolerance: float) -> bool:
    if len(first) != len(second):
        return False
    for one, two in zip(first, second, strict=True):
        if isinstance(one, Exception) or isinstance(two, Exception):
            if type(one) is not type(two):
                return False
        elif isinstance(one, Tensor) and isinstance(two, Tensor):
            if one.shape != two.shape or one.dtype != two.dtype:
                return False
            if not torch.allclose(one, two, tolerance, tolerance, equal_nan=True):
                return False
        elif one != two:
            return False
    return True


def work(seed: int, until: float, mutations: int) -> None:
    """What a worker process does: a line for each seed that it begins, and one with the counts at the end."""
    torch.set_num_threads(1)
    # (A graph may ask for any amount of memory: that is to raise, and not to have the process killed.)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        os.environ[seal.VARIABLE] = str(Path(place) / "key")
        worker = Worker(Path(place) / "caches")
        done = 0
        while time.monotonic() < until and done < mutations and not len(worker.findings) > 20:
            print(f"at {seed}", flush=True)
            worker.one(seed)
            seed, done = seed + 1, done + 1
            if done % 50 == 0:
                print(json.dumps({"counts": worker.counts, "findings": worker.findings}), flush=True)
                worker.counts.clear()
                worker.findings.clear()
        print(json.dumps({"counts": worker.counts, "findings": worker.findings}), flush=True)
        os.chdir("/")


def fuzz(seed: int, seconds: float, mutations: int = 1 << 60) -> dict[str, Any]:
    """Run workers, one after the other: who dies, or hangs, is replaced, and what it was at is a finding.

    Returns:
        The counts, and the findings.
    """
    counts: collections.Counter[str] = collections.Counter()
    findings: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    first = seed
    while time.monotonic() < end and seed - first < mutations and len(findings) < 50:
        command = [
            sys.executable,
            "-m",
            "tests.support.aot.entry_fuzzer",
            "--worker",
            str(seed),
            str(end),
            str(mutations - (seed - first)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
        last, code = _follow(command, environment, counts, findings)
        if code == 0:
            break
        reason = "hangs" if code is None else f"dies with {code}"
        counts["deaths"] += 1
        findings.append({"seed": last, "problem": f"the worker {reason}"})
        seed = (seed if last is None else last) + 1
    return {"counts": dict(sorted(counts.items())), "findings": findings}


def _follow(
    command: list[str], environment: dict[str, str], counts: collections.Counter[str], findings: list[Any]
) -> tuple[int | None, int | None]:
    """Run a worker to its end; the seed that it was at, and its exit status, None where it hung."""
    last: int | None = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        descriptor, rest = process.stdout.fileno(), b""
        while True:
            ready, _, _ = select.select([descriptor], [], [], HANG)
            if not ready:
                process.kill()
                return last, None
            part = os.read(descriptor, 1 << 16)
            if not part:
                return last, process.wait()
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"at "):
                    last = int(line[3:])
                elif line.startswith(b"{"):
                    told = json.loads(line)
                    counts.update(told["counts"])
                    findings += told["findings"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutations", type=int, default=1 << 60)
    parser.add_argument("--worker", nargs=3)
    options = parser.parse_args()
    if options.worker:
        seed, until, mutations = options.worker
        work(int(seed), float(until), int(mutations))
        return 0
    found = fuzz(options.seed, options.seconds, options.mutations)
    print(json.dumps(found, indent=1))
    return bool(found["findings"])


if __name__ == "__main__":
    sys.exit(main())
