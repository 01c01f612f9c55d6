"""Java that is missing or too old is one sentence that says what to install."""

from pathlib import Path

import pytest

from whimbrel.spark.session import java_problem


@pytest.fixture
def java(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "java"
    path.parent.mkdir()
    path.write_text("")
    path.chmod(0o755)
    return path


def test_no_java_on_the_path(tmp_path: Path) -> None:
    said = java_problem({"PATH": str(tmp_path)})
    assert said.startswith("Spark needs Java, and there is no java on the PATH: install Java 17")


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    assert f"JAVA_HOME is {tmp_path}, and there is no bin/java in it" in java_problem(
        {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"}
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is 11: install Java 17"),
        ('java version "1.8.0_292"', "is 1: install"),
        ("", "is none that it can use"),
    ],
)
def test_a_java_that_is_too_old_or_does_not_run_is_named(java: Path, said: str, words: str) -> None:
    assert words in java_problem({"PATH": str(java.parent)}, lambda _: said)


def test_a_good_java_is_no_problem(java: Path) -> None:
    environment = {"JAVA_HOME": str(java.parent.parent), "PATH": ""}
    assert java_problem(environment, lambda _: 'openjdk version "17.0.15" 2025-04-15') == ""
    assert java_problem(environment, lambda _: 'openjdk version "25" 2025-09-16') == ""
