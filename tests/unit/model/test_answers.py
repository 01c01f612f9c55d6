"""When a topic's sends are answered: the three texts, and what a topic keeps of them."""

import pytest

from whimbrel.errors import BadRequest
from whimbrel.model.answers import COMMITTED, WRITTEN, answer_text, copies_of, parse_answer
from whimbrel.model.topic import TopicConfig


@pytest.mark.parametrize(
    ("text", "copies"), [("committed", COMMITTED), ("written", WRITTEN), ("acks=1", 1), ("acks=6", 6)]
)
def test_texts_and_copies(text: str, copies: int | None) -> None:
    assert parse_answer(text) == copies
    assert answer_text(copies) == text
    topic = TopicConfig(name="t").with_answer(copies)
    assert topic.answer_copies == copies
    assert TopicConfig.from_bean("t", topic.bean()).answer_copies == copies
    assert topic.with_answer(COMMITTED) == TopicConfig(name="t")


@pytest.mark.parametrize("text", ["", "acks=0", "acks=7", "acks=", "acks=12", "Written", "none", "acks=1\n"])
def test_what_nobody_knows_is_refused_from_people_and_waits_for_the_commit_elsewhere(text: str) -> None:
    with pytest.raises(BadRequest, match="acks=K"):
        parse_answer(text)
    assert copies_of(text) is COMMITTED


def test_the_name_may_have_the_plus_sign_of_rocketmqs_tools() -> None:
    topic = TopicConfig(name="t", attributes={"+whimbrel.answer": "written", "message.type": "NORMAL"})
    assert topic.answer_copies == WRITTEN
    assert topic.with_answer(1).attributes == {"message.type": "NORMAL", "whimbrel.answer": "acks=1"}
