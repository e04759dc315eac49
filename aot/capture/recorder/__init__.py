"""A dispatch mode that records ATen operations.

It sees each one below autograd, runs it on fakes and appends its functional form.
"""
