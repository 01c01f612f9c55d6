"""Named clusters: profiles, kept in XDG_CONFIG_HOME/whimbrel/profiles.toml, else below ~/.config.

    current = "prod"                    the one that commands use; missing: none

    [profiles.prod]
    endpoint = "ns1:8081;ns2:8081"      the nameservers

The file is read only by its owner, and is replaced as a whole, so that a reader sees the old or the new one.
Names that we don't know are refused: one of a later version would be lost at the next change.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whimbrel.cli.toml import toml_value
from whimbrel.config import unknown
from whimbrel.errors import ClientError
from whimbrel.model.route import parse_endpoints

__all__ = [
    "DEV",
    "Profile",
    "Profiles",
    "checked_endpoint",
    "complete_name",
    "load",
    "parse",
    "profiles_file",
    "render",
    "save",
]

DEV = "dev"  # no profile of the file: the cluster of the running `whimbrel dev`
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILE_BYTES_MAX = 1 << 20  # thousands of profiles; anything larger is another file
FILE_MODE, FOLDER_MODE = 0o600, 0o700


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a cluster."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Profiles:
    """The content of the file; `current` is "" while no profile is in use."""

    current: str = ""
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Return a profile.

        Raises:
            ClientError: there is none of this name.
        """
        if name not in self.by_name:
            from difflib import get_close_matches

            near = get_close_matches(name, self.by_name, n=1)
            known = f"did you mean {near[0]}?" if near else "`whimbrel profile list` shows them"
            raise ClientError(f"there is no profile {name}; {known}")
        return self.by_name[name]

    def use(self, name: str) -> "Profiles":
        """Return the profiles with this one in use, none for `dev`.

        Raises:
            ClientError: there is none of this name.
        """
        if name != DEV:
            self.get(name)
        return replace(self, current="" if name == DEV else name)

    def put(self, name: str, profile: Profile) -> "Profiles":
        """Return the profiles with this one made or changed.

        Raises:
            ClientError: the name can't be one.
        """
        if name == DEV:
            raise ClientError(
                f"the profile {DEV} is always the cluster of the running `whimbrel dev`; choose another name"
            )
        if not NAME.fullmatch(name):
            raise ClientError(
                f"{name!r} can't be a profile's name: up to 64 letters, digits, dots, - and _ can"
            )
        return replace(self, by_name={**self.by_name, name: profile})

    def delete(self, name: str) -> "Profiles":
        """Return the profiles without this one; if it was in use, none is.

        Raises:
            ClientError: there is none of this name.
        """
        self.get(name)
        rest = {each: profile for each, profile in self.by_name.items() if each != name}
        return Profiles("" if self.current == name else self.current, rest)


def checked_endpoint(text: str, source: str) -> str:
    """Return an endpoint, HOST:PORT or several, as clients take it; `source` says who named it.

    Raises:
        ClientError: it is no such list.
    """
    try:
        return ";".join(map(str, parse_endpoints(text)))
    except ValueError as error:
        raise ClientError(f"{source}: {error}") from error


def parse(text: str) -> Profiles:
    """Return the content of a file.

    Raises:
        ValueError: it is no TOML, or something in it is not known or not allowed; the text says what.
    """
    table = tomllib.loads(text)
    refuse_unknown(table, ("current", "profiles"), "")
    current, entries = table.get("current", ""), table.get("profiles", {})
    if not isinstance(current, str) or not isinstance(entries, dict):
        raise ValueError("current has to be a text, and profiles a table of tables")
    profiles = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ValueError(f"profiles.{name} has to be a table")
        refuse_unknown(entry, ("endpoint",), f"profiles.{name}: ")
        endpoint = entry.get("endpoint")
        if not isinstance(endpoint, str):
            raise ValueError(f"profiles.{name}: endpoint has to be a text, HOST:PORT")
        profiles[name] = Profile(checked_endpoint(endpoint, f"profiles.{name}: endpoint"))
    return Profiles(current, profiles)


def refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in known:
            raise ValueError(f"{where}{unknown(name, known)}")


def render(profiles: Profiles) -> str:
    """Return the content of the file."""
    lines = [
        "# Clusters by name, for the command whimbrel: see `whimbrel profile --help`.",
        f"current = {toml_value(profiles.current)}",
    ]
    for name, profile in sorted(profiles.by_name.items()):
        lines += ["", f"[profiles.{toml_value(name)}]", f"endpoint = {toml_value(profile.endpoint)}"]
    return "\n".join(lines) + "\n"


def profiles_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the file."""
    named = environment.get("XDG_CONFIG_HOME")
    base = Path(named) if named and Path(named).is_absolute() else Path.home() / ".config"
    return base / "whimbrel" / "profiles.toml"


def load(path: Path) -> Profiles:
    """Return the profiles of a file; none while there is no file.

    Raises:
        ClientError: the file can't be read or understood.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        return parse(content.decode())
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ClientError(f"the profiles can't be read: {path}: {error.strerror}") from error
    except (ValueError, ClientError) as error:
        raise ClientError(
            f"the profiles in {path} can't be understood: {error}; mend the file, or move it away"
        ) from error


def save(path: Path, profiles: Profiles) -> None:
    """Replace the file, whole or not at all; a link is kept, and what it leads to replaced.

    Raises:
        ClientError: it can't be written.
    """
    import tempfile  # nothing but a change needs it, and it imports much

    target = path.resolve()
    draft = ""
    try:
        target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)  # mode 0600
        with open(number, "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor, not a path
            file.write(render(profiles))
            file.flush()
            os.fsync(number)
        Path(draft).replace(target)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        raise ClientError(f"the profiles can't be written: {target}: {error.strerror}") from error


def complete_name(incomplete: str) -> list[str]:
    """Return the names that begin so, for a shell; none if the file can't be read."""
    try:
        names = [DEV, *load(profiles_file(os.environ)).by_name]
    except ClientError:
        return []
    return [name for name in names if name.startswith(incomplete)]
