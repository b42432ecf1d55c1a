"""Models of the Hugging Face Hub, against a stand-in for it on 127.0.0.1."""

import hashlib
import http.server
import json
import logging
import os
import re
import sys
import threading

import pytest

from rml.errors import ArgumentError, DownloadError
from rml.files import hub, pull
from rml.files.hub_names import HubName, RepoFile, choose, parse

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")

COMMIT = "c0ffee" * 6 + "0123"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class StandIn(http.server.ThreadingHTTPServer):
    """Speaks the endpoints of the Hub that the library uses, for repositories held in memory."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.stated_sha256: dict[str, str] = {}  # what the Hub says of a file, where it is wrong
        self.gated: set[str] = set()
        self.token = ""  # asked for by every repository if set
        self.cut: dict[str, list[int]] = {}  # bytes to send of a file, per request
        self.requests: list[tuple[str, str, str]] = []  # method, path, range

    def handle_error(self, request, client_address):
        """A client that goes away is part of these tests."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server = self.server
        path, _, _query = self.path.partition("?")
        asked_range = self.headers.get("Range", "")
        server.requests.append((self.command, path, asked_range))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            if self.refused(match[1]):
                return
            files = server.repos[match[1]]
            siblings = [
                {"rfilename": name, "size": len(data), **self.lfs(name, data)}
                for name, data in files.items()
            ]
            info = {
                "id": match[1],
                "sha": COMMIT,
                "tags": ["gguf", "license:apache-2.0"],
                "siblings": siblings,
            }
            self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if self.refused(match[1]):
                return
            data = server.repos[match[1]].get(match[3])
            if data is None:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            self.send_file(match[3], data, asked_range)
        else:
            self.answer(404, b"no such endpoint")

    def lfs(self, name, data):
        if not name.endswith((".gguf", ".safetensors", ".bin")):
            return {"blobId": hashlib.sha1(data).hexdigest()}
        digest = self.server.stated_sha256.get(name, sha256(data))
        return {"lfs": {"sha256": digest, "size": len(data), "pointerSize": 130}}

    def refused(self, repo):
        server = self.server
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo not in server.repos:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo in server.gated:
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        else:
            return False
        return True

    def send_file(self, name, data, asked_range):
        start = int(asked_range.removeprefix("bytes=").rstrip("-")) if asked_range else 0
        lfs = self.lfs(name, data)
        etag = lfs["lfs"]["sha256"] if "lfs" in lfs else lfs["blobId"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        cuts = self.server.cut.get(name, [])
        sent = body
        if self.command == "GET" and cuts:
            sent = body[: cuts.pop(0)]
        self.answer(206 if start else 200, sent, headers, length=len(body))
        if len(sent) < len(body):
            self.close_connection = True

    def answer(self, status, body, headers=None, length=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, *args):
        pass


GGUF = b"GGUF" + bytes(range(256)) * 4000  # about 1 MB
QUANTS = {f"toy-{quant}.gguf": GGUF + quant.encode() for quant in ("Q4_K_M", "Q8_0", "F16")}


@pytest.fixture
def server(tmp_path, monkeypatch, caplog):
    with StandIn() as stand_in:
        thread = threading.Thread(target=stand_in.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        for variable in [name for name in os.environ if name.startswith("HF_")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{stand_in.server_port}")
        monkeypatch.setenv("RML_CACHE", str(tmp_path / "rml"))
        # The library reads its other variables once, when it is imported.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        caplog.set_level(logging.ERROR, "huggingface_hub")
        yield stand_in
        stand_in.shutdown()
        thread.join()


def gets(server):
    return [path for method, path, _ in server.requests if method == "GET" and "resolve" in path]


def sizes(names):
    return [RepoFile(name, 1) for name in names]


# What a name means, and which files it takes: no network.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo:q4_k_m", HubName("org/repo", quant="Q4_K_M")),
        ("org/repo/sub/f.Q8_0.gguf", HubName("org/repo", file="sub/f.Q8_0.gguf")),
        ("a-b.c/d_e", HubName("a-b.c/d_e")),
        ("smollm2", None),
        ("./model.gguf", None),
        ("../x/y.gguf", None),
        ("a/b/c", None),
        ("a/b/../c.gguf", None),
        ("/abs/path.gguf", None),
        ("a/b:", None),
        ("a/b c", None),
        ("models/x.gguf", None),
        ("models/x.safetensors", None),
        ("org/x-GGUF", HubName("org/x-GGUF")),
        ("", None),
    ],
)
def test_names(text, expected):
    assert parse(text) == expected
    if expected:
        assert parse(str(expected)) == expected


def test_the_default_is_q4_k_m_then_q8_0_then_the_only_one():
    assert choose(HubName("o/r"), sizes(QUANTS)) == (RepoFile("toy-Q4_K_M.gguf", 1),)
    assert choose(HubName("o/r"), sizes(["a-Q8_0.gguf", "a-F16.gguf"]))[0].name == "a-Q8_0.gguf"
    assert choose(HubName("o/r"), sizes(["x.gguf", "README.md"]))[0].name == "x.gguf"
    with pytest.raises(DownloadError, match=r"several GGUF files.*a-F16\.gguf, b-Q5_0\.gguf"):
        choose(HubName("o/r"), sizes(["a-F16.gguf", "b-Q5_0.gguf"]))


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("UD-Q4_K_M", "m-UD-Q4_K_M.gguf"),
        ("UD-IQ1_S", "m-UD-IQ1_S.gguf"),
        ("IQ1_S", "m-UD-IQ1_S.gguf"),
        ("K_M", None),
        ("Q4_K", None),
        ("4_K_M", None),
        ("Q3_K_M", None),
    ],
)
def test_a_quantization_is_a_whole_word(quant, expected):
    files = sizes(["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-UD-IQ1_S.gguf", "m.Q5_K_M.gguf"])
    if expected:
        assert [f.name for f in choose(HubName("o/r", quant=quant), files)] == [expected]
    else:
        with pytest.raises(DownloadError, match=rf"no GGUF file of quantization {quant}; it has"):
            choose(HubName("o/r", quant=quant), files)


def test_two_models_of_one_quantization_are_ambiguous():
    with pytest.raises(DownloadError, match="several GGUF files of quantization Q8_0"):
        choose(HubName("o/r", quant="Q8_0"), sizes(["a-Q8_0.gguf", "b-Q8_0.gguf"]))


def test_all_parts_of_a_split_file_in_order():
    parts = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    files = sizes(reversed(parts))

    for name in (HubName("o/r", quant="Q8_0"), HubName("o/r"), HubName("o/r", file=parts[1])):
        assert [f.name for f in choose(name, files)] == parts
    with pytest.raises(DownloadError, match=r"lacks Q8_0/m-Q8_0-00002-of-00003\.gguf"):
        choose(HubName("o/r"), sizes([parts[0], parts[2]]))


def test_vision_and_importance_files_are_no_models():
    files = sizes(["mmproj-F16.gguf", "m.imatrix.gguf", "imatrix_x.gguf", "m-Q2_K.gguf"])
    assert [f.name for f in choose(HubName("o/r"), files)] == ["m-Q2_K.gguf"]


def test_a_folder_takes_what_a_model_needs_and_no_pickle():
    needed = [
        "config.json",
        "chat_template.jinja",
        "generation_config.json",
        "merges.txt",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    ]
    unwanted = [
        "README.md",
        "pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "consolidated.safetensors",
        "onnx/model.safetensors",
        "original/params.json",
        "run.py",
        ".gitattributes",
    ]
    assert [f.name for f in choose(HubName("o/r"), sizes(needed + unwanted))] == needed


def test_one_whole_file_is_preferred_to_shards():
    files = sizes(["config.json", "model.safetensors", "model-00001-of-00001.safetensors"])
    names = [f.name for f in choose(HubName("o/r"), files)]
    assert names == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "pytorch_model.bin"], "only as pickles"),
        (["config.json", "model.pth"], "only as pickles"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter"),
        (["model.safetensors"], "no config.json"),
        (["README.md"], "not a model"),
        ([], "not a model"),
    ],
)
def test_repositories_without_a_model(files, message):
    with pytest.raises(DownloadError, match=message):
        choose(HubName("o/r"), sizes(files))


def test_a_file_that_is_not_there():
    with pytest.raises(DownloadError, match=r"no file z\.gguf; it has: a\.gguf"):
        choose(HubName("o/r", file="z.gguf"), sizes(["a.gguf"]))


# Against the stand-in.


def test_pull_one_quantization(server, capfd):
    server.repos["org/toy"] = QUANTS
    calls = []
    path = pull.pull("org/toy:q8_0", progress=lambda *call: calls.append(call))

    assert path.name == "toy-Q8_0.gguf"
    assert path.read_bytes() == QUANTS["toy-Q8_0.gguf"]
    assert gets(server) == [f"/org/toy/resolve/{COMMIT}/toy-Q8_0.gguf"]
    size = len(QUANTS["toy-Q8_0.gguf"])
    assert calls[0] == (0, size)
    assert calls[-1] == (size, size)
    assert pull.find("org/toy:Q8_0") == path
    assert pull.find("org/toy") is None
    assert pull.list_local() == [pull.LocalModel("org/toy:Q8_0", path, size, "apache-2.0")]
    assert capfd.readouterr().out == ""


def test_the_offer(server):
    server.repos["org/toy"] = QUANTS
    offer = pull.offer("org/toy:F16")

    assert (offer.name, offer.licence) == ("org/toy:F16", "apache-2.0")
    assert (offer.description, offer.source) == ("toy-F16.gguf", "the Hugging Face Hub")
    assert offer.size == len(QUANTS["toy-F16.gguf"])
    assert gets(server) == []


def test_pull_a_folder(server, tmp_path):
    files = {"config.json": b"{}", "model.safetensors": GGUF, "tokenizer.json": b"{}"}
    server.repos["org/hf"] = {**files, "pytorch_model.bin": b"pickle", "README.md": b"x"}
    path = pull.pull("org/hf")

    assert {p.name: p.read_bytes() for p in path.iterdir()} == files
    assert pull.find("org/hf") == path

    copy = pull.pull("org/hf", to=tmp_path / "out")
    assert copy == tmp_path / "out" / "hf"
    assert {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()} == files


def test_pull_to_a_folder(server, tmp_path):
    server.repos["org/toy"] = QUANTS
    path = pull.pull("org/toy/toy-F16.gguf", to=tmp_path / "out")

    assert path == tmp_path / "out" / "toy-F16.gguf"
    assert path.read_bytes() == QUANTS["toy-F16.gguf"]
    assert pull.find("org/toy/toy-F16.gguf") is None


def test_a_split_model_is_found_only_whole(server):
    parts = {f"m-Q8_0-0000{i}-of-00002.gguf": GGUF + bytes([i]) for i in (1, 2)}
    server.repos["org/split"] = parts
    path = pull.pull("org/split:Q8_0")

    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == parts
    (path.parent / "m-Q8_0-00002-of-00002.gguf").unlink()
    assert pull.find("org/split:Q8_0") is None


def test_no_such_repository(server):
    with pytest.raises(DownloadError, match="no such repository, or it is private"):
        pull.pull("org/absent")


def test_a_token_opens_a_private_repository(server, monkeypatch):
    server.repos["org/toy"] = QUANTS
    server.token = "hf_secret"
    with pytest.raises(DownloadError, match=r"private.*HF_TOKEN") as info:
        pull.pull("org/toy")
    assert "hf_secret" not in str(info.value)

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull.pull("org/toy").is_file()


def test_a_gated_repository(server):
    server.repos["org/toy"] = QUANTS
    server.gated.add("org/toy")
    with pytest.raises(DownloadError, match="accept its licence on its page"):
        pull.pull("org/toy")


def test_no_connection(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match="check the network connection"):
        pull.pull("org/toy")


def test_a_broken_transfer_is_resumed(server, monkeypatch):
    """The library asks for the rest of a file when the connection ends early."""
    server.repos["org/toy"] = QUANTS
    server.cut["toy-Q4_K_M.gguf"] = [300_000]
    # What the library has read but not yet handed on as a whole chunk is lost.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    try:
        path = pull.pull("org/toy")
    except DownloadError:  # older versions of the library resume at the next call
        path = pull.pull("org/toy")

    assert path.read_bytes() == QUANTS["toy-Q4_K_M.gguf"]
    ranges = [asked for method, _, asked in server.requests if method == "GET" and asked]
    assert ranges == ["bytes=300000-"]


def test_a_transfer_that_stays_broken_is_no_model(server, monkeypatch):
    server.repos["org/toy"] = QUANTS
    server.cut["toy-Q4_K_M.gguf"] = [300_000] + [0] * 20
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(DownloadError, match="org/toy"):
        pull.pull("org/toy")
    assert pull.find("org/toy") is None
    assert pull.list_local() == []

    server.cut.clear()
    assert pull.pull("org/toy").read_bytes() == QUANTS["toy-Q4_K_M.gguf"]


def test_content_that_is_not_what_the_hub_states_is_deleted(server, tmp_path):
    server.repos["org/toy"] = QUANTS
    server.stated_sha256["toy-Q4_K_M.gguf"] = "0" * 64
    with pytest.raises(DownloadError, match=f"the Hub states {'0' * 64}"):
        pull.pull("org/toy")
    assert pull.find("org/toy") is None
    assert not list((tmp_path / "hub").rglob("*.gguf"))

    server.stated_sha256.clear()
    assert pull.pull("org/toy").is_file()


def test_a_file_that_changed_is_not_found(server):
    server.repos["org/toy"] = QUANTS
    path = pull.pull("org/toy")
    with path.open("r+b") as file:
        file.write(b"XXXX")
    os.utime(path, ns=(0, 0))
    assert pull.find("org/toy") is None


def test_offline_uses_the_library_s_cache(server, monkeypatch):
    server.repos["org/toy"] = QUANTS
    with pytest.raises(DownloadError, match="network is not to be used"):
        pull.pull("org/toy", offline=True)
    path = pull.pull("org/toy")
    server.requests.clear()

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert pull.pull("org/toy") == path
    assert server.requests == []
    with pytest.raises(DownloadError, match="no GGUF file of quantization F16"):
        pull.pull("org/toy:F16")


def test_remove_deletes_the_file_and_leaves_the_other_one(server, tmp_path):
    server.repos["org/toy"] = QUANTS
    first, second = pull.pull("org/toy:Q8_0"), pull.pull("org/toy:F16")

    assert pull.remove("org/toy:q8_0") == len(QUANTS["toy-Q8_0.gguf"])
    assert not first.exists()
    assert second.read_bytes() == QUANTS["toy-F16.gguf"]
    stored = sum(p.stat().st_size for p in (tmp_path / "hub").rglob("*") if p.is_file())
    assert stored < 2 * len(second.read_bytes()) + 10_000  # the link and its blob count twice
    assert pull.find("org/toy:Q8_0") is None
    assert pull.find("org/toy:F16") == second
    with pytest.raises(ArgumentError, match="org/toy:F16"):
        pull.remove("org/toy:Q8_0")
    pull.remove("org/toy:F16")
    assert not list((tmp_path / "hub").rglob("*.gguf"))


def test_what_a_progress_callback_raises_in_its_thread_reaches_the_caller(tmp_path):
    raised = threading.Event()

    def progress(_done, _total):
        if threading.current_thread() is not threading.main_thread():
            raised.set()
            raise ZeroDivisionError

    def download():
        with hub._Watch(tmp_path, progress) as watch:
            watch.expect(0, 1, 1)
            assert raised.wait(60)

    with pytest.raises(ZeroDivisionError):
        download()


def test_without_the_library(monkeypatch):
    for module in [m for m in sys.modules if m.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import of it now fails

    with pytest.raises(DownloadError, match=r"pip install 'rml\[hub\]'"):
        pull.pull("org/toy")
    assert pull.find("org/toy") is None
