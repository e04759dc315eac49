"""Operations: what an ATen operation does to its arguments, decided once from its schema and tags.

Modules in reading order:

- `classify`: the kind and properties of an operation, and how one is run on copies.
- `call_targets`: functions that graphs call for overloads that Python cannot name.
- `overlap_checks`: writes to tensors that overlap.
- `zero_probing`: operations whose kernels may run on zeros to find out what they return.

Invariant: a kernel that runs here to answer a question leaves no draw and no mode behind.
"""
