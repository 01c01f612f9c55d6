"""A first look in a session that is not ours: rows without noise, and mistakes told in a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.topics import confirmed
from support.cluster.processes import Cluster, environment
from whimbrel.client import Message
from whimbrel.client.sync import Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("first_look.py")


def test_a_limit_makes_no_noise_and_mistakes_are_told_in_a_sentence(cluster: Cluster) -> None:
    with Producer(cluster.endpoint) as producer:  # more than sockets hold: the worker still writes at the end
        for _ in range(80):
            producer.send_batch([Message(topic="looked", body=bytes(20_000)) for _ in range(25)])
    confirmed(cluster)
    variables = environment() | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", ""),
    }
    command = [sys.executable, str(PROGRAM), cluster.endpoint, "looked", cluster.master.grpc]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["seen"]) == 3
    assert "BrokenPipeError" not in done.stderr
    assert "Traceback" not in done.stderr
    sentences = {
        "port": "option servers: '127.0.0.1' is not of the form HOST:PORT",
        "broker": f"option servers: {cluster.master.grpc} is not a nameserver",
        "option": "option subscribee: there is no such option; did you mean subscribe?",
        "topic": "no broker has the topic nowhere",
    }
    for name, sentence in sentences.items():
        text = found["errors"][name]
        assert sentence in text
        assert "Traceback" not in text
        assert len([line for line in text.splitlines() if line.strip()]) <= 2, text  # the second: SQLSTATE
