"""Targets: the compilers under test: how each compiles, what it lacks, and what it refuses on purpose.

Modules in reading order:

- `target`: what a target is; `clause_sets`: which clauses a target promises.
- `catalog`: find a target by its name; `plugins`: targets of other packages.
- `builtin_targets`: the targets that ship; `adapters`: other people's compilers among them.
- `dynamo_backends`: backends of torch.compile; `aot_autograd_refusals`: what torch refuses.
- `compiler_bisector`: torch's own bisector.

Invariant: no other package of `fuzz` imports `aot`.
"""
