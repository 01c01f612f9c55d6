"""What the tests of containers do with an engine that gives up."""

from typing import Any

import docker.errors
import pytest

from containers.rig import freeze


class Container:
    """One whose engine gives these answers, and then does it."""

    name = "broker"

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), 0

    def pause(self) -> None:
        self.asked += 1
        if self.answers:
            raise docker.errors.APIError(self.answers.pop(0))


def test_an_engine_that_can_not_freeze_a_container_is_asked_again() -> None:
    container: Any = Container(*["OCI runtime pause failed: unable to freeze: unknown"] * 2)
    freeze(container)
    assert container.asked == 3


def test_other_errors_are_not_hidden() -> None:
    container: Any = Container("no such container")
    with pytest.raises(docker.errors.APIError, match="no such container"):
        freeze(container)
    assert container.asked == 1
