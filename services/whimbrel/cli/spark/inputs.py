"""Options of commands for what jobs read: running brokers, a store directory or an archive; some topics.

They are turned into options of `format("whimbrel")`. Without topics, all but system topics are read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption
from whimbrel.cli.spark.running import endpoint_or_exit, local_folder

__all__ = [
    "ArchiveOption",
    "EndpointOption",
    "HtmlOption",
    "PerOption",
    "StoreOption",
    "TopicOption",
    "check_inputs",
    "checked_page",
    "parse_duration",
    "source_options",
    "topic_names",
]

EVERYTHING = ".*"  # a pattern does not match system topics
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="Read a store directory, ours or RocketMQ's, in place of running brokers.",
        show_default=False,
        callback=local_folder,
    ),
]
ArchiveOption = Annotated[
    str,
    typer.Option(
        "--archive",
        metavar="ROOT",
        help="Read an archive that `whimbrel spark archive` wrote.",
        show_default=False,
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="This topic alone; may be repeated. Default: all.",
        show_default=False,
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also draw it, as one page that opens offline.",
        show_default=False,
        callback=local_folder,
    ),
]
PerOption = Annotated[
    str,
    typer.Option("--per", metavar="TIME", help="A row for each 30s, 5m, 1h, 1d...", show_default=False),
]


def source_options(
    endpoint: str,
    store: Path | None,
    archive: str,
    topics: list[str] | None,
    *,
    allow_partial: bool = False,
) -> dict[str, str]:
    """Return the options of `format("whimbrel")`.

    Args:
        endpoint: a nameserver; "" without --endpoint, which then has its default if nothing else is named.
        store: a store directory.
        archive: root of an archive.
        topics: their names; none for all.
        allow_partial: of brokers, read what is there.

    Raises:
        typer.BadParameter: more than one of the three is named, or a path is not there.
        typer.Exit: none is named, and no cluster runs; a sentence was printed.
    """
    given = [
        name
        for name, value in (("--endpoint", endpoint), ("--store", store), ("--archive", archive))
        if value
    ]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other: name one")
    names = topic_names(topics)
    chosen = {"subscribe": ",".join(names)} if names else {"subscribePattern": EVERYTHING}
    if allow_partial:
        chosen["allowPartial"] = "true"
    if store is not None:
        if not store.is_dir():
            raise typer.BadParameter(f"--store {store}: there is no such folder")
        return {"store": str(store.resolve()), **chosen}
    if archive:
        return {"archive": archive, **chosen}
    return {"servers": endpoint_or_exit(endpoint), **chosen}


def check_inputs(source: Mapping[str, str], html: Path | None, *, path: str = "", hint: str = "") -> None:
    """Raise why a job can't read what it is to read, or can't draw its page; before Spark starts.

    Args:
        source: as `source_options` returned them; empty for none.
        html: the page; None for none.
        path: a file or folder that is read; "" for none.
        hint: what to do if that is not there.
    """
    from whimbrel.spark.before import check_path, check_source
    from whimbrel.spark.plots import check_plotly

    if path:
        check_path(path, hint)
    if html is not None:
        check_plotly()
    if source:
        check_source(source)


def topic_names(topics: list[str] | None) -> tuple[str, ...]:
    """Return the topics that `--topic` names, which may join several by commas; none for all."""
    return tuple(name.strip() for entry in topics or () for name in entry.split(",") if name.strip())


def parse_duration(name: str, text: str) -> int:
    """Return whole seconds, 1 or more; `name` is the option they came with.

    Raises:
        typer.BadParameter: it is no duration.
    """
    found = re.fullmatch(r"(\d+)\s*([smhd])", text.strip().lower())
    if not found or not int(found[1]):
        raise typer.BadParameter(f"{name} {text!r} is not a time such as 30s, 5m, 1h, 1d")
    return int(found[1]) * UNITS_S[found[2]]


def checked_page(html: Path | None) -> Path | None:
    """Return the path of a page; checked before the job runs.

    Raises:
        typer.BadParameter: its folder is not there, or the path is a folder.
    """
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise typer.BadParameter(f"--html {html}: name a file in a folder that is there")
    return html
