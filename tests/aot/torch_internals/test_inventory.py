"""The inventory of private torch API: which names sources use, what torch has, and what has changed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aot.torch_internals import inventory
from aot.torch_internals.inventory import (
    Change,
    baselines,
    changes,
    main,
    private_names,
    read_record,
    record_version,
    recorded_signatures,
    signature_of_name,
    signatures,
)
from aot.torch_internals.tested_versions import TESTED, untested_version_message

VERSION = inventory.minor_version(str(torch.__version__))
USERS = private_names()

# What a version lacks, because the code asks which of two names there is.
BRANCHES = {
    "torch._higher_order_ops.switch.switch": {"2.14", "2.15"},
    "torch._library.custom_ops.CustomOpDef._autocast_cpu_dtype": {"2.11"},
    "torch._library.custom_ops.CustomOpDef._autocast_cuda_dtype": {"2.11"},
    "torch._library.custom_ops.CustomOpDef._autocast_dtype": {"2.13", "2.14", "2.15"},
    "torch.utils.checkpoint._CheckpointFrame.input_saver": {"2.11"},
    "torch.utils.checkpoint._CheckpointFrame.saved_args": {"2.13", "2.14", "2.15"},
}
ONLY_WITH_CUDA = {"torch._C._cuda_synchronize"}
# The exporter's modules import onnxscript, which comes with the extra `onnxruntime`.
ONLY_WITH_ONNXSCRIPT = {
    "torch.onnx._internal.exporter._registration",
    "torch.onnx._internal.exporter._registration.ONNXRegistry",
}


def names_of_source(folder: Path, source: str) -> dict[str, tuple[str, ...]]:
    """The private names that a module of that source uses."""
    file = folder / "aot" / "example.py"
    file.parent.mkdir()
    file.write_text(source)
    found = private_names(folder)
    unseen = {f"{owner}.{name}" for owner, names in inventory.UNSEEN.items() for name in names}
    return {name: users for name, users in found.items() if name not in unseen}


def test_imports_chains_and_aliases_are_seen(tmp_path: Path) -> None:
    source = """
import torch
from torch._ops import OpOverload as Op
from torch.nn.modules import module as _modules
from torch.utils._python_dispatch import TorchDispatchMode
KEY = torch._C.DispatchKey.Python
class Holder:
    def method(self):
        return _modules._global_hooks, torch.Tensor.sum, Op._example
def function():
    from torch._inductor import config
    return config.patch(self._own)
"""
    assert names_of_source(tmp_path, source) == {
        "torch._C.DispatchKey.Python": ("aot/example.py",),
        "torch._inductor.config": ("aot/example.py: function",),
        "torch._inductor.config.patch": ("aot/example.py: function",),
        "torch._ops.OpOverload": ("aot/example.py",),
        "torch._ops.OpOverload._example": ("aot/example.py: Holder.method",),
        "torch.nn.modules.module._global_hooks": ("aot/example.py: Holder.method",),
        "torch.utils._python_dispatch.TorchDispatchMode": ("aot/example.py",),
    }


def test_strings_that_are_source_are_seen(tmp_path: Path) -> None:
    source = """
MAP = "from torch._higher_order_ops.map import map as map_rows"
CALL = "torch._foreach_sin([{0}, {1}])"
TEXT = "what torch._dynamo does to a tensor"
PART = f"torch._foreach_{name}([{{0}}])"
"""
    assert names_of_source(tmp_path, source) == {
        "torch._foreach_sin": ("aot/example.py",),
        "torch._higher_order_ops.map.map": ("aot/example.py",),
    }


def test_attributes_of_instances_are_found_where_they_are_used() -> None:
    users = USERS["torch._library.custom_ops.CustomOpDef._autocast_dtype"]
    assert "aot/torch_internals/op_queries.py: _autocast_dtypes" in users
    assert any("patch_points" in user for user in USERS["torch._C._cuda_synchronize"])


def test_private_attributes_of_whatever_is_no_name_of_torch_are_in_the_table() -> None:
    """What is behind the door and of torch's classes is in `UNSEEN`, else nobody would miss it."""
    listed = {name for names in inventory.UNSEEN.values() for name in names}
    own: set[str] = set()
    read: set[str] = set()
    for file in Path(inventory.__file__).parent.glob("*.py"):
        if file.name == "inventory.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1:2] != "_":
                read.add(node.attr)
    through_names = {part for name in USERS for part in name.split(".")}
    assert read - own - listed - through_names == DYNAMIC


# Attributes that no class declares: of nodes, by what they have saved, and marks that functions get.
DYNAMIC = {
    "_forward_cls",  # of the class that torch makes for each custom function
    "_raw_saved_tensors",
    "_saved_self",
    "_getframe",  # of Python's `sys`
    "_torchdynamo_disable",
}


def test_what_torch_has_under_a_name() -> None:
    assert signature_of_name("torch._C._nothing_of_the_kind") is None
    assert signature_of_name("torch._nothing.of_the_kind") is None
    assert signature_of_name("torch._C") == "module"
    assert signature_of_name("torch._C.DispatchKey.Python") == "DispatchKey"
    assert signature_of_name("torch._C._dispatch_has_kernel_for_dispatch_key") == "(arg0, arg1)"
    assert signature_of_name("torch.ops.aten._neg_view") == ("aten::_neg_view(Tensor(a) self) -> Tensor(a)")
    assert signature_of_name("torch.utils._pytree.tree_unflatten") == "(leaves, treespec)"
    assert signature_of_name("torch._library.custom_ops.CustomOpDef._opoverload") == "attribute"
    assert signature_of_name("torch._library.custom_ops.CustomOpDef._nothing") is None


def test_a_function_hides_the_module_of_its_name() -> None:
    signature = signature_of_name("torch._higher_order_ops.map.map")
    assert signature is not None and signature.startswith("(f, xs,")


RECORD: dict[str, Any] = {
    "versions": ["2.11", "2.13"],
    "names": {
        "torch._both": {"(a)": ["2.11", "2.13"]},
        "torch._moved": {"(a)": ["2.11"], "(a, b)": ["2.13"]},
        "torch._new": {"()": ["2.13"]},
        "torch._old": {"()": ["2.11"]},
    },
}
EXAMPLE_USERS = {name: (f"aot/{name[7:]}.py: f",) for name in RECORD["names"]}


def changes_at(version: str, **found: str | None) -> list[Change]:
    after = {f"torch._{name}": signature for name, signature in found.items()}
    return changes(RECORD, EXAMPLE_USERS, after, version)


def test_a_missing_name_and_a_changed_signature_are_told_with_their_users() -> None:
    different = changes_at("2.16", both=None, moved="(a, b, c)", new="()", old=None)
    assert [str(one) for one in different] == [
        "missing torch._both (used in aot/both.py: f)",
        "changed signature torch._moved from (a, b) to (a, b, c) (used in aot/moved.py: f)",
    ]


def test_a_name_of_another_version_is_not_missing() -> None:
    assert changes_at("2.16", both="(a)", moved="(a, b)", new="()", old=None) == []
    assert changes_at("2.11", both="(a)", moved="(a)", new=None, old="()") == []


def test_a_version_between_two_may_be_like_either() -> None:
    assert baselines(RECORD, "2.12") == ["2.11", "2.13"]
    for moved in ("(a)", "(a, b)"):
        assert changes_at("2.12", both="(a)", moved=moved, new=None, old=None) == []
    assert [one.name for one in changes_at("2.12", both=None, moved="()")] == ["torch._both", "torch._moved"]


def test_the_newest_is_the_highest_number_and_not_the_last_word() -> None:
    assert baselines({"versions": ["2.9", "2.10"]}, "2.11") == ["2.10"]


def test_a_version_is_recorded_beside_the_others() -> None:
    record = record_version(RECORD, {"torch._both": (), "torch._new": ()}, {"torch._both": "(a)"}, "2.14")
    assert record["versions"] == ["2.11", "2.13", "2.14"]
    assert record["names"] == {
        "torch._both": {"(a)": ["2.11", "2.13", "2.14"]},
        "torch._new": {"()": ["2.13"]},
    }


def test_the_record_has_the_tested_versions() -> None:
    assert tuple(read_record()["versions"]) == TESTED


@pytest.mark.parametrize("version", TESTED)
def test_names_that_a_tested_version_lacks_are_behind_a_branch(version: str) -> None:
    """The record is of today's sources: run `python -m aot.torch_internals.inventory --write` under each
    version after a change of the names."""
    absent = USERS.keys() - recorded_signatures(read_record(), version).keys()
    absent -= ONLY_WITH_CUDA | ONLY_WITH_ONNXSCRIPT
    assert absent == {name for name, versions in BRANCHES.items() if version not in versions}


@pytest.mark.skipif(
    untested_version_message(str(torch.__version__)) is not None,
    reason="torch is newer than what was tested (issue 47): `aotfuzz doctor` says what has changed",
)
def test_the_installed_torch_has_what_the_record_says() -> None:
    assert changes(read_record(), USERS, signatures(list(USERS)), VERSION) == []


def test_the_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without = {"torch._nothing_of_the_kind": ("aot/a.py: f",)}
    record = {"versions": ["2.11"], "names": {"torch._nothing_of_the_kind": {"(a)": ["2.11"]}}}
    monkeypatch.setattr(inventory, "private_names", lambda: without)
    monkeypatch.setattr(inventory, "read_record", lambda: record)
    assert main([]) == 1
    assert "missing torch._nothing_of_the_kind (used in aot/a.py: f)" in capsys.readouterr().out


def test_it_runs_where_aot_cannot_be_imported(tmp_path: Path) -> None:
    """As a file, in an interpreter that has torch and no `aot`."""
    (tmp_path / "aot.py").write_text("raise ImportError('an unknown torch')")
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['inventory', '--help']; "
        f"runpy.run_path({inventory.__file__!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--write" in done.stdout, done.stderr
