"""Every private torch name that aot uses, by topic, and every difference between supported torch versions.

A torch upgrade touches this package alone. Supported: 2.11, 2.12, 2.13. In reading order:

* operators: `op_queries`, `higher_order_ops`, `script_objects`, `torch_namespaces`
* dispatch: `dispatcher`, `mode_stacks`, `function_transforms`, `patch_points`, `module_hooks`
* tensors: `tensor_impl`, `plain_fakes`, `torch_fakes`, `wrapper_subclasses`, `symbolic_shapes`, `pytree`
* autograd: `autograd_graph`, `autograd_state`, `activation_checkpoint`
* process and thread state: `ambient_state`, `autocast_state`, `leaf_casts`, `rng`
* graphs and other compilers: `fx_graphs`, `dynamo_api`, `inductor_api`

Invariant: no other module of aot imports private torch API.
"""
