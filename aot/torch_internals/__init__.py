"""Every private torch name that aot uses, by topic, and every difference between supported torch versions.

A torch upgrade touches this package alone. The tested versions are `tested_versions.TESTED`; a newer torch
gives one warning, when this package is imported. In reading order:

* operators: `op_queries`, `higher_order_ops`, `script_objects`, `torch_namespaces`
* dispatch: `dispatcher`, `mode_stacks`, `function_transforms`, `patch_points`, `module_hooks`
* tensors: `tensor_impl`, `plain_fakes`, `torch_fakes`, `wrapper_subclasses`, `symbolic_shapes`, `pytree`
* autograd: `autograd_graph`, `autograd_state`, `activation_checkpoint`
* process and thread state: `ambient_state`, `autocast_state`, `leaf_casts`, `rng`
* graphs and other compilers: `fx_graphs`, `dynamo_api`, `inductor_api`
* torch itself: `tested_versions`, and `inventory`, which compares the private names with each tested version

Invariant: no other module of aot imports private torch API.
"""

from aot.torch_internals import tested_versions

# First of all: what is missing in an unknown torch may keep the rest from being imported.
tested_versions.warn_if_untested()
