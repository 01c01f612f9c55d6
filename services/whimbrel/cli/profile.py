"""`whimbrel profile`: set, use, list, show, delete: clusters by name (`profiles.py` has the file)."""

import os
from typing import Annotated

import typer

from whimbrel.cli.endpoint import resolve, running_cluster
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note
from whimbrel.cli.profiles import DEV, Profile, checked_endpoint, complete_name, load, profiles_file, save

__all__ = ["app"]

app = group("Name clusters, and choose the one that commands talk to.")


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Profile name.", autocompletion=complete_name)
]


@app.command("set", epilog=examples("whimbrel profile set prod --endpoint 'ns1:8081;ns2:8081'"))
def set_profile(
    name: NameArgument,
    address: Annotated[
        str, typer.Option("--endpoint", metavar="HOST:PORT", help="Its nameserver; several joined by ;")
    ],
    output: OutputOption = Format.TABLE,
) -> None:
    """Make a profile, or change it."""
    path = profiles_file(os.environ)
    profiles = load(path)
    found = checked_endpoint(address, "--endpoint")
    save(path, profiles.put(name, Profile(found)))
    emit({"name": name, "endpoint": found}, output, columns=("profile", "endpoint"), rows=[(name, found)])
    if profiles.current != name:
        note(f"commands use it with --profile {name}, or all of them after `whimbrel profile use {name}`")


@app.command(
    epilog=examples("whimbrel profile use prod", "whimbrel profile use dev       back to `whimbrel dev`")
)
def use(name: NameArgument, output: OutputOption = Format.TABLE) -> None:
    """Use a profile from now on; `dev` goes back to the cluster of the running `whimbrel dev`."""
    path = profiles_file(os.environ)
    save(path, load(path).use(name))
    emit({"current": name}, output, columns=("profile in use",), rows=[(name,)])


@app.command("list", epilog=examples("whimbrel profile list", "whimbrel profile list -o json"))
def list_profiles(output: OutputOption = Format.TABLE) -> None:
    """List the profiles; a star marks the one in use."""
    profiles = load(profiles_file(os.environ))
    cluster = running_cluster()
    endpoints: dict[str, str | None] = {DEV: None if cluster is None else cluster.endpoint}
    endpoints |= {name: profile.endpoint for name, profile in sorted(profiles.by_name.items())}
    current = profiles.current or DEV
    emit(
        [
            {"name": name, "endpoint": endpoint, "current": name == current}
            for name, endpoint in endpoints.items()
        ],
        output,
        columns=("", "profile", "endpoint"),
        rows=[("*" if name == current else "", name, endpoint) for name, endpoint in endpoints.items()],
    )


@app.command(epilog=examples("whimbrel profile show", "whimbrel profile show prod"))
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Profile name. Default: what a command would use.",
            autocompletion=complete_name,
        ),
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show a profile, or which cluster a command would talk to and what says so."""
    target = resolve("", profile=name)
    path = str(profiles_file(os.environ))
    emit(
        {"endpoint": target.endpoint, "chosen_by": target.origin, "file": path},
        output,
        columns=("endpoint", "chosen by", "file of profiles"),
        rows=[(target.endpoint, target.origin, path)],
    )


@app.command(epilog=examples("whimbrel profile delete prod"))
def delete(name: NameArgument, output: OutputOption = Format.TABLE) -> None:
    """Delete a profile; the cluster is not touched."""
    path = profiles_file(os.environ)
    profiles = load(path)
    save(path, profiles.delete(name))
    emit({"deleted": name}, output, columns=("deleted profile",), rows=[(name,)])
    if profiles.current == name:
        note("it was in use: commands find the running `whimbrel dev` again")
