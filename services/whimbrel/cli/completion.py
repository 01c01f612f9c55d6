"""Completes the first word behind `whimbrel`, without importing commands or typer.

A shell asks at each TAB, so this has to be fast. All other words are completed by typer, whose scripts
(`whimbrel --install-completion`) ask both:

    bash    COMP_WORDS, COMP_CWORD: all words, and which one is incomplete   a name a line
    zsh     _TYPER_COMPLETE_ARGS: the line up to the cursor                  a call of _arguments
    fish    the same; _TYPER_COMPLETE_FISH_ACTION is is-args or get-args     a name, a tab, its help a line

`_WHIMBREL_COMPLETE` is `complete_SHELL`. A fish that asks `is-args` wants an exit code: 0 if there is
something.
"""

import shlex
from collections.abc import Mapping

__all__ = ["COMPLETE_VARIABLE", "complete_first_word"]

COMPLETE_VARIABLE = "_WHIMBREL_COMPLETE"

OPTIONS = {
    "--version": "Print the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell.",
    "--help": "Show the commands and exit.",
}


def complete_first_word(environment: Mapping[str, str], commands: Mapping[str, str]) -> int | None:
    """Print what a shell asks for if that is the first word; return the exit code.

    Args:
        environment: the shell's question.
        commands: one-line help by name.

    Returns:
        None if typer has to answer: another word is incomplete, or the shell is another one.
    """
    shell = environment[COMPLETE_VARIABLE].removeprefix("complete_")
    start = incomplete_word(shell, environment)
    if start is None:
        return None
    words = OPTIONS if start.startswith("-") else commands
    found = {name: text for name, text in words.items() if name.startswith(start)}
    match shell:
        case "bash":
            print("\n".join(found))
        case "zsh":
            print(zsh_call(found))
        case _:
            if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
                return 0 if found else 1
            print("\n".join(f"{name}\t{text}" for name, text in found.items()))
    return 0


def incomplete_word(shell: str, environment: Mapping[str, str]) -> str | None:
    """Return what there is of the first word, None if another one is to be completed."""
    if shell == "bash":
        words = environment.get("COMP_WORDS", "").split()
        if environment.get("COMP_CWORD") != "1":
            return None
        return words[1] if len(words) > 1 else ""
    if shell not in ("zsh", "fish"):
        return None
    line = environment.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(line)
    except ValueError:  # a quote is open
        return None
    if line.endswith(" "):
        words.append("")
    return words[1] if len(words) == 2 else None


def zsh_call(found: Mapping[str, str]) -> str:
    """Return the call that shows names with their help; zsh completes files where nothing is found."""
    if not found:
        return "_files"
    rows = "\n".join(f'"{name}":"{zsh_quoted(text)}"' for name, text in found.items())
    return f"_arguments '*: :(({rows}))'"


def zsh_quoted(text: str) -> str:
    """Return a text for zsh, which evaluates it within both kinds of quotes."""
    for plain, quoted in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
        text = text.replace(plain, quoted)
    return text
