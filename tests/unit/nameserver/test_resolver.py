"""Names in access points: looked up once, remembered shortly, bounded."""

import asyncio
from collections.abc import Sequence

from whimbrel.nameserver.addresses import Meanings
from whimbrel.nameserver.resolver import KNOWN_S, LOOKUPS_MAX, NAMES_MAX, Resolver


class Directory:
    """A name service that answers when it is told to."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.now = 0.0
        self.resolver = Resolver(self.lookup, clock=lambda: self.now)
        self.got: list[Meanings] = []

    async def lookup(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        await self.open.wait()
        if name not in self.names:
            raise OSError(f"{name}: nobody knows it")
        return [self.names[name]]

    def ask(self, *hosts: str) -> None:
        self.resolver.when_known(hosts, self.got.append)

    async def settle(self) -> None:
        while self.resolver.tasks:
            await asyncio.gather(*self.resolver.tasks)


async def test_addresses_and_loopback_are_answered_at_once() -> None:
    directory = Directory()
    directory.ask("10.0.0.1", "localhost")
    assert (directory.got, directory.asked) == ([{}], [])


async def test_name_is_looked_up_once_and_remembered_for_a_while() -> None:
    directory = Directory(nameserver="172.18.0.2")
    directory.open.clear()
    directory.ask("nameserver")
    directory.ask("nameserver")
    assert directory.got == []
    directory.open.set()
    await directory.settle()
    directory.ask("nameserver")
    assert directory.got == [{"nameserver": {"172.18.0.2"}}] * 3
    assert directory.asked == ["nameserver"]
    directory.now += KNOWN_S
    directory.names["nameserver"] = "172.18.0.9"
    directory.ask("nameserver")
    await directory.settle()
    assert directory.got[-1] == {"nameserver": {"172.18.0.9"}}


async def test_unknown_name_means_nothing_and_several_are_waited_for() -> None:
    directory = Directory(a="::ffff:10.0.0.1")
    directory.ask("a", "b")
    await directory.settle()
    assert directory.got == [{"a": {"10.0.0.1"}, "b": set()}]


async def test_one_lookup_too_many_means_nothing_rather_than_waiting() -> None:
    directory = Directory()
    directory.open.clear()
    for count in range(LOOKUPS_MAX):
        directory.ask(f"n{count}")
    directory.ask("one-too-many")
    assert directory.got == [{"one-too-many": set()}]
    directory.ask("x" * 254)
    assert directory.got[-1] == {}
    directory.open.set()
    await directory.settle()
    assert len(directory.got) == LOOKUPS_MAX + 2


async def test_only_so_many_names_are_remembered() -> None:
    directory = Directory()
    for count in range(NAMES_MAX + 5):
        directory.ask(f"n{count}")
        await directory.settle()
    assert len(directory.resolver.known) == NAMES_MAX


async def test_failing_answer_does_not_keep_the_others_waiting() -> None:
    directory = Directory(a="10.0.0.1")
    directory.open.clear()

    def fail(meanings: Meanings) -> None:
        raise ValueError("a bug")

    directory.resolver.when_known(["a"], fail)
    directory.ask("a")
    directory.open.set()
    await directory.settle()
    assert directory.got == [{"a": {"10.0.0.1"}}]
