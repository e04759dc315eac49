"""Modules have names that a reader can guess from, and the documentation names what exists."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path

import functorch.compile
import pytest
import torch
import torch._functorch.aot_autograd

ROOT = Path(__file__).parents[2]
PACKAGES = ("aot", "fuzz", "oracles", "bench")
MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)
FOLDERS = sorted({folder for module in MODULES for folder in module.parents if folder != Path(".")})

# What a module or a folder is called says what is in it: a noun, or the verb of its one main function.
PRONOUNS = (
    "all",
    "any",
    "another",
    "each",
    "everything",
    "it",
    "less",
    "more",
    "nobody",
    "none",
    "one",
    "other",
    "others",
    "same",
    "some",
    "such",
    "that",
    "these",
    "this",
    "what",
    "which",
    "who",
    "whole",
)
ADVERBS = (
    "afresh",
    "again",
    "alone",
    "already",
    "also",
    "anew",
    "apart",
    "aside",
    "away",
    "back",
    "elsewhere",
    "here",
    "later",
    "now",
    "once",
    "outside",
    "straight",
    "then",
    "there",
    "together",
    "under",
)
IRREGULAR = (
    "begun",
    "bound",
    "broken",
    "built",
    "done",
    "drawn",
    "felt",
    "found",
    "given",
    "gone",
    "held",
    "kept",
    "known",
    "laid",
    "left",
    "lost",
    "made",
    "met",
    "put",
    "said",
    "seen",
    "sent",
    "set",
    "shown",
    "shut",
    "spent",
    "sold",
    "told",
    "taken",
    "taught",
    "thought",
    "worn",
    "written",
)
# Nouns that look like participles.
NOUNS = (
    "aliasing",
    "indexing",
    "ordering",
    "probing",
    "recording",
    "rounding",
    "scaling",
    "string",
    "testing",
    "timing",
    "tracing",
)


def is_misleading(word: str) -> bool:
    """Whether a word says how or when, instead of what."""
    participle = word.endswith(("ing", "ed")) and word not in ("seed", "speed", "feed", "embed")
    return word not in NOUNS and (participle or word in (*PRONOUNS, *ADVERBS, *IRREGULAR))


def test_a_participle_a_pronoun_and_an_adverb_are_misleading() -> None:
    assert all(map(is_misleading, ("asked", "kept", "laying", "whole", "again", "shown", "under")))
    assert not any(map(is_misleading, ("guard", "indexing", "lower", "plan", "schedule")))


def test_names_are_nouns_or_verbs() -> None:
    """Their last words are: the head of the noun, or the object of the verb."""
    assert [path for path in (*MODULES, *FOLDERS) if is_misleading(path.stem.split("_")[-1])] == []


def test_names_are_none_of_the_standard_library() -> None:
    assert [path for path in (*MODULES, *FOLDERS) if path.stem in sys.stdlib_module_names] == []


@pytest.mark.parametrize("package", ["aot", "fuzz", "oracles"])
def test_the_name_is_none_of_a_public_function(package: str) -> None:
    """Else ``package.name`` is the function or the module, whichever was imported last."""
    module = importlib.import_module(package)
    public = {name for name in module.__all__ if not hasattr(getattr(module, name), "__path__")}
    functions = {name for name in public if callable(getattr(module, name))}
    mine = [path for path in (*MODULES, *FOLDERS) if path.parts[0] == package and len(path.parts) > 1]
    assert [path for path in mine if path.stem in functions] == []


@pytest.mark.parametrize("package", ["aot", "fuzz", "oracles"])
def test_no_two_modules_have_one_name(package: str) -> None:
    named = defaultdict(list)
    for path in MODULES:
        if path.parts[0] == package:
            named[path.stem].append(str(path))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.relative_to(ROOT)
)
# `name`, `package.name`, `package/module.py`, `name()`, `Class.method`
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w./-]*?)(?:\(\))?`(?!`)")


def names_in(text: str) -> list[str]:
    """The names between backticks in a document, outside of blocks of code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return NAME.findall(prose)


# What documents name of other projects, by what it is.
FOREIGN = frozenset(
    (
        "python3",
        # Dask
        *("dask_jobqueue.SLURMCluster", "job_cpu", "dask_kubernetes.operator.KubeCluster"),
        # PyTorch, where it is compared with or quoted
        *("AsyncCollectiveTensor", "RootGuardManager", "GlobalStateGuard", "tools/experimental/torchfuzz"),
        "label_smoothing",
        # PyTorch's AOTAutograd: parameters that are not taken here, and what only some versions of it have
        *("compile_region_name", "compiler_config_extra", "enable_log", "ignore_shape_env"),
        *("static_lifetime_input_nodes", "disable_functionalization", "pre_grad_passes"),
        *("OpaqueMeta", "prepare_aot_config"),
        # PyTorch, of what `torch.compile` does
        *("BackwardState", "MissingOperatorWithoutDecomp"),
    )
)


@cache
def strings() -> str:
    """The texts of all strings, settings and data of this project."""
    return "\n".join(token.string for token in _tokens() if token.type == tokenize.STRING) + "\n".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "tox.ini", "corpus/known.toml")
    )


@cache
def words() -> frozenset[str]:
    """Every word of this project's Python, settings and data: identifiers, and what stands in strings."""
    identifiers = {token.string for token in _tokens() if token.type == tokenize.NAME}
    return frozenset(identifiers | set(re.findall(r"[A-Za-z_]\w*", strings())))


@cache
def _tokens() -> list[tokenize.TokenInfo]:
    """Those of all Python files but this one, whose examples of names exist nowhere."""
    paths = {path for name in (*PACKAGES, "tests", "examples") for path in (ROOT / name).rglob("*.py")}
    found: list[tokenize.TokenInfo] = []
    for path in sorted(paths - {Path(__file__)} | {ROOT / "setup.py"}):
        with path.open("rb") as file:
            found += [token for token in tokenize.tokenize(file.readline) if token.string]
    return found


def exists(name: str) -> bool:
    """Whether a name of a document is that of a file, of a module, or of anything in a program."""
    if name in FOREIGN or _is_in_strings(name):
        return True
    if "/" in name or name.endswith((".py", ".md", ".toml", ".ini", ".json")):
        return _is_path(name)
    if name.startswith(tuple(f"{package}." for package in PACKAGES)):
        return _is_found(name.split("."))
    return all(part in words() or _is_of_torch(part) for part in re.split(r"[.-]", name) if part)


def _is_in_strings(name: str) -> bool:
    """Whether a string has the name as a whole, not as a part of a longer one."""
    text, start = strings(), -1
    while (start := text.find(name, start + 1)) >= 0:
        before, after = text[start - 1 : start], text[start + len(name) : start + len(name) + 1]
        if not (re.match(r"[\w.]", before) or re.match(r"\w", after)):
            return True
    return False


def _is_path(name: str) -> bool:
    """A path from the root or from a package, the last part of one, or one that a program makes, whose words
    are in its code."""
    roots = (ROOT, *(ROOT / package for package in (*PACKAGES, "tests", "docs")))
    if any((root / name).exists() or (root / f"{name}.py").exists() for root in roots):
        return True
    if name in {path.name for path in MODULES}:
        return True
    first, _, rest = name.partition("/")
    if first in {folder.name for folder in FOLDERS} or name.endswith(".py"):
        return False
    return all(part in words() for part in re.findall(r"[A-Za-z_]\w*", f"{first} {rest}"))


def _is_found(parts: list[str]) -> bool:
    """Whether a dotted name leads to a module or to something in one."""
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", ())
            found = getattr(found, part)
        return True
    return False


def _is_of_torch(word: str) -> bool:
    owners = (
        torch,
        torch.Tensor,
        torch.autograd,
        torch.nn,
        torch.ops.aten,
        torch.utils,
        torch.linalg,
        functorch.compile,
        torch._functorch.aot_autograd,  # what docs/reference/compatibility.md compares with
        builtins,
    )
    return any(hasattr(owner, word) for owner in owners)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_documentation_names_exists(document: Path) -> None:
    # (Of a name that has a version of torch behind it others know nothing.)
    text = re.sub(r"`\w+` \(2\.\d+\)", "", document.read_text(encoding="utf-8"))
    missing = {name for name in names_in(text) if not exists(name)}
    assert missing == set()


def test_names_that_do_not_exist_are_seen() -> None:
    assert names_in("`aot.config` and ``x``, `f()`\n```\n`not this`\n```\n") == ["aot.config", "f"]
    assert exists("aot.config") and exists("aot/errors.py") and exists("aot_function")
    assert exists("guard.py") and exists("aot.graphs") and exists("aot_dispatch_subclass")
    nowhere = ("aot.nothing_of_the_kind", "aot/none.py", "none_of_the_kind.py", "nowhere_at_all_x")
    assert not any(map(exists, nowhere))


def modules_of(tree: str) -> set[Path]:
    """The modules that a tree names: a package ends in "/", and what is in it is indented."""
    folders: list[tuple[int, Path]] = []
    found = set()
    for line in tree.splitlines():
        names = re.match(r" *(\w+/?(?:, \w+)*)", line)
        assert names is not None, line
        indent = len(line) - len(line.lstrip())
        folders = [folder for folder in folders if folder[0] < indent]
        parent = folders[-1][1] if folders else Path()
        if names[1].endswith("/"):
            folders.append((indent, parent / names[1]))
        else:
            found |= {parent / f"{name}.py" for name in names[1].split(", ")}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tree_of_the_architecture_has_every_module(package: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("modules-*.md"))
    trees = re.findall(rf"^```text\n({package}/\n.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(trees) == 1
    assert modules_of(trees[0]) == {path for path in MODULES if path.parts[0] == package}


def test_modules_of_a_tree_are_seen() -> None:
    tree = "a/\n  b/   words, of which none counts\n    c, d   more\n  e\n"
    assert modules_of(tree) == {Path("a/b/c.py"), Path("a/b/d.py"), Path("a/e.py")}
