"""The cache folder, full of what strangers may have put there: locks, folders, receipts, links."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rml.errors import ArgumentError, DownloadError
from rml.files import cache, pull, wheels
from rml.files.cache import FileRecord, Receipt, exclusive, own_folder
from rml.files.limits import MAX_RECEIPT_BYTES


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "receipts").mkdir(parents=True)
    return tmp_path / "cache"


def link_to_file(path):
    (path.parent / "precious").write_text("precious")
    path.symlink_to("precious")


def link_to_folder(path):
    aside = path.with_name("aside")
    aside.mkdir()
    (aside / "precious").write_text("precious")
    path.symlink_to("aside")


# What may lie where a lock or a folder is made.
THINGS = {
    "link to a file": link_to_file,
    "link to a folder": link_to_folder,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "file": lambda path: path.write_text("precious"),
}


@pytest.mark.parametrize("thing", [name for name in THINGS if name != "file"])
def test_a_lock_is_a_file_of_one_s_own(tmp_path, thing):
    path = tmp_path / "lock"
    THINGS[thing](path)
    before = sorted(p.name for p in tmp_path.iterdir())

    message = r"lock is .*, where a file of your own is expected"
    with pytest.raises(DownloadError, match=message), exclusive(path):
        pytest.fail("it was locked")
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    if thing == "link to a file":
        assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("thing", [name for name in THINGS if name != "folder"])
def test_a_staging_folder_is_one_of_one_s_own(tmp_path, thing):
    path = tmp_path / "staging"
    THINGS[thing](path)

    with pytest.raises(DownloadError, match="where a folder of your own is expected"):
        own_folder(path)
    path.rename(tmp_path / ".x.download")
    with pytest.raises(DownloadError, match="where a folder of your own is expected"):
        wheels.assemble(tmp_path / "x", (), sha256="", size=0, finished=lambda: False)


def test_what_belongs_to_another_user(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()
    (tmp_path / "staging").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(DownloadError, match="a file of another user"), exclusive(tmp_path / "lock"):
        pytest.fail("it was locked")
    with pytest.raises(DownloadError, match="a folder of another user"):
        own_folder(tmp_path / "staging")
    own_folder(tmp_path / "staging", shared=True)


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from rml.files.cache import exclusive\n"
        "with exclusive(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"held\n"
        child.send_signal(signal.SIGKILL)
    assert (tmp_path / "lock").exists()
    with exclusive(tmp_path / "lock"):
        pass
    assert not (tmp_path / "lock").exists()


def test_one_at_a_time(tmp_path):
    inside, most = [], []

    def work():
        with exclusive(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


# ---- receipts ----


def good(tmp_path, name="o/r"):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    receipt = Receipt(name, str(file), "mit", (FileRecord.of(file, "ab" * 32),))
    cache.write_receipt(receipt)
    return receipt


def test_a_receipt_comes_back(root, tmp_path):
    long = "o/r/" + "x" * 240 + ".gguf"
    for name in ("o/r", "o/r:Q4_K_M", "smollm2", long):
        receipt = good(tmp_path, name)
        assert cache.read_receipt(name) == receipt
    assert [r.name for r in cache.receipts()] == ["o/r", long, "o/r:Q4_K_M", "smollm2"]
    assert all(len(p.name) < 256 for p in (root / "receipts").iterdir())


DAMAGED = {
    "huge number": {"files.size": 10**400},
    "infinity": {"files.size": float("inf")},
    "negative size": {"files.size": -1},
    "text as size": {"files.size": "4"},
    "yes as size": {"files.size": True},
    "fraction": {"files.mtime_ns": 1.5},
    "70 bits": {"files.mtime_ns": 2**70},
    "path that is a number": {"files.path": 5},
    "relative path": {"files.path": "etc/passwd"},
    "empty path": {"files.path": ""},
    "NUL": {"files.path": "/a\0b"},
    "digest that is none": {"files.sha256": "../x"},
    "digest of a list": {"files.sha256": []},
    "what it opens is elsewhere": {"path": "/etc"},
    "no path": {"path": None},
    "name of another": {"name": "o/other"},
    "name with an escape": {"name": "o/r\x1b[31m"},
    "name that leads out": {"name": "../../x"},
    "name of a list": {"name": ["o/r"]},
    "licence with an escape": {"licence": "\x1b[2J"},
    "licence of nobody": {"licence": None},
    "files of nothing": {"files": None},
    "files of numbers": {"files": [1, 2]},
    "files of text": {"files": "abc"},
    "files as object": {"files": {"a": 1}},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_receipt_that_rml_did_not_write_counts_as_none(root, tmp_path, damage):
    good(tmp_path)
    [path] = (root / "receipts").iterdir()
    fields = json.loads(path.read_text())
    for key, value in DAMAGED[damage].items():
        place = fields["files"][0] if key.startswith("files.") else fields
        place[key.removeprefix("files.")] = value
    path.write_text(json.dumps(fields))

    assert cache.read_receipt("o/r") is None
    assert cache.receipts() == []
    assert pull.find("o/r") is None
    assert pull.list_local() == []
    with pytest.raises(ArgumentError, match="not in the cache"):
        pull.remove("o/r")


TEXTS = {
    "nothing": b"",
    "half": b'{"name": "o/r", "files": [',
    "deep": b"[" * 200_000,
    "bytes": bytes(range(256)),
    "a number of a million digits": b"1" * 10**6,
    "zeros": bytes(10_000),
    "not a number": b'{"files": [{"path": "/x", "size": NaN}]}',
    "too large": b" " * (MAX_RECEIPT_BYTES + 1),
    "surrogates": b'{"name": "o/r", "path": "/\\ud800", "licence": "", "files": ['
    b'{"size": 1, "path": "/\\ud800", "mtime_ns": 1, "sha256": ""}]}',
}


@pytest.mark.parametrize("text", TEXTS)
def test_files_that_are_no_receipts(root, text):
    (root / "receipts" / "o%2Fr.json").write_bytes(TEXTS[text])

    assert pull.find("o/r") is None
    assert pull.list_local() == []


@pytest.mark.parametrize("thing", [name for name in THINGS if name != "file"])
def test_what_is_no_file_is_no_receipt(root, thing):
    THINGS[thing](root / "receipts" / "o%2Fr.json")

    assert pull.find("o/r") is None
    assert pull.list_local() == []


@pytest.mark.parametrize("thing", THINGS)
def test_a_folder_of_receipts_that_is_none(root, tmp_path, thing):
    (root / "receipts").rmdir()
    THINGS[thing](root / "receipts")

    good(tmp_path)
    assert len(pull.list_local()) == (thing == "folder")
    assert not list(tmp_path.rglob("aside/o%2Fr.json*"))


def test_a_receipt_of_a_pipe_or_a_device_holds_not(root, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/zero"), tmp_path):
        found = path.stat()
        record = FileRecord(str(path), found.st_size, found.st_mtime_ns, "")
        cache.write_receipt(Receipt("o/r", str(path), "", (record,)))
        assert cache.read_receipt("o/r") is not None
        assert pull.find("o/r") is None
        assert pull.list_local() == []


def test_leftovers_of_killed_writers_go_with_the_receipt(root, tmp_path):
    good(tmp_path)
    stray = root / "receipts" / "o%2Fr.json.0123abcd.tmp"
    other = root / "receipts" / "o%2Fr.json.backup"
    for path in (stray, other):
        path.write_text("{")
    cache.forget("o/r")
    assert [p.name for p in (root / "receipts").iterdir()] == [other.name]


# ---- rm of what is no download ----


@pytest.mark.parametrize("thing", ["link to a file", "link to a folder", "link to nothing", "file"])
def test_rm_never_follows_a_staging_folder(root, thing):
    staging = root / ".smollm2.gguf.download"
    THINGS[thing](staging)
    (root / "smollm2.gguf").write_text("x")

    if thing == "file":
        pull.remove("smollm2")
    else:
        assert pull.remove("smollm2") == 1
        assert not staging.is_symlink()
    assert not (root / "smollm2.gguf").exists()
    kept = [p.read_text() for p in root.rglob("precious")]
    assert kept == ["precious"] * thing.startswith("link to a f")


def test_rm_of_a_model_that_is_a_link_deletes_the_link(root, tmp_path):
    (tmp_path / "mine.gguf").write_text("mine")
    (root / "smollm2.gguf").symlink_to(tmp_path / "mine.gguf")

    pull.remove("smollm2")
    assert (tmp_path / "mine.gguf").read_text() == "mine"
    assert not (root / "smollm2.gguf").is_symlink()


def test_a_target_that_is_no_file_is_not_read(root, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for thing in ("pipe", "link to nothing", "link to itself", "folder"):
        THINGS[thing](out / "smollm2.gguf")
        with pytest.raises(DownloadError, match=re.escape(str(out / "smollm2.gguf"))):
            pull.pull("smollm2", to=out, offline=True)
        shutil.rmtree(out)
        out.mkdir()
