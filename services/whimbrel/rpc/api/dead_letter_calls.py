"""Outbound calls about the dead letters of one broker; made by `calls.perform`, as those of `admin_calls`."""

from collections.abc import Sequence

from whimbrel.model.cluster import DeadLetter, DeadLetterOutcome, DeadLetterResult
from whimbrel.model.route import Queue
from whimbrel.model.wire import DEAD_LETTER_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import dead_letter_service_pb2 as letters
from whimbrel.rpc.api import convert
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text

__all__ = ["Place", "drop_dead_letters", "list_dead_letters", "replay_dead_letters"]

SERVICE = f"/{DEAD_LETTER_SERVICE}/"
RESULTS = {
    letters.DEAD_LETTER_RESULT_DONE: DeadLetterResult.DONE,
    letters.DEAD_LETTER_RESULT_BEFORE: DeadLetterResult.BEFORE,
    letters.DEAD_LETTER_RESULT_GONE: DeadLetterResult.GONE,
}

Place = tuple[int, int]  # queue id and offset


@of_text
def list_dead_letters(
    group: str, queue: Queue, start: Place | None, *, with_bodies: bool
) -> Outbound[tuple[tuple[DeadLetter, ...], Place | None]]:
    """Ask for some of a group's dead letters; returns them, and where to go on.

    Args:
        group: the consumer group.
        queue: the dead-letter topic at the broker, with any queue id.
        start: where to go on; None: the first one.
        with_bodies: whether bodies are wanted.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[tuple[DeadLetter, ...], Place | None]:
        response = letters.ListDeadLettersResponse.FromString(responses[0])
        found = tuple(
            DeadLetter(
                group=group,
                message=convert.received_message(letter.message, queue),
                origin_topic=letter.origin_topic,
                attempts=letter.attempts or max(letter.message.system_properties.delivery_attempt - 1, 0),
            )
            for letter in response.letters
        )
        after = (response.next.queue_id, response.next.offset) if response.HasField("next") else None
        return found, after

    request = letters.ListDeadLettersRequest(group=group, with_bodies=with_bodies)
    if start is not None:
        place = getattr(request, "from")
        place.queue_id, place.offset = start
    return Outbound(SERVICE + "ListDeadLetters", request.SerializeToString(), decode)


@of_text
def replay_dead_letters(group: str, places: Sequence[Place]) -> Outbound[tuple[DeadLetterOutcome, ...]]:
    """Put dead letters of a group back into their topics; at most DEAD_LETTERS_MAX."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[DeadLetterOutcome, ...]:
        return outcomes_of(letters.ReplayDeadLettersResponse.FromString(responses[0]).outcomes)

    request = letters.ReplayDeadLettersRequest(group=group, places=[place_message(one) for one in places])
    return Outbound(SERVICE + "ReplayDeadLetters", request.SerializeToString(), decode)


@of_text
def drop_dead_letters(group: str, places: Sequence[Place]) -> Outbound[tuple[DeadLetterOutcome, ...]]:
    """Have dead letters of a group count as settled; at most DEAD_LETTERS_MAX."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[DeadLetterOutcome, ...]:
        return outcomes_of(letters.DropDeadLettersResponse.FromString(responses[0]).outcomes)

    request = letters.DropDeadLettersRequest(group=group, places=[place_message(one) for one in places])
    return Outbound(SERVICE + "DropDeadLetters", request.SerializeToString(), decode)


def place_message(place: Place) -> letters.DeadLetterPlace:
    return letters.DeadLetterPlace(queue_id=place[0], offset=place[1])


def outcomes_of(outcomes: Sequence[letters.DeadLetterOutcome]) -> tuple[DeadLetterOutcome, ...]:
    return tuple(
        DeadLetterOutcome(
            result=RESULTS.get(outcome.result, DeadLetterResult.REFUSED), topic=outcome.topic, why=outcome.why
        )
        for outcome in outcomes
    )
