"""Reads spans by Jaeger's query API, version 3 (OTLP's JSON form over HTTP).

    GET URL/api/v3/services                                   {"services": ["whimbrel-broker", ...]}
    GET URL/api/v3/traces?query.service_name=...              {"result": {"resourceSpans": [...]}}, or several
                                                              such objects one after the other

The API can't search for an attribute, so the newest traces of every service are read and searched here.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from whimbrel.cli.message_trace import Span, spans_of
from whimbrel.errors import ClientError

__all__ = ["JaegerReader"]

AGE_MAX = timedelta(hours=1)
TRACES_MAX = 1500  # of a service, newest first
REQUEST_S = 10.0


class JaegerReader:
    """Returns all spans of the last hour when it is called."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __call__(self) -> Sequence[Span]:
        """Return the spans that are there by now."""
        now = datetime.now(UTC)
        spans: list[Span] = []
        for found in self.get("services", {}):
            for service in found.get("services", ()):
                query = {
                    "query.service_name": service,
                    "query.start_time_min": (now - AGE_MAX).isoformat(),
                    "query.start_time_max": (now + timedelta(seconds=1)).isoformat(),
                    "query.num_traces": str(TRACES_MAX),
                    "query.search_depth": str(TRACES_MAX),  # the same, as other implementations name it
                }
                for answer in self.get("traces", query):
                    spans += spans_of(answer.get("result", answer))
        return spans

    def get(self, what: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of one answer.

        Raises:
            ClientError: the address does not answer, or not in this API's form.
        """
        address = f"{self.url}/api/v3/{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=REQUEST_S) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404 and what == "traces":
                return  # no trace of this service in that time
            raise ClientError(f"{self.url} answers {error.code}; is it a Jaeger's query address?") from error
        except (OSError, ValueError) as error:
            raise ClientError(f"{self.url} can't be asked: {error}") from error
        decoder, at = json.JSONDecoder(), 0
        while at < len(text):
            try:
                value, at = decoder.raw_decode(text, at)
            except ValueError as error:
                raise ClientError(f"{self.url} does not answer with JSON: {text[at : at + 60]!r}") from error
            yield value
            while at < len(text) and text[at].isspace():
                at += 1
