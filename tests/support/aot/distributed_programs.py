"""What two processes run, and hold against eager: ``python distributed_programs.py RANK FOLDER``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import aot

MESH: DeviceMesh
RANK = 0


def _redistributed(x: Any, w: Tensor) -> Any:
    return (x @ w).redistribute(MESH, [Replicate()]) * 2


def _views_of_one(x: Any, w: Tensor) -> Any:
    """pytorch/pytorch#184002: the second result is a view of the first."""
    product = (x @ w).redistribute(MESH, [Shard(1)])
    return product, product[:, :1], product.t()


def _view_of_an_argument(x: Any, w: Tensor) -> Any:
    return x, x[:1], w.t()


def _written(x: Any, w: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x @ w


def _written_in_grad_mode(x: Any, w: Tensor) -> Any:
    product = x @ w
    product.mul_(3)
    return functional.layer_norm(product, (4,))


def _from_local(x: Any, w: Tensor) -> Any:
    return DTensor.from_local(x.to_local() + 1, MESH, x.placements) * 3 + w.sum()


def _gathered(x: Any, w: Tensor) -> Any:
    return collectives.all_gather_tensor_autograd(x.to_local(), 0, MESH).sin()


def _scattered(x: Any, w: Tensor) -> Any:
    return collectives.reduce_scatter_tensor_autograd(x.to_local() * 2, "sum", 0, MESH).sin()


def _checkpointed(x: Any, w: Tensor) -> Any:
    return checkpoint(_redistributed, x, w, use_reentrant=False)


def _used_by_one(x: Any, w: Tensor) -> Any:
    """Whoever drops the sum lets the other one wait for ever."""
    total = collectives.all_reduce(x.to_local().detach(), "sum", MESH)
    return total * w.to_local().sum() if RANK == 0 else x.to_local() * 3


def _partial(x: Any, w: Tensor) -> Any:
    return (
        DTensor.from_local(x.to_local(), MESH, [Partial()]).redistribute(MESH, [Replicate()]).cos() + w.sum()
    )


def _refused_by_eager(x: Any, w: Tensor) -> Any:
    return x.view(3, -1)


PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "sum": lambda x, w: (x @ w).sum(),
    "redistributed": _redistributed,
    "full": lambda x, w: (x @ w).relu().full_tensor().sin(),
    "local": lambda x, w: (x.to_local() * 2, w.sin()),
    "local, redistributed": lambda x, w: (x @ w).redistribute(MESH, [Replicate()]).to_local(),
    "views of one": _views_of_one,
    "view of an argument": _view_of_an_argument,
    "written": _written,
    "written in grad mode": _written_in_grad_mode,
    "from local": _from_local,
    "reduced": lambda x, w: collectives.all_reduce(x.to_local(), "sum", MESH) * 2,
    "gathered": _gathered,
    "scattered": _scattered,
    "checkpointed": _checkpointed,
    "used by one": _used_by_one,
    "partial": _partial,
    "refused by eager": _refused_by_eager,
}
PLACEMENTS = [(Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))]


def _seen(value: Any) -> Any:
    if isinstance(value, DTensor):
        shown = tuple(value.shape), value.stride()
        return "DTensor", str(value.placements), shown, _seen(value.to_local())
    return (tuple(value.shape), value.detach().tolist()) if isinstance(value, Tensor) else value


def _told(function: Callable[..., Any], placements: tuple[Any, Any], grad: bool) -> Any:
    x, w = (
        distribute_tensor(torch.arange(16.0).reshape(4, 4) / (10 + i), MESH, [placement]).requires_grad_(grad)
        for i, placement in enumerate(placements)
    )
    given = x * 1
    try:
        found = function(given, w)
    except aot.Unsupported:
        raise
    except Exception as error:
        return type(error).__name__
    results = found if isinstance(found, tuple) else (found,)
    about = [(r.requires_grad, r._base is not None) for r in results]
    gradients: list[Any] = []
    if grad:
        total = sum((r.full_tensor() if isinstance(r, DTensor) else r).square().sum() for r in results)
        gradients = list(torch.autograd.grad(total, (x, w), allow_unused=True))
    return about, [_seen(one) for one in (*results, given, *gradients)]


def _compared(function: Callable[..., Any], **options: Any) -> str:
    """What differs from eager; "" where nothing does. The compiled call comes first: what DTensor remembers
    of sharding is the compiler's to find out."""
    for placements in PLACEMENTS:
        for grad in (False, True):
            compiled = aot.aot_function(function, aot.nop, **options)
            told = [_told(one, placements, grad) for one in (compiled, function, compiled)]
            if not told[0] == told[1] == told[2]:
                return f"{placements}, {grad=}: {told}"
    return ""


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.down(self.up(x).relu()))
        return result


def _trained(compile: Callable[[nn.Module], Callable[..., Any]]) -> Any:
    torch.manual_seed(0)
    model = parallelize_module(_Mlp(), MESH, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    compiled, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(3):
        torch.manual_seed(step)
        loss = compiled(torch.randn(2, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [_seen(parameter) for parameter in model.parameters()]


def _run() -> dict[str, str]:
    found = {name: _compared(function) for name, function in PROGRAMS.items()}
    found["redistributed, min-cut"] = _compared(
        _redistributed, partition_fn=aot.min_cut_rematerialization_partition
    )
    eager = _trained(lambda model: model)
    for name, compile in {
        "tensor parallel": lambda model: aot.aot_module(model, aot.nop),
        "tensor parallel, torch.compile": lambda model: torch.compile(model, backend="aotfuzz"),
    }.items():
        trained = _trained(compile)
        found[name] = "" if trained == eager else f"{trained} instead of {eager}"
    return found


if __name__ == "__main__":
    RANK, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=RANK, world_size=2)
    MESH = init_device_mesh("cpu", (2,))
    (folder / f"{RANK}.json").write_text(json.dumps(_run()))
    dist.destroy_process_group()
