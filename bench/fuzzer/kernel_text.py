"""What the text that Inductor generates for a CPU says of a compile: its loops, dtypes and extern kernels.

>>> sorted(wrapper_traits("        s77 = arg0_1\\n        extern_kernels.mm(arg0_1, arg1_1, out=buf0)\\n"))
['dynamic: a size is a symbol', 'extern: mm']
"""

from __future__ import annotations

import re
from collections.abc import Iterator

FULL_AND_TAIL = "vectors: full, and a tail"
FULL = "vectors: full ones alone"
PART = "vectors: a part of one alone"
SCALAR = "vectors: none"
TILE = "vectors: a tile is transposed"
DYNAMIC = "dynamic: a size is a symbol"
DTYPES = {
    "float": "float32",
    "double": "float64",
    "at::Half": "float16",
    "at::BFloat16": "bfloat16",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "int16_t": "int16",
    "int32_t": "int32",
    "int64_t": "int64",
    "bool": "bool",
}

_LOOP = re.compile(
    r"for\(int64_t \w+=.*?; \w+<static_cast<int64_t>\((.*?)\); \w+\+=static_cast<int64_t>\((\d+)L*\)\)"
)
_POINTER = re.compile(r"(?:const )?([\w:]+)\* ?(?:__restrict__ )?(?:in_out|in|out)_ptr\d+")
_EXTERN = re.compile(r"extern_kernels\.(\w+)\(|torch\.ops\.(\w+)\.(\w+)")
_SYMBOL = re.compile(r"^\s+s\d+ = ", re.MULTILINE)


def kernel_traits(text: str) -> Iterator[str]:
    """What the C++ text of a kernel has."""
    yield from (f"dtype: {DTYPES[name]}" for name in _POINTER.findall(text) if name in DTYPES)
    if "transpose_mxn<" in text:
        yield TILE
    steps = [(bound.removesuffix("L").removesuffix("L"), int(step)) for bound, step in _LOOP.findall(text)]
    vectors = [(bound, step) for bound, step in steps if step > 1]
    if "at::vec::" not in text or not vectors:
        yield SCALAR
        return
    for bound, step in vectors:
        if not bound.isdigit() or (int(bound) > step and int(bound) % step):
            yield FULL_AND_TAIL
        else:
            yield PART if int(bound) < step else FULL


def extents(text: str) -> Iterator[int]:
    """How often each loop of a kernel runs over an element, where that is a number."""
    yield from (int(digits) for bound, _ in _LOOP.findall(text) if (digits := bound.rstrip("L")).isdigit())


def wrapper_traits(text: str) -> Iterator[str]:
    """What the Python text around a graph's kernels has, without the text of kernels."""
    called = text.partition("async_compile.wait(")[2] or text  # ahead of that, names are bound
    for name, namespace, operator in _EXTERN.findall(called):
        yield f"extern: {name or (operator if namespace == 'aten' else f'{namespace}.{operator}')}"
    if _SYMBOL.search(text):
        yield DYNAMIC
