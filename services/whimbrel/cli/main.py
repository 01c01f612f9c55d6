"""The command `whimbrel`: its list of commands, and the exit codes of errors.

Exit codes: 0 done; 1 it could not be done, with one sentence on standard error; 2 the command line is wrong;
130 interrupted.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from whimbrel.cli.command import Command
from whimbrel.cli.completion import COMPLETE_VARIABLE, complete_first_word
from whimbrel.cli.processes import PROCESSES, run_server

__all__ = ["main", "run"]

HELP = """Run a whimbrel cluster, send and receive messages, and look after topics, groups and stores.

Commands that talk to a cluster take --endpoint HOST:PORT or --profile NAME, else the variables
WHIMBREL_ENDPOINT and WHIMBREL_PROFILE, else the profile in use, else they find the cluster of a running
`whimbrel dev`."""

# Headings of `whimbrel --help` and the commands below each; a test sees to it that none is left out.
SECTIONS = {
    "On this machine": ("dev",),
    "Messages": ("send", "recall", "receive", "tail", "pull", "dlq", "trace", "bench"),
    "The cluster": ("topic", "group", "cluster", "drain", "forget", "replication", "health"),
    "Stores and archives": ("store", "restore", "spark"),
    "Settings": ("config", "profile"),
    "The processes of a cluster, each with flags of its own": tuple(PROCESSES),
}

BROKER_COMMANDS = ("drain", "forget")  # `broker` alone is the server, which takes no such word
INTERRUPTED = 130  # as shells report a process that SIGINT ended


def main(arguments: Sequence[str]) -> int:
    """Run one command line, without the program's name; return the exit code."""
    if list(arguments[:1]) == ["broker"] and arguments[1:2] and arguments[1] in BROKER_COMMANDS:
        arguments = arguments[1:]
    if arguments and arguments[0] in PROCESSES:
        run_server(arguments[0], arguments[1:])
        return 0
    # grpcio writes connection failures to standard error by itself; they are raised as our errors anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # So are the warnings that the client library logs while it retries, unless a command sets up logging.
    logging.getLogger("whimbrel").addHandler(logging.NullHandler())
    from whimbrel.errors import WhimbrelError

    try:
        completing = COMPLETE_VARIABLE in os.environ
        if completing:
            done = complete_first_word(os.environ, {name: entry.help for name, entry in commands().items()})
            if done is not None:
                return done
            from typer.completion import completion_init  # type: ignore[attr-defined]

            completion_init()  # typer does so itself only with the options that install a completion
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
        return fail(explain(error))
    except OSError as error:  # of a file or folder that is an argument
        return fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return 0


def fail(sentence: str) -> int:
    """Tell why the command could not do its work; return the exit code."""
    from whimbrel.cli.output import note

    note(f"whimbrel: {sentence}")
    return 1


def explain(error: Exception) -> str:
    """Return the error as one sentence, with what to do about it where that is known."""
    from whimbrel.cli.endpoint import naming_origin
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

    plain = str(error).strip().rstrip(".") or type(error).__name__
    text = naming_origin(plain)
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
            return text
    return text if hint in text else f"{text}; {hint}"


def commands() -> dict[str, Command]:
    """Return the commands by name, in the order in which a shell lists them."""
    return {
        "dev": Command(
            "whimbrel.cli.dev", "app", "Run a whole cluster on this machine; start, stop, status, purge."
        ),
        "topic": Command("whimbrel.cli.topic", "app", "Create, list, describe, update and delete topics."),
        "group": Command("whimbrel.cli.group", "app", "The same for consumer groups; reset their offsets."),
        "send": Command("whimbrel.cli.send", "send", "Send messages to a topic."),
        "receive": Command("whimbrel.cli.receive", "receive", "Receive messages as a consumer group."),
        "tail": Command("whimbrel.cli.tail", "tail", "Print a topic's messages as they come."),
        "pull": Command("whimbrel.cli.pull", "pull", "Read a queue from an offset on."),
        "recall": Command("whimbrel.cli.recall", "recall", "Take a delayed message back."),
        "dlq": Command("whimbrel.cli.dlq", "app", "Dead letters: list, put back into their topics, drop."),
        "bench": Command("whimbrel.cli.bench", "app", "Measure sends, receives, and the way of a message."),
        "drain": Command("whimbrel.cli.drain", "drain", "The same as broker drain: empty a broker."),
        "forget": Command("whimbrel.cli.forget", "forget", "The same as broker forget: let go of a broker."),
        "cluster": Command("whimbrel.cli.cluster", "cluster", "Show the brokers that live."),
        "health": Command("whimbrel.cli.health", "health", "Tell whether the cluster works, for scripts."),
        "replication": Command("whimbrel.cli.replication", "app", "Show who follows whom, and how far."),
        "trace": Command("whimbrel.cli.trace", "trace", "Show the way of one message, with its timings."),
        "store": Command("whimbrel.cli.store", "store", "Dump, verify and recover store directories."),
        "restore": Command("whimbrel.cli.restore", "restore", "Put a backup of a store in its place."),
        "spark": Command("whimbrel.cli.spark", "jobs", "Archive, replay, audit and measure, with Spark."),
        "config": Command(
            "whimbrel.cli.config", "app", "Show settings and where they come from; sample files."
        ),
        "profile": Command("whimbrel.cli.profile", "app", "Name clusters, and choose the one that is meant."),
        **{name: Command("whimbrel.cli.server_commands", name, text) for name, text in PROCESSES.items()},
    }


def command_line(*, options: bool) -> Any:
    """Return the root command; imports typer, and no command's module.

    It has its own `options` only where a command line may name one: typer imports pydantic to read them,
    which takes as long as all the rest of a help page.
    """
    import typer

    from whimbrel.cli.lazy import LazyGroup, examples

    class Root(LazyGroup):
        """The commands of `whimbrel`."""

        table = commands()
        sections = SECTIONS

    app = typer.Typer(
        cls=Root,
        help=HELP,
        epilog=examples(
            "whimbrel dev                               a cluster on this machine, until Ctrl-C",
            "whimbrel topic create orders --queues 8",
            "whimbrel send orders 'hello' --tag new --key 4711",
            "whimbrel receive orders --group billing",
            "whimbrel replication status --watch",
            "whimbrel COMMAND --help                    options and more examples",
        ),
        no_args_is_help=True,
        add_completion=options,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def show_version(asked: bool) -> None:
        if asked:
            import whimbrel
            from whimbrel.machine import MACHINE

            print(f"whimbrel {whimbrel.__version__}, {MACHINE.lane.described()}")
            raise typer.Exit

    def root(
        version: Annotated[
            bool,
            typer.Option(
                "--version", help="Print the version and exit.", is_eager=True, callback=show_version
            ),
        ] = False,
    ) -> None:
        pass

    app.callback()(root if options else lambda: None)
    return typer.main.get_command(app)


def run() -> None:
    """Entry point of the installed program."""
    sys.exit(main(sys.argv[1:]))
