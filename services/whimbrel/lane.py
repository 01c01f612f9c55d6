"""The compiled lane: what `native/` makes of whimbrel's plain case, where it is installed.

The module `whimbrel_lane` comes with the wheel (`native/build_lane.py`); this module alone imports it. In a
wheel without the lane it is a few lines of Python, and its WHY says why. The lane does only what is plain,
and says of the rest that it is not its own before anything is written; Python then does it, and does
everything where there is no lane. So a lane can be switched off at any moment, and is:

    auto      it is used if it is there and can be used; else Python does it all
    off       it is not used
    required  without it, no start

What a process has of it stands in its `Machine`. Adapters, beside the Python code that they replace, ask
`active` before each use and hand what goes wrong to `broke`: a panic of the lane is caught, logged and
counted, and switches it off in this process. A process that dies within the lane leaves a trace in the page
of marks (`store/lane_passes.py`), and the next one runs without.
"""

import importlib
import logging
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Literal
from zlib import crc32

from whimbrel.errors import StoreError

__all__ = ["Choice", "Lane", "sources"]

logger = logging.getLogger(__name__)

Choice = Literal["auto", "off", "required"]
MODULE = "whimbrel_lane"
VARIABLE = "WHIMBREL_LANE"  # of commands that open a store; a default of broker and replicator
ABSENT = "it is not installed (`make setup` builds it in a checkout)"
COST = "sends are about 4 times slower"  # docs/benchmarks.md


def sources() -> str:
    """Return the CRC-32 of the lane's sources in this checkout, in hexadecimal digits; "" without any."""
    native = Path(__file__).resolve().parents[2] / "native"
    digest = 0
    paths = sorted(path for folder in ("core", "binding") for path in (native / folder / "src").rglob("*.rs"))
    for path in paths:
        digest = crc32(path.read_bytes(), digest)
    return f"{digest:08x}" if paths else ""


class Lane:
    """The lane of a process.

    Attributes:
        native: the module `whimbrel_lane`; None where it is not used.
        why: why it is not used, as it follows "because"; "" while it is.
        unusable: it is there, and can't be used.
        failures: panics so far; the first one switches it off.
        messages, delivered, acknowledged: those that it has stored for producers, made for consumers, and
            marked as done for them.
    """

    def __init__(self, choice: Choice = "auto") -> None:
        """Load it, as `choice` says.

        Raises:
            StoreError: it is required, and can't be used.
        """
        self.choice = choice
        self.native: ModuleType | None = None
        self.why, self.failures, self.unusable = "", 0, False
        self.messages = self.delivered = self.acknowledged = 0
        if choice == "off":
            self.why = "it is switched off"
            return
        try:
            native = importlib.import_module(MODULE)
        except ImportError as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name == MODULE
            self.leave(ABSENT if absent else f"it can't be loaded: {error}", unusable=not absent)
            return
        why = getattr(native, "WHY", None)
        if platform.machine() != "x86_64":
            self.leave(f"it is not offered for {platform.machine()}", unusable=why is None)
        elif why is not None:
            self.leave(why)
        elif native.SOURCES != (sources() or native.SOURCES):
            self.leave("it was built from other sources (`make setup` builds it again)", unusable=True)
        else:
            self.native = native

    @classmethod
    def of_environment(cls) -> "Lane":
        """Load it as the variable WHIMBREL_LANE says, by default if it is there.

        Raises:
            StoreError: the variable says something else, or it is required and can't be used.
        """
        text = os.environ.get(VARIABLE, "auto")
        for choice in ("auto", "off", "required"):
            if text == choice:
                lane = cls(choice)
                if lane.unusable:
                    logger.warning("%s", lane.described())
                return lane
        raise StoreError(f"{VARIABLE} is {text!r}: say auto, off or required")

    @property
    def active(self) -> bool:
        """Whether it is used."""
        return self.native is not None

    def leave(self, why: str, *, unusable: bool = False) -> None:
        """Go on without it.

        Raises:
            StoreError: it is required.
        """
        if self.choice == "required":
            raise StoreError(
                f"the compiled lane is required, and off, because {why}; docs/lane.md says how to have it,"
                " and with lane=auto there is a start without it"
            )
        self.native, self.why, self.unusable = None, why, unusable

    def described(self) -> str:
        """Return whether it is used, and else why not and what that costs."""
        return f"lane {self}"

    def tell(self) -> None:
        """Write it into the log, as one of a process's first lines."""
        wanted = self.active or self.choice == "off"
        logger.log(logging.INFO if wanted else logging.WARNING, "%s", self.described())

    def died_within(self) -> None:
        """Take note that the process before this one died within the lane: it may do so again."""
        if not self.active:
            return
        if self.choice == "required":
            logger.warning("the process before this one died within the compiled lane, which is required")
            return
        self.native, self.why = None, "the process before this one died within it: it is left out once"
        logger.warning(
            "the process before this one died within the compiled lane: this one runs without it; unless it"
            " was killed from outside, please report this"
        )

    def broke(self, error: BaseException) -> None:
        """Take note of a panic, and go on without the lane whatever was chosen: nothing is lost by that."""
        self.failures += 1
        self.native, self.why = None, f"it has a fault: {error}"
        logger.error("the compiled lane has a fault and is switched off: %s; please report this", error)

    def __str__(self) -> str:
        return "on" if self.active else f"off, because {self.why}: {COST}"
