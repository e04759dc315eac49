"""Bucket legend: the meaning of each word in the names of buckets.

The grammar is that of `fuzz.corpus.buckets.bucket`. The words of the legend are those of a pattern. `a`
stands for any letter.
"""

from __future__ import annotations

PARTS = (
    ("values/out elements", "what differs, and where: the clause of the contract, then the place"),
    (
        "2 pointwise + expand",
        "the operators of the reduced program; pointwise and in-place ones count by their kind, and a block "
        "around an operator follows it, as in in-place@no_grad",
    ),
    ("a:grad a~ =", "the arguments, and how they share memory; then what is done in and after the call"),
    ("a | a b", "the arguments of the first call, and after | those of a later call"),
)
"""The parts of a bucket's name in their order, each with an example and its meaning."""

ARGUMENTS = (
    ("a", "a tensor that owns its memory; each memory has a letter. float32, unless a dtype follows"),
    ("a:float64", "its dtype"),
    ("a:grad", "a leaf that requires grad"),
    ("a:nonleaf", "not a leaf: the result of an operation"),
    ("a:detached", "the history was lost after all views were taken"),
    ("a:special", "NaN, infinities or the like are among the values"),
    ("a:limits", "the values are around the limits of the dtype"),
    ("a:large", "the values are around 2**31 and 2**53"),
    ("a:inexact", "the values are not exact in half precision, as 0.1 is not"),
    ("a:halves", "the values are halves of integers: ties of rounding"),
    ("a:domain", "the values are where functions begin, end or overflow, as 1 for erfinv"),
    ("a:singular", "the values make a matrix of rank 1"),
    ("a:ill-conditioned", "the values make Hilbert's matrix"),
    ("a:inference", "made in inference mode"),
    ("a:0d", "has no dimensions"),
    ("a:empty", "has no elements"),
    ("a~", "a view of the memory a"),
    ("a~multi", "a view that is one of several results of one operator, as chunk gives"),
    ("a~detach", "an alias made by detach: autograd does not see that the two share memory"),
    ("a~data", "an alias made by .data: autograd does not see that the two share memory"),
    ("a~no_grad", "a view that was taken under no_grad"),
    ("a~parameter", "an nn.Parameter on the memory a"),
    ("a~:float64", "a view with another dtype than the memory has"),
    ("a~:leaf", "a view that is a leaf which requires grad"),
    ("a~:conj", "a view that is conjugated lazily"),
    ("a~:neg", "a view that is negated lazily"),
    ("a~:wrapped one", "a wrapper subclass with one tensor inside"),
    ("a~:wrapped two", "a wrapper subclass with two tensors inside"),
    ("a~:wrapped twice", "a wrapper subclass that has one tensor as both of its inner tensors"),
    ("a~:wrapped nested", "a wrapper subclass around a wrapper subclass"),
    ("a~:of detach", "a view of an alias that detach made"),
    ("a~:of data", "a view of an alias that .data made"),
    ("a~:of wrapper", "a view of a wrapper subclass"),
    ("=", "the same object as an earlier argument"),
    ("nothing", "no tensor"),
)
"""The words of arguments, which follow a letter and its mark."""

STEPS = (
    ("no-grad", "the call is under no_grad"),
    ("two threads", "two threads make the call at once"),
    ("autocast", "the call is under autocast"),
    ("swapped", "the call is under a function mode that calls other functions"),
    ("marked", "arguments have an attribute of the user's"),
    ("plain", "a backward, by torch.autograd.grad"),
    ("accumulate", "a backward that accumulates into .grad"),
    ("double", "a backward of a backward"),
    ("kept", "the backward retains the graph"),
    ("part", "the backward is not of all results"),
    ("write argument", "an argument is written in place after the call"),
    ("write result", "a result is written in place after the call"),
    ("require argument", "an argument is made to require grad after the call"),
    ("require result", "a result is made to require grad after the call"),
)
"""The words of a call and of the steps after it, in the order of a pattern."""
