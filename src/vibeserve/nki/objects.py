"""`NKIObject`: the base of classes that kernels use."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any


def _default(value: Any) -> Any:
    """A field's default for one instance: mutable ones are copied, `dataclasses.field` is resolved."""
    if isinstance(value, dataclasses.Field):
        return value.default if value.default is not dataclasses.MISSING else value.default_factory()  # type: ignore[misc,operator]
    return copy.copy(value) if isinstance(value, list | dict | set) else value


class NKIObject:
    """Base class of kernel objects.

    A subclass without `__init__` of its own takes its annotated fields as arguments, in order or by name, and then
    calls `__post_init__`; any other keyword becomes an attribute.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        fields: list[str] = []
        for cls in reversed(type(self).__mro__):
            for name in vars(cls).get("__annotations__", {}):
                if name not in fields:
                    fields.append(name)
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__}() takes {len(fields)} fields, {len(args)} were given")
        for name, value in zip(fields, args, strict=False):
            if name in kwargs:
                raise TypeError(f"{type(self).__name__}() got two values for {name!r}")
            setattr(self, name, value)
        for name, value in kwargs.items():
            setattr(self, name, value)
        missing = [name for name in fields[len(args) :] if name not in kwargs and not hasattr(type(self), name)]
        if type(self).__init__ is not NKIObject.__init__:
            return  # a subclass with an __init__ of its own sets its fields itself
        if missing:
            raise TypeError(f"{type(self).__name__}() lacks {', '.join(missing)}")
        for name in fields[len(args) :]:
            if name not in kwargs:
                setattr(self, name, _default(getattr(type(self), name)))
        post = getattr(self, "__post_init__", None)
        if post is not None:
            post()
