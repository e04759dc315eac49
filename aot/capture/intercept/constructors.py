"""Methods that make a tensor like their own: ``x.new(...)`` and ``x.new_tensor(...)``.

They ask `x` for its highest dispatch key, and which device that is for. The key that fakes have is no
device's (`plain_fakes.make_tensor`), so an empty tensor with memory stands for a fake there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import has_torch_function_unary

from aot.capture.intercept.patches import replace
from aot.torch_internals import plain_fakes, tensor_impl


def _making_alike(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        # (A torch function mode, or the tensor's class, gets the tensor itself, and comes back here.)
        if plain_fakes.is_fake(self) and not has_torch_function_unary(self):
            self = tensor_impl.empty_real_tensor(self.dtype, self.device)
        return original(self, *args, **kwargs)

    return make


for _name in ("new", "new_tensor"):
    replace(Tensor, _name, _making_alike)
