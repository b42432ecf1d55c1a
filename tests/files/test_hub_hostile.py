"""Answers of the Hub that no sound server gives, from a stand-in on 127.0.0.1."""

import errno
import hashlib
import http.server
import json
import os
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from rml.errors import ArgumentError, DownloadError, OutOfMemory
from rml.files import cache, hub, pull
from rml.files.cache import FileRecord, Receipt

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")

COMMIT = "c0ffee" * 6 + "0123"
DATA = b"GGUF" + bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


class StandIn(http.server.ThreadingHTTPServer):
    """Answers one repository: what it says of it, and what it sends, are a test's."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.info: object = {}  # answer about the repository: JSON, bytes, or a status
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}  # of an answer about a file
        self.hits = 0

    def handle_error(self, request, client_address):
        """A client that goes away is part of these tests."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.hits += 1
        if not self.path.startswith("/api/"):
            data = self.server.files.get(self.path.partition(f"/{COMMIT}/")[2])
            if data is None:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self.answer(200, data, headers | self.server.headers)
            return
        info = self.server.info
        if isinstance(info, int):
            self.answer(info, b"", self.server.headers)
        else:
            body = info if isinstance(info, bytes) else json.dumps(info).encode()
            self.answer(200, body, {"Content-Type": "application/json"})

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    with StandIn() as stand_in:
        thread = threading.Thread(target=stand_in.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        for variable in [name for name in os.environ if name.startswith("HF_")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{stand_in.server_port}")
        monkeypatch.setenv("RML_CACHE", str(tmp_path / "rml"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr("time.sleep", lambda _: None)
        yield stand_in
        stand_in.shutdown()
        thread.join()


def entry(name="m.gguf", data=DATA, **changes):
    lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 9}
    return {"rfilename": name, "size": len(data), "lfs": lfs} | changes


def info(*siblings, **changes):
    return {"id": "o/r", "sha": COMMIT, "tags": [], "siblings": list(siblings)} | changes


def nothing_was_written(tmp_path):
    return not [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix == ".gguf"]


@pytest.mark.parametrize(
    "name",
    ["../m.gguf", "/tmp/m.gguf", "a/../../m.gguf", "a//m.gguf", "..\\m.gguf", "C:\\m.gguf",
     "nul.gguf", "a\u0000.gguf", "\u001b[31mm.gguf", "x" * 300 + ".gguf", "a/./m.gguf"],
    ids=lambda name: ascii(name)[:20],
)  # fmt: skip
@pytest.mark.parametrize("to", [None, "out"])
def test_names_that_lead_elsewhere(server, tmp_path, name, to):
    server.info = info(entry(name))
    server.files = {name: DATA}

    with pytest.raises(DownloadError, match="the Hub lists a file called"):
        pull.pull("o/r", to=to and tmp_path / to)
    assert nothing_was_written(tmp_path)
    assert server.hits == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff", b"[" * 100_000,
        b'{"id": 1' + b"0" * 5000 + b"}",
        {}, {"siblings": 5}, {"siblings": [5]}, {"siblings": [{}]}, {"siblings": "x"},
        {"siblings": [{"rfilename": 5}]}, {"siblings": [{"rfilename": None}]},
        {"siblings": [{"rfilename": "m.gguf", "lfs": 5}]},
        {"siblings": [{"rfilename": "m.gguf", "lfs": {"sha256": 5, "size": 1, "pointerSize": 1}}]},
        info(entry(size=-1)), info(entry(size="5")), info(entry(size=2**70)), info(entry(size=[])),
        info(entry(size=1e308)), info(entry(size=True)), info(entry(lfs=None, size=None)),
        info(entry(), entry()), info(entry(), sha="../../x"), info(entry(), sha=5),
        info(entry(), sha="/etc"), info(entry(), sha="a\n"), info(entry("M.gguf"), tags=5),
        info(*[entry(f"m-Q8_0-{i:05d}-of-00002.gguf") for i in (1, 1)]),
        info(entry("config.json"), entry("a.safetensors"), entry("A.safetensors")),
    ],
    ids=lambda answer: ascii(answer)[:40],
)  # fmt: skip
def test_answers_that_are_none(server, tmp_path, answer):
    server.info = answer

    with pytest.raises(DownloadError) as caught:
        pull.pull("o/r")
    assert len(str(caught.value)) < 1500
    assert nothing_was_written(tmp_path)


def test_what_a_licence_is_called_is_a_stranger_s_text_too(server):
    server.info = info(entry(), tags=[5, None, "license:\u001b[2J\n" + "x" * 5000])
    server.files = {"m.gguf": DATA}
    assert pull.offer("o/r").licence == "[2J" + "x" * 95
    assert pull.pull("o/r") == pull.find("o/r")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_in_a_circle_end(server, status):
    server.info = status
    server.headers = {"Location": f"{os.environ['HF_ENDPOINT']}/api/models/o/r"}

    with pytest.raises(DownloadError, match="o/r"):
        pull.pull("o/r")
    assert server.hits < 200


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 418, 429, 500, 503])
def test_every_status_says_what_to_do(server, status):
    server.info = status
    with pytest.raises(DownloadError, match="o/r"):
        pull.pull("o/r")


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLError(1, "certificate verify failed"), socket.gaierror(-2, "Name not known"),
        TimeoutError(110, "timed out"), ConnectionResetError(104, "reset"), OSError("no errno"),
        json.JSONDecodeError("x", "y", 0), KeyError("siblings"), TypeError(), ValueError("bad"),
        AttributeError("x"), RuntimeError("etag is empty"), AssertionError(), IndexError(),
        RecursionError("deep"), OverflowError(), UnicodeError(), NotImplementedError(),
        PermissionError(13, "Permission denied", "/x"), OSError(28, "No space left on device"),
        OSError(5, "Input/output error"), EOFError(), StopIteration(),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("stage", ["look up", "download"])
def test_whatever_the_library_raises_becomes_rml_s(server, monkeypatch, stage, error):
    server.info, server.files = info(entry()), {"m.gguf": DATA}

    def fail(*args, **kwargs):
        raise error

    if stage == "look up":
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    else:
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(DownloadError) as caught:
        pull.pull("o/r")
    assert caught.value.__cause__ is error
    assert pull.find("o/r") is None
    monkeypatch.undo()


@pytest.mark.parametrize("stage", ["look up", "download"])
def test_no_memory(server, monkeypatch, stage):
    server.info, server.files = info(entry()), {"m.gguf": DATA}

    def fail(*args, **kwargs):
        raise MemoryError

    if stage == "look up":
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    else:
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(OutOfMemory):
        pull.pull("o/r")


def test_files_without_a_digest_are_checked_by_their_size_and_that_is_said(server, tmp_path):
    files = {"config.json": b"{}", "model.safetensors": DATA, "tokenizer.json": b"{ }"}
    server.files = files
    server.info = info(
        entry("model.safetensors"),
        *(entry(name, files[name], lfs=None) for name in ("config.json", "tokenizer.json")),
    )
    assert pull.offer("o/r").unverified == ("config.json", "tokenizer.json")
    path = pull.pull("o/r", to=tmp_path / "out")
    assert (path / "tokenizer.json").read_bytes() == b"{ }"

    server.files = files | {"tokenizer.json": b"{  }"}  # the library does not compare sizes alone
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(DownloadError, match=r"tokenizer\.json.*(has 4 bytes|3|4)"):
        pull.pull("o/r", to=tmp_path / "out")
    assert not (path / "tokenizer.json").exists()


def test_too_little_room_is_said_before_the_download(server, tmp_path, monkeypatch):
    server.info, server.files = info(entry()), {"m.gguf": DATA}
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))

    for to in (None, tmp_path / "out"):
        with pytest.raises(DownloadError, match="are needed, 0 MB are free: make room"):
            pull.pull("o/r", to=to)
    assert server.hits == 2
    monkeypatch.undo()


def test_what_is_there_needs_no_room(server, tmp_path, monkeypatch):
    server.info, server.files = info(entry()), {"m.gguf": DATA}
    path = pull.pull("o/r")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert pull.pull("o/r") == path


@pytest.mark.parametrize("link", ["m.gguf", ".cache", ".cache/huggingface"])
def test_links_in_the_target_that_lead_out(server, tmp_path, link):
    server.info, server.files = info(entry()), {"m.gguf": DATA}
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("precious")
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(other / "precious" if link == "m.gguf" else other)

    with pytest.raises(DownloadError, match="is a link out of"):
        pull.pull("o/r", to=out)
    assert [p.name for p in other.iterdir()] == ["precious"]
    assert (other / "precious").read_text() == "precious"


@pytest.mark.parametrize("header", ["ETag", "X-Repo-Commit"])
def test_headers_that_name_a_place(server, tmp_path, header):
    """The library makes paths of them: what then lies elsewhere is not taken for the model."""
    server.info, server.files = info(entry()), {"m.gguf": DATA}
    server.headers = {header: "../../../x"}

    with pytest.raises(DownloadError, match=r"leads out of|failed|cannot be|could not be"):
        pull.pull("o/r")
    assert pull.find("o/r") is None
    assert pull.list_local() == []


# ---- deleting ----


def receipt_of(tmp_path, *paths, name="o/r"):
    records = tuple(FileRecord.of(path, "") for path in paths)
    cache.write_receipt(Receipt(name, str(paths[0]), "", records))


def test_rm_deletes_nothing_outside_of_the_cache(server, tmp_path):
    mirror = tmp_path / "hub" / "models--o--r"
    (mirror / "snapshots" / "1").mkdir(parents=True)
    (mirror / "blobs").mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    other = tmp_path / "hub" / "models--o--other" / "snapshots" / "1" / "m.gguf"
    other.parent.mkdir(parents=True)
    other.write_text("other")
    (mirror / "snapshots" / "2").symlink_to(tmp_path)
    (mirror / "snapshots" / "1" / "good.gguf").write_text("good")
    good = mirror / "snapshots" / "1" / "good.gguf"
    places = [
        precious,
        other,
        mirror / "snapshots" / ".." / ".." / ".." / "precious",
        mirror / "snapshots" / "2" / "precious",  # a folder that is a link
        mirror.parent / "models--o--r-no" / ".." / ".." / "precious",
    ]
    (mirror.parent / "models--o--r-no").mkdir()
    for place in places:
        receipt_of(tmp_path, good, place)
        with pytest.raises(DownloadError, match="lies outside of"):
            pull.remove("o/r")
        assert good.exists()  # not even what could have been deleted
        assert precious.read_text() == "precious"
        assert other.exists()


def test_rm_of_a_link_deletes_the_link_alone(server, tmp_path):
    link = tmp_path / "hub" / "models--o--r" / "snapshots" / "1" / "m.gguf"
    link.parent.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    link.symlink_to(precious)
    receipt_of(tmp_path, link)

    assert pull.remove("o/r") == len("precious")
    assert precious.read_text() == "precious"
    assert not link.is_symlink()
    with pytest.raises(ArgumentError, match="not in the cache"):
        pull.remove("o/r")


def test_rm_says_what_the_system_refuses(server, tmp_path, monkeypatch):
    server.info, server.files = info(entry()), {"m.gguf": DATA}
    path = pull.pull("o/r")

    def refuse(self, missing_ok=False):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(DownloadError, match="Permission denied"):
            pull.remove("o/r")
    assert pull.find("o/r") == path
    assert pull.remove("o/r") == len(DATA)
    assert nothing_was_written(tmp_path)


def test_rm_without_the_library(server, tmp_path, monkeypatch):
    server.info, server.files = info(entry()), {"m.gguf": DATA}
    path = pull.pull("o/r")
    monkeypatch.setattr(hub, "_library", lambda: (_ for _ in ()).throw(DownloadError("not here")))
    with pytest.raises(DownloadError, match="Set HF_HUB_CACHE to the cache"):
        pull.remove("o/r")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert pull.remove("o/r") == len(DATA)
    assert not path.exists()
