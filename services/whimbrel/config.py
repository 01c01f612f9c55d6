"""The settings of a process: a frozen dataclass, filled from arguments, environment, file and defaults.

    arguments        --lease-s 8        --lease-s=8      --auto-create-topics   --no-auto-create-topics
    environment      WHIMBREL_NAMESERVER_LEASE_S=8
    TOML file        lease_s = 8                         named by --config or WHIMBREL_NAMESERVER_CONFIG
    default          the field's

The first of these that has a value wins. An unknown name is an error in each source, and so is a bad value:
the text names the source and what is allowed. All that is wrong comes at once. Lists are separated by `,`
or `;`, and a list's argument may be repeated. Whole numbers may carry KiB, MiB or GiB. A value that is one of
a few words may be written in capitals or not.

Each process declares its options next to their use, as a frozen dataclass of `option(...)` fields with a
`process` class variable. Its rules over values are methods named `wrong_...`, which yield a sentence for each
thing that is wrong; its `__post_init__` calls `check_rules`. Where a value can't be read at all, the rules
that look at it say nothing, and all others are heard.

Only this module reads the environment of a process, but for the transport of clients, which run in any
program (`rpc/client/channel.py`), and for the address that Kubernetes tells its pods
(`elections/coordinator.py`). What is known of each setting (`settings`) also makes the help, the sample files
and docs/settings.md; a setting's unit is the end of its name.

This is our own code because pydantic-settings would make the start and the memory of five processes larger.
"""

import dataclasses
import inspect
import math
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from whimbrel.errors import WhimbrelError

__all__ = [
    "ConfigError",
    "Effective",
    "Options",
    "Problems",
    "Setting",
    "build",
    "check_rules",
    "effective",
    "env_prefix",
    "gone",
    "help_text",
    "load",
    "load_or_exit",
    "option",
    "read_arguments",
    "refusal",
    "settings",
    "settings_line",
    "unknown",
    "value_text",
]

# Known names below WHIMBREL_; any other one is a typing error, and is refused.
PROCESSES = ("NAMESERVER", "BROKER", "REPLICATOR")
FOREIGN_PREFIXES = (
    "WHIMBREL_ENDPOINT",
    "WHIMBREL_LANE",
    "WHIMBREL_PROFILE",
    "WHIMBREL_CLIENT_",
    "WHIMBREL_DEV_",
    "WHIMBREL_TEST_",
    "WHIMBREL_BENCH_",
)

# Ends of names, and the unit that each says.
UNITS = {
    "_s": "seconds",
    "_ms": "milliseconds",
    "_hours": "hours",
    "_bytes": "bytes",
    "_bytes_max": "bytes",
    "_file_size": "bytes",
    "_ratio": "share",
    "_ratio_max": "share",
}
# What stands for a value of such a unit in the help.
UNIT_PLACEHOLDERS = {
    "seconds": "SECONDS",
    "milliseconds": "MILLISECONDS",
    "hours": "HOURS",
    "bytes": "BYTES",
}

WHOLE_MAX = (1 << 63) - 1  # of whole numbers: what sizes and times of the system can be
RULE_PREFIX = "wrong_"  # of the methods that are rules
FACTORS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


class ConfigError(WhimbrelError):
    """Settings are unknown, or their values are not allowed.

    Attributes:
        problems: a sentence for each thing that is wrong.
    """

    reason = "CONFIG_ERROR"
    grpc = "INVALID_ARGUMENT"
    effect = "none"

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RulesBroken(ValueError):
    """Values do not go together; `problems` has a sentence for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class Undecided(Exception):
    """A rule looks at a setting whose value is not known, since what was given for it is wrong."""


class Options(Protocol):
    """A frozen dataclass of settings; `process` is the environment's middle part in lower case."""

    process: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


T = TypeVar("T", bound=Options)


def option(
    default: Any,
    *,
    help: str,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    example: Any = None,
    shared: str = "",
) -> Any:
    """Return a dataclass field with what `--help` and the checks need; limits are inclusive.

    Without a value for it, a process does not start if there is an `example`; sample files have that. What
    the variable `shared` says, which several processes have, is the default in place of `default`.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "secret": secret,
        "example": example,
        "shared": shared,
    }
    return dataclasses.field(default=default, metadata=metadata)


def gone(default: Any, why: str) -> Any:
    """Return the field of a setting that is gone: nothing tells of it, and its default is still taken.

    `why` is what every other value is refused with: what is gone, and what to do.
    """
    return dataclasses.field(default=default, metadata={"gone": why})


@dataclasses.dataclass(frozen=True, slots=True)
class Effective:
    """A setting's value, and where it comes from.

    Attributes:
        setting: what is known of the setting.
        value: as the process would have it.
        source: "flag", "variable", "file" or "default".
        where: the flag, the variable, or the file's path; "" for a default.
    """

    setting: "Setting"
    value: Any
    source: str
    where: str

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f"{self.source} {self.where}".rstrip()


def load(cls: type[T], arguments: Sequence[str], environment: Mapping[str, str]) -> T:
    """Return the effective settings.

    Raises:
        ConfigError: names or values are wrong, or the file can't be read: all of that.
        SystemExit: `--help` was asked for and has been written to the standard output.
    """
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(help_text(cls))
        raise SystemExit(0)
    return build(cls, effective(cls, arguments, environment))


def effective(
    cls: type[Options], arguments: Sequence[str], environment: Mapping[str, str], *, rules: bool = True
) -> tuple[Effective, ...]:
    """Return all settings in the order of their declaration; `build` checks the rules over their values.

    What is gone is not among them, but read as the others are.

    Args:
        cls, arguments, environment: of the process.
        rules: an error tells as well which rules the other values break.

    Raises:
        ConfigError: names or values are wrong, or the file can't be read: all of that.
    """
    schema = {setting.name: setting for setting in declared(cls)}
    wrong = Problems()
    from_arguments = read_arguments(schema, arguments, wrong)
    from_environment = read_environment(cls, schema, environment, wrong)
    file = from_arguments.pop("config", None) or from_environment.pop("config", None)
    from_file = {} if file is None else read_file(schema, Path(file), wrong)
    found = []
    for name, setting in schema.items():
        if setting.gone:
            continue
        if name in from_arguments:
            item = Effective(setting, from_arguments[name], "flag", setting.flag)
        elif name in from_environment:
            item = Effective(setting, from_environment[name], "variable", setting.variable)
        elif from_file is None:
            continue
        elif name in from_file:
            item = Effective(setting, from_file[name], "file", str(file))
        elif setting.shared in environment:
            value = wrong.value(setting.parse, environment[setting.shared], setting.shared)
            item = Effective(setting, value, "variable", setting.shared)
        else:
            item = Effective(setting, setting.default, "default", "")
        found.append(item)
    if wrong.problems:
        known = {item.setting.name: item.value for item in found if item.value is not WRONG}
        broken = broken_rules(cls, Known(cls, known)) if rules else ()
        raise ConfigError(*dict.fromkeys((*wrong.problems, *broken)))
    return tuple(found)


def build(cls: type[T], found: Sequence[Effective]) -> T:
    """Return the settings as the process has them.

    Raises:
        ConfigError: they don't go together.
    """
    try:
        return cls(**{item.setting.name: item.value for item in found})
    except RulesBroken as error:
        raise ConfigError(*error.problems) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


WRONG: Any = object()  # in place of a value that was refused


class Problems:
    """Takes down what is wrong while settings are read."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def add(self, error: ConfigError) -> None:
        """Take down what an error says."""
        self.problems += error.problems

    def value(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a reader returns; WRONG where it raises ConfigError."""
        try:
            return read(*arguments)
        except ConfigError as error:
            self.add(error)
            return WRONG


class Known:
    """Stands for settings of which some values are not known: a rule that looks at those is undecided.

    Args:
        cls: the settings' class, whose properties and methods it has.
        values: those that are known, by name.
    """

    def __init__(self, cls: type[Options], values: Mapping[str, Any]) -> None:
        self.known_of, self.known_values = cls, values

    def __getattr__(self, name: str) -> Any:
        """Return a value, or what is derived from values.

        Raises:
            Undecided: it is not known.
        """
        if name in self.known_values:
            return self.known_values[name]
        if name in self.known_of.__dataclass_fields__:
            raise Undecided(name)
        found = inspect.getattr_static(self.known_of, name)
        if isinstance(found, property):
            assert found.fget is not None
            return found.fget(self)
        return types.MethodType(found, self)


def broken_rules(cls: type[Options], values: Any) -> Iterator[str]:
    """Yield what is wrong with values, by the rules of their class.

    Args:
        cls: has the rules.
        values: the settings, or what is `Known` of them.
    """
    for name, rule in vars(cls).items():
        if name.startswith(RULE_PREFIX):
            try:
                yield from rule(values)
            except Undecided:
                continue


def check_rules(options: Options) -> None:
    """Check the rules of settings.

    Raises:
        RulesBroken: values do not go together; it tells all that is wrong.
    """
    if problems := tuple(broken_rules(type(options), options)):
        raise RulesBroken(problems)


def refusal(check: Callable[..., object], *arguments: Any) -> Iterator[str]:
    """Yield why a check refuses its arguments, if it does, by ValueError."""
    try:
        check(*arguments)
    except ValueError as error:
        yield str(error)


def settings(cls: type[Options]) -> "tuple[Setting, ...]":
    """Return what is known of each setting that is not gone, in the order of their declaration."""
    return tuple(setting for setting in declared(cls) if not setting.gone)


def declared(cls: type[Options]) -> "list[Setting]":
    """Return what is known of each setting, those that are gone among them."""
    return [Setting(cls, field) for field in dataclasses.fields(cls)]


def load_or_exit(cls: type[T], arguments: Sequence[str], environment: Mapping[str, str]) -> T:
    """Return the effective settings; write what is wrong, a line for each, and end with exit code 2."""
    try:
        return load(cls, arguments, environment)
    except ConfigError as error:
        sys.stderr.write("".join(f"whimbrel {cls.process}: {problem}\n" for problem in error.problems))
        raise SystemExit(2) from None


def settings_line(options: Options) -> str:
    """Return all settings as one line for the log; secrets are masked."""
    words = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.metadata.get("gone"):
            continue
        if field.metadata.get("secret") and value:
            value = "***"
        elif isinstance(value, tuple):
            value = ",".join(map(str, value))
        words.append(f"{field.name}={value}")
    return " ".join(words)


def help_text(cls: type[Options]) -> str:
    """Return what `--help` writes."""
    prefix = env_prefix(cls)
    lines = [
        f"Usage: whimbrel {cls.process} [--config FILE] [--SETTING VALUE]...",
        "",
        *((cls.__doc__ or "").strip().splitlines()[:1]),
        "",
        f"Every setting can also stand in the environment as {prefix}NAME, or in the TOML file as name;",
        "arguments win over the environment, that over the file.",
        f"`whimbrel config example {cls.process}` prints such a file,",
        f"`whimbrel config show {cls.process}` what is in effect.",
        "",
        "  --config FILE",
        "      read settings from this TOML file",
    ]
    for setting in settings(cls):
        lines.append(f"  {setting.flag} {setting.placeholder}")
        lines.append(f"      {setting.description}")
    return "\n".join(lines) + "\n"


class Setting:
    """One field as a reader of text: `parse` takes text, `check` takes a TOML value.

    Attributes:
        name: as in the TOML file; `flag` and `variable` are its other names.
        kind: type of a value, or of a list's items if `many`.
        choices: the values that are allowed, if they are few.
        unit: of the value, "" for a name, a count or a yes or no.
        shared: the variable that is its default where it is set; "" without one.
        gone: why it is no setting any more; "" of one that is.
    """

    def __init__(self, cls: type[Options], field: dataclasses.Field[Any]) -> None:
        self.name = field.name
        self.flag = flag(field.name)
        self.variable = f"{env_prefix(cls)}{field.name.upper()}"
        self.unit = next((unit for end, unit in UNITS.items() if field.name.endswith(end)), "")
        self.shared: str = field.metadata.get("shared", "")
        self.gone: str = field.metadata.get("gone", "")
        self.default: Any = field.default
        self.metadata = field.metadata
        kind = typing.get_type_hints(cls)[field.name]
        self.choices: tuple[str, ...] = ()
        self.many = False
        if typing.get_origin(kind) is tuple:
            self.many, kind = True, typing.get_args(kind)[0]
        if typing.get_origin(kind) is Literal:
            self.choices, kind = typing.get_args(kind), str
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        assert kind in PARSERS, f"{cls.__name__}.{field.name}: settings can't be of type {kind}"
        self.kind: type[Any] = kind

    @property
    def placeholder(self) -> str:
        """Return what stands for the value in the help."""
        if self.choices:
            return "|".join(self.choices)
        word = {bool: "true|false", int: "N", float: "NUMBER"}
        text = UNIT_PLACEHOLDERS.get(self.unit) or word.get(self.kind, "TEXT")
        return f"{text},..." if self.many else text

    @property
    def type_text(self) -> str:
        """Return the type in words."""
        word = {bool: "true or false", int: "whole number", float: "number", str: "text"}[self.kind]
        return f"list of {word}s" if self.many and self.kind is not str else "list" if self.many else word

    @property
    def allowed(self) -> str:
        """Return which values are allowed, "" if the type says it all."""
        if self.choices:
            return " or ".join(self.choices)
        minimum, maximum = self.metadata.get("minimum"), self.metadata.get("maximum")
        if minimum is not None and maximum is not None:
            return f"{minimum} to {maximum}"
        if maximum is not None:
            return f"{maximum} or less"
        return "" if minimum is None else f"{minimum} or more"

    @property
    def description(self) -> str:
        """Return the line of help."""
        text = self.metadata.get("help", "")
        default = value_text(self.default) or "empty"
        return f"{text}{' ' if text else ''}[{f'{self.shared}, else ' if self.shared else ''}{default}]"

    def parse(self, text: str, source: str) -> Any:
        """Return the value of a text from arguments or environment."""
        if not self.many:
            return self.limited(self.item(text, source), source)
        parts = [part.strip() for part in text.replace(";", ",").split(",")]
        return self.each([part for part in parts if part], lambda part: self.item(part, source), source)

    def each(self, items: Sequence[Any], read: Callable[[Any], Any], source: str) -> tuple[Any, ...]:
        """Return the values of a list's items.

        Raises:
            ConfigError: some are wrong: all of those.
        """
        wrong = Problems()
        values = tuple(wrong.value(lambda item=item: self.limited(read(item), source)) for item in items)
        if wrong.problems:
            raise ConfigError(*wrong.problems)
        return values

    def item(self, text: str, source: str) -> Any:
        """Return one value."""
        try:
            return PARSERS[self.kind](text.strip())
        except ValueError:
            raise ConfigError(f"{source}: {text!r} is not {NOUNS[self.kind]}") from None

    def check(self, value: Any, source: str) -> Any:
        """Return the value of a TOML file, which has types of its own; text is parsed as elsewhere."""
        if isinstance(value, str) and (self.kind is not str or self.many):
            return self.parse(value, source)
        if self.many:
            if not isinstance(value, list):
                raise ConfigError(f"{source}: {value!r} is not a list")
            return self.each(value, lambda item: self.one(item, source), source)
        return self.limited(self.one(value, source), source)

    def one(self, value: Any, source: str) -> Any:
        """Return one value of a TOML file."""
        if self.kind is float and type(value) is int and abs(value) <= WHOLE_MAX:
            value = float(value)
        if type(value) is not self.kind:
            raise ConfigError(f"{source}: {value!r} is not {NOUNS[self.kind]}")
        return value

    def limited(self, value: Any, source: str) -> Any:
        """Return the value if it is within its limits; one of few words as it is written in their list."""
        if self.choices:
            for choice in self.choices:
                if value.casefold() == choice.casefold():
                    return choice
            why = self.gone or f"{value!r} is not one of {', '.join(self.choices)}"
            raise ConfigError(f"{source}: {why}")
        if self.kind is str and any(character < " " for character in value):
            raise ConfigError(f"{source}: {value!r} holds control characters")
        if self.kind is float and not math.isfinite(value):
            raise ConfigError(f"{source}: {value} is not {NOUNS[float]}")
        if self.kind is int and abs(value) > WHOLE_MAX:
            raise ConfigError(f"{source}: the number has too many digits")
        minimum, maximum = self.metadata.get("minimum"), self.metadata.get("maximum")
        if minimum is not None and value < minimum:
            raise ConfigError(f"{source}: {value} is below {minimum}")
        if maximum is not None and value > maximum:
            raise ConfigError(f"{source}: {value} is above {maximum}")
        return value


def whole(text: str) -> int:
    """Return a whole number, which may carry a binary unit."""
    factor = FACTORS.get(text[-3:].upper())
    return int(text) if factor is None else int(text[:-3].strip()) * factor


def truth(text: str) -> bool:
    """Return the value of a yes or no."""
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(text)


PARSERS: dict[type[Any], Callable[[str], Any]] = {str: str, int: whole, float: float, bool: truth}
NOUNS: dict[type[Any], str] = {
    str: "text",
    int: "a whole number (KiB, MiB and GiB are understood)",
    float: "a number",
    bool: "true or false",
}


def value_text(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def flag(name: str) -> str:
    """Return a field's argument."""
    return "--" + name.replace("_", "-")


def env_prefix(cls: type[Options]) -> str:
    """Return the prefix of a process's variables."""
    return f"WHIMBREL_{cls.process.upper()}_"


def unknown(what: str, known: Sequence[str]) -> ConfigError:
    """Return the error for an unknown name, with the nearest known one."""
    import difflib

    near = difflib.get_close_matches(what, known, n=1)
    return ConfigError(f"{what}: no such setting" + (f"; did you mean {near[0]}?" if near else ""))


def read_arguments(
    schema: Mapping[str, Setting], arguments: Sequence[str], wrong: Problems
) -> dict[str, Any]:
    """Return the settings on the command line; `config` is among them when given.

    Args:
        schema: all settings by name.
        arguments: what follows the process's name.
        wrong: takes down what is wrong.
    """
    values: dict[str, Any] = {}
    known = {flag(name): name for name in (*schema, "config")}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            wrong.problems.append(f"{word!r}: what is this? Settings are given as --name value")
            continue
        word, equals, text = word.partition("=")
        negated = known.get("--" + word.removeprefix("--no-")) if word.startswith("--no-") else None
        if negated is not None and negated in schema and schema[negated].kind is bool and not equals:
            values[negated] = False
            continue
        name = known.get(word)
        if name is None:
            wrong.add(unknown(word, tuple(known)))
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)  # its value
            continue
        setting = schema.get(name)
        if not equals:
            if setting is not None and setting.kind is bool and (not rest or rest[0].startswith("--")):
                values[name] = True
                continue
            if not rest:
                wrong.problems.append(f"{word}: a value is missing")
                values[name] = WRONG
                continue
            text = rest.pop(0)
        value = text if setting is None else wrong.value(setting.parse, text, word)
        if setting is not None and setting.many and name in values:
            value = WRONG if WRONG in (value, values[name]) else values[name] + value
        values[name] = value
    return values


def read_environment(
    cls: type[Options], schema: Mapping[str, Setting], environment: Mapping[str, str], wrong: Problems
) -> dict[str, Any]:
    """Return the settings in the environment; `config` is among them when given; `wrong`: see above."""
    values: dict[str, Any] = {}
    prefix = env_prefix(cls)
    for variable, text in environment.items():
        if not variable.startswith("WHIMBREL_"):
            continue
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            if name == "config":
                values[name] = text
            elif name in schema:
                values[name] = wrong.value(schema[name].parse, text, variable)
            else:
                wrong.add(unknown(variable, [f"{prefix}{field.upper()}" for field in (*schema, "config")]))
        elif not variable.startswith((*(f"WHIMBREL_{process}_" for process in PROCESSES), *FOREIGN_PREFIXES)):
            wrong.add(unknown(variable, [f"WHIMBREL_{process}_" for process in PROCESSES]))
    return values


def read_file(schema: Mapping[str, Setting], path: Path, wrong: Problems) -> dict[str, Any] | None:
    """Return the settings in a TOML file, None where it can't be read; `wrong`: see above."""
    try:
        table = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        wrong.problems.append(f"{path}: {error.strerror}")
        return None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        wrong.problems.append(f"{path}: the file is not UTF-8 (line {line})")
        return None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        wrong.problems.append(f"{path}: {error}")
        return None
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name in schema:
            values[name] = wrong.value(schema[name].check, value, f"{path}: {name}")
        else:
            wrong.problems.append(f"{path}: {unknown(name, tuple(schema))}")
    return values
