"""Lists of epochs beside RocketMQ 5.3.3's own: consistent points, truncation, the checkpoint file's text."""

import random
import subprocess
from pathlib import Path

import pytest

from support.systems.real_broker import need_kit, resolved
from whimbrel.ha.epochs import (
    BadEpochs,
    Epochs,
    check_epochs,
    consistent_point,
    cut,
    decode_epochs,
    encode_epochs,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

ORACLE = Path(__file__).resolve().parent / "java" / "EpochOracle.java"
SEED = 20_261_126
CASES = 1_000
Log = tuple[Epochs, int]  # a list, and where its log ends


def history(chance: random.Random, begin: Log, epochs: int) -> Log:
    """Return a log that goes on from another one, with some epochs that the other has not."""
    mine, end = begin
    epoch = mine[-1][0] if mine else 0
    for _ in range(epochs):
        epoch += chance.randrange(1, 3)
        if mine and mine[-1][1] == end:
            end += 1
        mine = (*mine, (epoch, end))
        end += chance.choice([0, 1, 50, chance.randrange(1 << 40)])
    return mine, end


def pair(chance: random.Random) -> tuple[Log, Log]:
    """Return two logs, mostly with a common beginning."""
    common = history(chance, ((), 0), chance.randrange(4))
    logs = []
    for _ in range(2):
        mine, end = common
        if mine and chance.random() < 0.5:  # one had less of it
            end = mine[-1][1] + chance.randrange(end - mine[-1][1] + 1)
        logs.append(history(chance, (mine, end), chance.choice([0, 0, 1, 1, 2, 5])))
    return logs[0], logs[1]


def text(epochs: Epochs) -> str:
    return ",".join(f"{epoch}:{start}" for epoch, start in epochs) or "-"


def ask(scratch: Path, lines: list[str]) -> list[str]:
    """Return RocketMQ's answers."""
    need_kit()
    command = ["java", "-Xmx256m", f"-Duser.home={scratch}", "-cp", resolved("5.3.3").strip(), str(ORACLE)]
    done = subprocess.run(
        [*command, str(scratch)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_consistent_points_lists_and_files_are_those_of_rocketmq(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    cases = [pair(chance) for _ in range(CASES)]
    lines = [
        f"{text(mine)} {my_end} {text(theirs)} {their_end}" for (mine, my_end), (theirs, their_end) in cases
    ]
    expected, points = [], 0
    for (mine, my_end), (theirs, their_end) in cases:
        check_epochs(mine, my_end)
        check_epochs(theirs, their_end)
        point = consistent_point(mine, my_end, theirs, their_end)
        points += point is not None
        left = mine if point is None else cut(mine, point)
        file = encode_epochs(mine).decode() if mine else ""  # RocketMQ writes no file for an empty list
        expected.append(f"{-1 if point is None else point} {text(left)} {file}".replace("\n", "|"))
    assert ask(tmp_path, lines) == expected
    assert CASES * 0.5 < points < CASES * 0.95


@pytest.mark.parametrize("crc", ["ours", "0", "1"])
def test_rocketmq_reads_our_file_and_checks_its_crc_as_we_do(crc: str, tmp_path: Path) -> None:
    epochs = ((1, 0), (2, 1000), (70, 1 << 40))
    count, own, rest = encode_epochs(epochs).decode().split("\n", 2)
    (tmp_path / "given").write_text(f"{count}\n{own if crc == 'ours' else crc}\n{rest}")
    answers = ask(tmp_path, [])
    if crc == "1":  # RocketMQ then looks for a file with .bak at its end, and goes on with no list
        assert answers == ["-"]
        with pytest.raises(BadEpochs, match="the CRC"):
            decode_epochs((tmp_path / "given").read_bytes())
    else:
        assert answers == [text(epochs)]
        assert decode_epochs((tmp_path / "given").read_bytes()) == epochs
