"""The former name of `support/store/stores.py`, for programs outside this tree that still import it."""

from support.store.stores import *  # noqa: F403
