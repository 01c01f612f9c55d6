"""The compiled lane: what `native/` makes of whimbrel's plain case, where it is installed.

`whimbrel_fast` is a distribution of its own (extra `fast`); this module alone imports it. It does only what
is plain, and says of the rest that it is not its own before anything is written; Python then does it, and
does everything where there is no lane. So a lane can be switched off at any moment, and is:

    auto      it is used if it is there and of this version; else Python does it all. What is there and can't
              be used is worth one warning, what is not there is not.
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

from whimbrel import __version__
from whimbrel.errors import StoreError

__all__ = ["Choice", "Lane", "sources"]

logger = logging.getLogger(__name__)

Choice = Literal["auto", "off", "required"]
MODULE = "whimbrel_fast"
VARIABLE = "WHIMBREL_LANE"  # for what has no settings: commands that open a store, and tests


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
        native: the module `whimbrel_fast`; None where it is not used.
        version: of it; "" where there is none.
        why: why it is not used, for people; "" while it is.
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
        self.version, self.why, self.failures = "", "", 0
        self.messages = self.delivered = self.acknowledged = 0
        if choice == "off":
            self.why = "switched off"
            return
        try:
            native = importlib.import_module(MODULE)
        except ModuleNotFoundError as error:
            self.leave("not installed" if error.name == MODULE else f"can't be loaded: {error}")
        except ImportError as error:
            self.leave(f"can't be loaded: {error}")
        else:
            self.version = native.VERSION
            if self.version != __version__:
                self.leave(f"of version {self.version}, and this is whimbrel {__version__}")
            elif platform.machine() != "x86_64":
                self.leave(f"not offered for {platform.machine()}")
            elif native.SOURCES != (sources() or native.SOURCES):
                self.leave("not built from the sources that are here (`make setup` builds it)")
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
                return cls(choice)
        raise StoreError(f"{VARIABLE} is {text!r}: say auto, off or required")

    @property
    def active(self) -> bool:
        """Whether it is used."""
        return self.native is not None

    def leave(self, why: str) -> None:
        """Go on without it.

        Raises:
            StoreError: it is required.
        """
        if self.choice == "required":
            raise StoreError(
                f"the compiled lane is required, and it is {why}: install whimbrel[fast], or set lane to auto"
            )
        self.native, self.why = None, why
        if why != "not installed":
            logger.warning("the compiled lane is %s: going on without it", why)

    def died_within(self) -> None:
        """Take note that the process before this one died within the lane: it may do so again."""
        if not self.active:
            return
        if self.choice == "required":
            logger.warning("the process before this one died within the compiled lane, which is required")
            return
        self.native, self.why = None, "left out once: the process before this one died within it"
        logger.warning(
            "the process before this one died within the compiled lane: this one runs without it; unless it"
            " was killed from outside, please report this"
        )

    def broke(self, error: BaseException) -> None:
        """Take note of a panic, and go on without the lane whatever was chosen: nothing is lost by that."""
        self.failures += 1
        self.native, self.why = None, f"switched off by a fault of its own: {error}"
        logger.error("the compiled lane has a fault and is switched off: %s; please report this", error)

    def __str__(self) -> str:
        return self.version if self.active else f"off ({self.why})"
