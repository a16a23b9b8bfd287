"""The store: acknowledged writes survive, whatever happens to the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from embedded_kube.storage.store import Store

FILL = """
import resource, signal, sqlite3, sys
from pathlib import Path
from embedded_kube.storage.store import Store

store = Store(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
kept = []
try:
    for number in range(1000):
        kept.append(store.write("pods", {"metadata": {"name": f"p{number}"}, "spec": "x" * 10_000}).revision)
except sqlite3.Error as error:
    print(len(kept), kept[-1], store.revision, store.count("pods"), len(list(store.entries("pods"))))
"""


def test_a_write_to_a_full_disk_fails_and_acknowledged_writes_survive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path / "db")], capture_output=True, text=True, check=True
    )
    kept, last, revision, count, listed = map(int, done.stdout.split())
    assert 0 < kept == count == listed
    assert last == revision
    store = Store(tmp_path / "db")
    assert [store.count("pods"), store.revision] == [kept, last]
    assert store.write("pods", {"metadata": {"name": "another"}}).revision == last + 1
    store.close()


def test_without_a_path_nothing_is_written_to_disk(tmp_path: Path) -> None:
    stores = (Store(None), Store(tmp_path / "db"))
    for store in stores:
        store.write("pods", {"metadata": {"name": "a"}})
        store.write("pods", {"metadata": {"name": "b"}})
        store.remove("pods", "", "a")
    alone, kept = stores
    assert alone.revision == kept.revision
    assert [entry.data for entry in alone.entries("pods")] == [entry.data for entry in kept.entries("pods")]
    assert [entry.name for entry in alone.entries_at("pods", "", alone.revision - 1)] == ["a", "b"]
    for store in stores:
        store.close()
