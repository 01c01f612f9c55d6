"""The first and the last lines of every program: Ctrl-C ends it in silence, also while it imports.

A program imports what it needs itself, within `run`: an interrupt comes anywhere, and imports take most of a
command's first half second. Modules that start programs import nothing above that. What is interrupted ends
with INTERRUPTED; a server that has its own handlers by then ends as they say.

    python -m whimbrel.starting MODULE ARGUMENT...     runs `main` of a module so, which returns the exit code
"""

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

__all__ = ["INTERRUPTED", "run"]

AGAIN_S = 0.001  # until an interrupt that was swallowed comes again; if that is too early, it comes once more
INTERRUPTED = 130  # as shells report a process that SIGINT ended


def run(program: "Callable[[], int]") -> "NoReturn":
    """Run a program, and end this process with its exit code."""
    try:
        keep_interrupts()
        code = program()
    except KeyboardInterrupt:
        code = INTERRUPTED
    finish()
    sys.exit(code)


def keep_interrupts() -> None:
    """Have an interrupt that comes where nothing can be raised, as in a finalizer, come again after it.

    The interpreter would print its traceback, and go on.
    """
    before = sys.unraisablehook

    def told(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            import signal

            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            before(unraisable)

    sys.unraisablehook = told


def finish() -> None:
    """Have Ctrl-C end this process at once: it only waits for threads, and tears modules down."""
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def main() -> int:
    """Run the module that the command line names; return its exit code."""
    from importlib import import_module

    return import_module(sys.argv.pop(1)).main()  # type: ignore[no-any-return]


if __name__ == "__main__":
    run(main)
