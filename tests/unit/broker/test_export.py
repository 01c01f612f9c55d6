"""What `whimbrel store export` makes of a store besides its groups (`integration/test_store_export.py`)."""

from pathlib import Path

from whimbrel.broker.export import export
from whimbrel.store.epoch_file import EPOCH_FILE, EpochFile
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

SMALL = StoreOptions(commitlog_file_size=1 << 20, index_slots=100, index_entries=400)


def test_the_whole_log_is_of_one_epoch_that_every_controller_has_reached(tmp_path: Path) -> None:
    MasterStore.open(tmp_path, SMALL, clock=lambda: 1).close()
    EpochFile(tmp_path).save(((17, 4096), (30, 8192)))
    export(tmp_path)
    assert EpochFile(tmp_path).load() == ((1, 4096),)


def test_a_store_without_epochs_gets_none(tmp_path: Path) -> None:
    MasterStore.open(tmp_path, SMALL, clock=lambda: 1).close()
    export(tmp_path)
    assert not (tmp_path / EPOCH_FILE).exists()
