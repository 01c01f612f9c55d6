"""The former name of `support/remoting/wire.py`, for programs outside this tree that still import it."""

from support.remoting.wire import *  # noqa: F403
