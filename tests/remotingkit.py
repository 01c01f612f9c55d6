"""The former name of `support/remoting/handlers.py`, for programs outside this tree that still import it."""

from support.remoting.handlers import *  # noqa: F403
