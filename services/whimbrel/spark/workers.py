"""What our code does in Spark's Python workers besides its work: errors of one sentence, and no noise.

    an error of ours        goes to the driver without a traceback: PySpark hides it when SPARK_HIDE_TRACEBACK
                            is set, which a worker that fails sets for itself. It ends with the error.
    a task that is cut off  `limit` and `show` stop reading while rows are still on their way. Spark closes
                            the worker's socket then, and since SPARK-54344 the worker ends with the traceback
                            of a BrokenPipeError, though nothing is wrong. A worker that has read with us
                            leaves this one traceback out.

Other errors, of user functions for instance, keep their tracebacks. On the driver nothing is changed.
"""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import ParamSpec, TypeVar

__all__ = ["in_one_sentence", "in_worker", "leave_out_cut_off_tasks", "without_traceback"]

P = ParamSpec("P")
R = TypeVar("R")

HIDE_VARIABLE = "SPARK_HIDE_TRACEBACK"
OURS = __name__.partition(".")[0]
READER_HAS_GONE = (BrokenPipeError, ConnectionResetError)


def in_worker() -> bool:
    """Return whether this process is one of Spark's Python workers."""
    return main_module().startswith("pyspark.")


def main_module() -> str:
    """Return the name of the module that this process runs; "" for a script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else ""


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Within a worker, have an error of ours that leaves the block shown without its traceback."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] == OURS and in_worker():
            os.environ[HIDE_VARIABLE] = "1"
        raise


def without_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that Spark calls in a worker, with `in_one_sentence` around it."""

    @functools.wraps(function)
    def wrapped(*given: P.args, **named: P.kwargs) -> R:
        with in_one_sentence():
            return function(*given, **named)

    return wrapped


def leave_out_cut_off_tasks() -> None:
    """Have the worker that runs this end in silence when its reader has gone."""
    if main_module() == "pyspark.daemon" and hasattr(sys.modules["__main__"], "traceback"):
        quiet = SimpleNamespace(**vars(traceback))
        quiet.print_exc = print_other_errors
        sys.modules["__main__"].traceback = quiet  # type: ignore[attr-defined]


def print_other_errors() -> None:
    """Print the error in hand, unless it tells that who reads this worker's output has gone."""
    if not isinstance(sys.exception(), READER_HAS_GONE):
        traceback.print_exc()
