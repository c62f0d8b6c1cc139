"""Checks of axes in every call at half of their price: what jaxtyping's import hook asks for, done once a call.

Knows nothing of outpace. Import it as ``axes``: ``conftest.py`` puts this folder on the path.

jaxtyping's decorator binds the arguments by name, checks them, calls, and checks them once more beside the result: more
than half of the time of a test run. Here beartype checks the function itself, inside one scope of axes, and opens none
for a function whose annotations have no axes.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

HONEST = jaxtyping.jaxtyped
SCOPE: Any = HONEST("context")
"""Axes that are bound inside are forgotten outside. It has no state of its own, so that one serves every call."""
CHECK = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
"""Refuses with the error that jaxtyping's own decorator raises, which is a ``TypeError``."""


def _has_axes(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    parts = [part for given in get_args(annotation) for part in (given if isinstance(given, list) else [given])]
    return any(map(_has_axes, parts))


def _checked(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function with its checks; none where only jaxtyping knows how: names not yet defined, generators."""
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return None
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:
        return None
    checked: Callable[..., Any] = CHECK(function)
    if not any(map(_has_axes, hints.values())):
        return checked

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with SCOPE:
            return checked(*args, **kwargs)

    return scoped


def jaxtyped(given: Any = None, *, typechecker: Any = None) -> Any:
    """In place of ``jaxtyping.jaxtyped``, as the import hook calls it, on functions and classes."""
    if given is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if inspect.isclass(given) and is_dataclass(given):
        given.__init__ = _checked(given.__init__) or HONEST(given.__init__, typechecker=typechecker)  # type: ignore[method-assign]
        return given
    return (inspect.isfunction(given) and _checked(given)) or HONEST(given, typechecker=typechecker)
