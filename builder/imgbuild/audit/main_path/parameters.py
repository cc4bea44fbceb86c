"""The parameters of a call of a function that is followed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from imgbuild.audit.main_path.values import UNKNOWN


def bound(
    parameters: ast.arguments,
    given: Sequence[object],
    named: Mapping[str, object],
    default: Callable[[ast.expr], object],
) -> dict[str, object]:
    """Parameter → value. An argument ... stands for others that are not known."""
    places = [item.arg for item in (*parameters.posonlyargs, *parameters.args)]
    every = [*places, *(item.arg for item in parameters.kwonlyargs)]
    values: dict[str, object] = dict.fromkeys(every, UNKNOWN)
    extra = [item.arg for item in (parameters.vararg, parameters.kwarg) if item is not None]
    if any(item is ... for item in given):
        return {**values, **dict.fromkeys(extra, UNKNOWN)}
    defaults = list(zip(reversed(places), reversed(parameters.defaults), strict=False))
    defaults += [
        (item.arg, value)
        for item, value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if value is not None
    ]
    values.update((name, default(value)) for name, value in defaults)
    values.update(zip(places, given, strict=False))
    values.update((name, value) for name, value in named.items() if name in every)
    if parameters.vararg is not None:
        values[parameters.vararg.arg] = tuple(given[len(places) :])
    if parameters.kwarg is not None:
        rest = {name: value for name, value in named.items() if name not in every}
        values[parameters.kwarg.arg] = rest
    return values
