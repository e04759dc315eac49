"""An ahead-of-time autograd compiler for PyTorch programs that mutate and alias.

Packages, in the order of a call: `frontends`, `specialize`, `guards`, `pipeline` (which runs `capture`,
`analysis`, `joint` and `partition`), `runtime`, `cache`. Compilers of graphs: `backends`, `inductor`. Below
them all: `graph`, `ops`, `tensors`, `torch_internals`. docs/reference/modules-aot.md lists the modules.

Example:
    >>> import aot
    >>> compiled = aot.aot_function(f, fw_compiler=aot.nop)
"""

from aot import cache, config
from aot.analysis.metadata import (
    InputAliasInfo,
    MutationType,
    OutputAliasInfo,
    OutputType,
    ViewAndMutationMeta,
)
from aot.backends.compilers import make_boxed_compiler, make_boxed_func, nop, static_inputs
from aot.backends.graph_names import get_aot_compilation_context, get_aot_graph_name, set_model_name
from aot.errors import (
    AotError,
    AssumptionViolated,
    BackendError,
    CacheWarning,
    DoubleBackwardUnsupported,
    FallbackWarning,
    MissingPackage,
    PartitionError,
    RecompileWarning,
    Unsupported,
    UntestedTorchWarning,
)
from aot.explanation.text import explain
from aot.frontends.export import (
    BackwardSignature,
    GraphSignature,
    aot_export_joint_simple,
    aot_export_module,
)
from aot.frontends.function import CompiledFunction, aot_function
from aot.frontends.minifier import minify
from aot.frontends.module import AOTModule, aot_module, aot_module_simplified
from aot.partition.default import default_partition
from aot.partition.min_cut import min_cut_rematerialization_partition
from aot.tensors.subclasses import PlainTensorMeta, SubclassCreationMeta, SubclassMeta

__all__ = [
    "AOTModule",
    "AotError",
    "AssumptionViolated",
    "BackendError",
    "BackwardSignature",
    "CacheWarning",
    "CompiledFunction",
    "DoubleBackwardUnsupported",
    "FallbackWarning",
    "GraphSignature",
    "InputAliasInfo",
    "MissingPackage",
    "MutationType",
    "OutputAliasInfo",
    "OutputType",
    "PartitionError",
    "PlainTensorMeta",
    "RecompileWarning",
    "SubclassCreationMeta",
    "SubclassMeta",
    "Unsupported",
    "UntestedTorchWarning",
    "ViewAndMutationMeta",
    "aot_export_joint_simple",
    "aot_export_module",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "cache",
    "config",
    "default_partition",
    "explain",
    "get_aot_compilation_context",
    "get_aot_graph_name",
    "make_boxed_compiler",
    "make_boxed_func",
    "min_cut_rematerialization_partition",
    "minify",
    "nop",
    "set_model_name",
    "static_inputs",
]
