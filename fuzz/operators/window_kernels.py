"""Windows over images and volumes, and layers and losses with kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.operators.dtypes import FLOATS
from fuzz.operators.kernel_rows import (
    ALL_NUMBERS,
    SINGLE,
    Shape,
    equal,
    kernel_row,
    one_dtype,
    operand,
    shaped_row,
    unknown_layout,
)
from fuzz.operators.row import Attributes, Meta, Mismatch, Operand, Operator, Result, Size

_NN = "torch.nn.functional."


def _row(
    name: str,
    source: str,
    shape: Shape,
    ranks: Sequence[int],
    dtypes: frozenset[str] = SINGLE,
    others: tuple[Operand, ...] = (),
) -> Operator:
    return shaped_row(name, source, shape, ranks, dtypes, others=others)


def _adaptive(dimensions: int) -> Shape:
    return lambda size: (*size[:-dimensions], *(2,) * dimensions)


def _halved(dimensions: int) -> Shape:
    """Windows of two that do not overlap."""

    def shape(size: Size) -> Size:
        if min(size[-dimensions:]) < 2:
            raise Mismatch("a window of two is too large")
        return (*size[:-dimensions], *(n // 2 for n in size[-dimensions:]))

    return shape


def _one_window(dimensions: int) -> Shape:
    def shape(size: Size) -> Size:
        if min(size[-dimensions:]) < 3:
            raise Mismatch("there is no room for a window of two to move")
        return (*size[:-dimensions], *(1,) * dimensions)

    return shape


def _unfolded(size: Size) -> Size:
    rows, columns = size[-2:]
    if min(rows, columns) < 2:
        raise Mismatch("a window of two by two is too large")
    return (*size[:-3], size[-3] * 4, (rows - 1) * (columns - 1))


def _twice(size: Size) -> Size:
    return (*size[:-2], 2 * size[-2], 2 * size[-1])


def _shuffled(size: Size) -> Size:
    if size[-3] % 4:
        raise Mismatch("channels in fours are needed")
    return (*size[:-3], size[-3] // 4, 2 * size[-2], 2 * size[-1])


def _unshuffled(size: Size) -> Size:
    if size[-1] % 2 or size[-2] % 2:
        raise Mismatch("an even height and width are needed")
    return (*size[:-3], size[-3] * 4, size[-2] // 2, size[-1] // 2)


def _two_channels(size: Size) -> Size:
    if size[1] % 2:
        raise Mismatch("an even number of channels is needed")
    return size


def _distances(size: Size) -> Size:
    if not 2 <= size[0] <= 64:
        raise Mismatch("no pairs, or too many")
    return (size[0] * (size[0] - 1) // 2,)


def _scalar(size: Size) -> Size:
    return ()


def _itself(size: Size) -> Size:
    return size


def _prelu(metas: Sequence[Meta], attributes: Attributes) -> tuple[Result, ...]:
    """A weight for each channel, or one for all."""
    x, weight = metas
    if 0 in x.size or weight.size not in ((1,), x.size[1:2]):
        raise Mismatch("a weight for each channel is needed")
    return unknown_layout(one_dtype(metas), x.size)


def _of_volume(source: str, shape: Shape, dimensions: int) -> tuple[str, Shape, tuple[int, ...]]:
    """A function of batches. No program has a tensor of five dimensions, so that a volume is a batch."""
    if dimensions < 3:
        return source, shape, (dimensions + 2,)
    return source.replace("{0}", "{0}.unsqueeze(0)"), lambda size: shape((1, *size)), (4,)


def _grid_sample(dimensions: int) -> Operator:
    n = dimensions
    grid = (
        f"{_NN}affine_grid((torch.eye({n}, {n + 1}, dtype={{0}}.dtype{{device}}) * 0.9)"
        f".expand({{0}}.shape[0], {n}, {n + 1}), {{0}}.shape, align_corners=False)"
    )
    source = f"{_NN}grid_sample({{0}}, {grid}, align_corners=False)"
    return _row(f"grid_sample_{n}d", *_of_volume(source, _itself, n))


ROWS = (
    _row("adaptive_avg_pool3d", _NN + "adaptive_avg_pool3d({0}, 2)", _adaptive(3), (4, 5)),
    _row("adaptive_max_pool1d", _NN + "adaptive_max_pool1d({0}, 2)", _adaptive(1), (2, 3)),
    _row("adaptive_max_pool2d", _NN + "adaptive_max_pool2d({0}, 2)", _adaptive(2), (3, 4)),
    _row("adaptive_max_pool3d", _NN + "adaptive_max_pool3d({0}, 2)", _adaptive(3), (4, 5)),
    _row("avg_pool3d", _NN + "avg_pool3d({0}, 2)", _halved(3), (4, 5)),
    _row("max_pool3d", _NN + "max_pool3d({0}, 2)", _halved(3), (4, 5)),
    *(
        _row(
            f"fractional_max_pool{n}d",
            *_of_volume(
                f"{_NN}fractional_max_pool{n}d({{0}}, 2, output_size=1, "
                f"_random_samples=torch.full((*{{0}}.shape[:2], {n}), 0.5, dtype={{0}}.dtype{{device}}))",
                _one_window(n),
                n,
            ),
        )
        for n in (2, 3)
    ),
    _row("unfold_windows", _NN + "unfold({0}, 2)", _unfolded, (4,)),
    _row(
        "upsample_antialiased",
        _NN + "interpolate({0}, scale_factor=2.0, mode='bilinear', antialias=True)",
        _twice,
        (4,),
    ),
    _grid_sample(2),
    _grid_sample(3),
    _row("pixel_shuffle", "torch.pixel_shuffle({0}, 2)", _shuffled, (3, 4), ALL_NUMBERS),
    _row("pixel_unshuffle", "torch.pixel_unshuffle({0}, 2)", _unshuffled, (3, 4), ALL_NUMBERS),
    _row("channel_shuffle", "torch.channel_shuffle({0}, 2)", _two_channels, (3, 4), FLOATS),
    kernel_row("prelu", _NN + "prelu({0}, {1})", (operand(FLOATS), operand(FLOATS)), _prelu),
    _row(
        "bilinear",
        _NN + "bilinear({0}, {0}, torch.ones(2, {0}.shape[-1], {0}.shape[-1], dtype={0}.dtype{device}))",
        lambda size: (*size[:-1], 2),
        (1, 2, 3),
    ),
    _row(
        "multi_margin_loss",
        _NN + "multi_margin_loss({0}, torch.zeros({0}.shape[0], dtype=torch.int64{device}))",
        _scalar,
        (2,),
    ),
    _row(
        "multilabel_margin_loss",
        _NN + "multilabel_margin_loss({0}, torch.zeros_like({0}, dtype=torch.int64))",
        _scalar,
        (1, 2),
    ),
    _row(
        "cosine_embedding_loss",
        _NN + "cosine_embedding_loss({0}, {1}, torch.ones({0}.shape[0], dtype={0}.dtype{device}))",
        _scalar,
        (2,),
        others=(equal(SINGLE),),
    ),
    _row("pdist", _NN + "pdist({0})", _distances, (2,)),
    _row(
        "segment_reduce",
        "torch.segment_reduce({0}, 'max', lengths=torch.full((1,), {0}.shape[0]{device}), unsafe=True)",
        lambda size: (1, *size[1:]),
        (1, 2),
    ),
)
