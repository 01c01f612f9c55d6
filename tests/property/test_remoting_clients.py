"""The table of remoting clients beside a plain model: what every member names, and nothing else."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.tables.remoting_clients import SILENT_S, Consumes, Identity, RemotingClients

PEERS = st.sampled_from("abcd")
GROUPS = st.sampled_from("GH")
TOPICS = st.dictionaries(st.sampled_from("TUV"), st.integers(1, 4), max_size=3)


class Members(RuleBasedStateMachine):
    """Connections come, say what they subscribe to, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RemotingClients(compile_filter)
        self.now = 0.0
        # By kind, group and connection: client id, topics with versions, when it was seen.
        self.model: dict[tuple[str, str, str], tuple[str, dict[str, int], float]] = {}

    def group(self, name: str) -> dict[str, dict[str, int]]:
        return {
            peer: topics
            for (kind, group, peer), (_, topics, _) in self.model.items()
            if (kind, group) == ("consumer", name)
        }

    def wanted(self, name: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for topics in self.group(name).values():
            for topic, version in topics.items():
                found[topic] = max(version, found.get(topic, 0))
        return found

    @rule(peer=PEERS, group=GROUPS, client=st.sampled_from("xy"), topics=TOPICS)
    def consumes(self, peer: str, group: str, client: str, topics: dict[str, int]) -> None:
        """Compare who is told."""
        before, known = self.wanted(group), peer in self.group(group)
        named = {
            topic: self.table.subscription(topic, version, f"{peer}{version}", sql=False)
            for topic, version in topics.items()
        }
        told = self.table.consumes(
            peer, Identity(client, "JAVA", 399), Consumes(group=group, topics=named), self.now
        )
        self.model["consumer", group, peer] = client, topics, self.now
        assert told is (not known or before.keys() != self.wanted(group).keys())

    @rule(peer=PEERS, group=GROUPS, client=st.sampled_from("xy"))
    def produces(self, peer: str, group: str, client: str) -> None:
        """A connection may be in both kinds of groups."""
        self.table.produces(peer, Identity(client, "JAVA", 399), group, self.now)
        self.model["producer", group, peer] = client, {}, self.now

    @rule(peer=PEERS, consumer=st.sampled_from(["", "G", "H"]), producer=st.sampled_from(["", "G", "H"]))
    def leaves(self, peer: str, consumer: str, producer: str) -> None:
        """Only the groups that are named."""
        was = self.model.pop(("consumer", consumer, peer), None)
        self.model.pop(("producer", producer, peer), None)
        told = self.table.leave(peer, consumer=consumer, producer=producer)
        assert told == (consumer if was is not None and self.group(consumer) else None)

    @rule(peer=PEERS)
    def closes(self, peer: str) -> None:
        """All of its groups."""
        gone = [key for key in self.model if key[2] == peer]
        for key in gone:
            del self.model[key]
        told = self.table.closed(peer)
        assert sorted(told) == sorted(
            name for kind, name, _ in gone if kind == "consumer" and self.group(name)
        )

    @rule(seconds=st.sampled_from([30.0, SILENT_S / 2, SILENT_S + 1]))
    def time_passes(self, seconds: float) -> None:
        """Those that were silent for too long are gone."""
        self.now += seconds
        gone = [key for key, (_, _, seen) in self.model.items() if self.now - seen > SILENT_S]
        for key in gone:
            del self.model[key]
        told, closed = self.table.expire(self.now)
        expected = {name for kind, name, _ in gone if kind == "consumer" and self.group(name)}
        assert set(told) == expected and len(told) == len(expected)
        assert set(closed) == {key[2] for key in gone} - {key[2] for key in self.model}

    @invariant()
    def is_as_the_model_says(self) -> None:
        """Compare all of it."""
        table = self.table
        for name in "GH":
            found, members = table.group(name), self.group(name)
            assert (found is None) is not bool(members)
            if found is not None:
                assert set(found.members) == set(members)
                subscriptions = {one.topic: one.version for one in found.subscriptions.values()}
                assert subscriptions == self.wanted(name)
                ids = {self.model["consumer", name, peer][0] for peer in members}
                assert found.client_ids() == sorted(ids)
        assert table.count == len(self.model)
        assert table.subscribed == sum(len(topics) for _, topics, _ in self.model.values())
        assert {peer for peer in "abcd" if table.knows(peer)} == {key[2] for key in self.model}
        for client in "xy":
            peers = {key[2] for key, (known, _, _) in self.model.items() if known == client}
            assert set(table.connections_of(client)) == peers
        if not self.model:
            assert table.chars == 0 and not (table.groups or table.producers or table.clients)


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
