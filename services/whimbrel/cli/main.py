"""The command `whimbrel`: from the words of a command line to its exit code, and the sentences of errors.

Exit codes: 0 done; 1 it could not be done, with one sentence on standard error; 2 the command line is wrong;
130 interrupted. What takes time is imported where Ctrl-C is caught already (`starting.py`).
"""

import io
import os
import sys

from whimbrel.starting import INTERRUPTED
from whimbrel.starting import run as run_program

TYPE_CHECKING = False  # as in `starting.py`
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "run"]


def main(arguments: "Sequence[str]") -> int:
    """Run one command line, without the program's name; return the exit code."""
    from whimbrel.cli.processes import BROKER_COMMANDS, PROCESSES, run_server

    if list(arguments[:1]) == ["broker"] and arguments[1:2] and arguments[1] in BROKER_COMMANDS:
        arguments = arguments[1:]
    if arguments and arguments[0] in PROCESSES:
        run_server(arguments[0], arguments[1:])
        return 0
    # grpcio writes connection failures to standard error by itself; they are raised as our errors anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import logging

    # So are the warnings that the client library logs while it retries, unless a command sets up logging.
    logging.getLogger("whimbrel").addHandler(logging.NullHandler())
    from whimbrel.cli.completion import COMPLETE_VARIABLE, complete_first_word
    from whimbrel.cli.root import command_line, commands
    from whimbrel.errors import WhimbrelError, file_trouble

    try:
        completing = COMPLETE_VARIABLE in os.environ
        if completing:
            done = complete_first_word(os.environ, {name: entry.help for name, entry in commands().items()})
            if done is not None:
                return done
            from whimbrel.cli.shells import register

            register()
        options = not completing and (not arguments or arguments[0].startswith("-"))
        command_line(options=options).main(args=list(arguments), prog_name="whimbrel")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter's last flush must not fail because of that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except WhimbrelError as error:
        from whimbrel.cli.down import sentences

        down = sentences(error)
        return fail(explain(error, hint=not down), *down)
    except OSError as error:  # of a file or folder that is an argument
        return fail(file_trouble(error))
    return 0


def fail(*sentences: str) -> int:
    """Tell why the command could not do its work; return the exit code."""
    from whimbrel.cli.output import note

    for sentence in sentences:
        note(f"whimbrel: {sentence}")
    return 1


def explain(error: Exception, *, hint: bool = True) -> str:
    """Return the error as one sentence; with a `hint`: and what to do about it, where that is known."""
    text = naming(error)
    more = hint_of(error, text) if hint else ""
    return text if more in text else f"{text}; {more}"


def naming(error: Exception) -> str:
    """Return the error's text, with what has named the address in it."""
    from whimbrel.cli.endpoint import naming_origin

    return naming_origin(text_of(error))


def text_of(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def hint_of(error: Exception, text: str) -> str:
    """Return what to do about an error that is told so; empty where nothing is known."""
    from whimbrel.errors import (
        AlreadyExists,
        ClientError,
        ClusterUnreachable,
        GroupNotFound,
        NoBroker,
        NotSupported,
        RequestTimeout,
        TopicNotFound,
        Unavailable,
    )

    plain = text_of(error)
    option = "--endpoint" if text == plain else "that"
    match error:
        case NoBroker():
            hint = "start one, or give another nameserver's address with --endpoint"
        case TopicNotFound() if "is registered" in plain:
            hint = "`whimbrel health` says what is missing"
        case TopicNotFound():
            hint = "create it with `whimbrel topic create NAME`, or see `whimbrel topic list`"
        case GroupNotFound():
            hint = "create it with `whimbrel group create NAME`, or see `whimbrel group list`"
        case AlreadyExists():
            hint = "use `update` to change it"
        case ClusterUnreachable():
            hint = f"is the cluster running, and is {option} the nameserver's address?"
        case Unavailable() if plain.startswith("no answer from"):
            hint = f"is the cluster running, and is {option} the nameserver's address?"
        case NotSupported() if "does not serve" in plain:
            hint = f"is {option} the nameserver's address, and of this version?"
        case RequestTimeout():
            hint = f"is {option} the address of a nameserver, and is it busy or hung?"
        case ClientError() | _:
            return ""
    return hint


def run() -> None:
    """Entry point of the installed program."""
    run_program(program)


def program() -> int:
    """Run the command line of this process; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it may be closed
            # A path may hold any bytes, and a terminal may lack characters.
            stream.reconfigure(errors="backslashreplace")
    return main(sys.argv[1:])
