"""The commands of `whimbrel`, and the root of its command line."""

from typing import Annotated, Any

from whimbrel.cli.command import Command
from whimbrel.cli.processes import PROCESSES

__all__ = ["SECTIONS", "command_line", "commands"]

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
    found = typer.main.get_command(app)
    if options:  # they register typer's own
        from whimbrel.cli.shells import register

        register()
    return found
