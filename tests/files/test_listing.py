"""Listings of repositories, as a hostile server would write them."""

import time

import pytest

from rml.errors import DownloadError
from rml.files.hub_names import HubName, RepoFile, choose, parse
from rml.files.limits import MAX_REPO_BYTES, MAX_REPO_FILES
from rml.files.listing import check_files, fault_of_name, listed, refuse_ways_out

DIGEST = "ab" * 32

GOOD = [
    "model.gguf", "a/b/c.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "ünïcode-模型.gguf",
    "x" * 250 + ".gguf", "a b.gguf", ".hidden.gguf", "a..b.gguf", "console.gguf", "auxiliary.gguf",
    "com10.gguf", "nullable/x.gguf", "-x.gguf", "~x.gguf", "$HOME.gguf", "%2e%2e.gguf", "a@b.gguf",
]  # fmt: skip
BAD = [
    "", "/", "/etc/passwd", "//x.gguf", "../x.gguf", "a/../x.gguf", "a/..", "..", ".", "./x.gguf",
    "a/./x.gguf", "a//x.gguf", "a/", "a\\b.gguf", "..\\x.gguf", "C:\\x.gguf", "C:x.gguf",
    "c:/x.gguf", "x.gguf:stream", "\\\\host\\x.gguf", "a\0.gguf", "a\n.gguf", "a\r.gguf",
    "\x1b[31m.gguf", "a\x7f.gguf", "a\x9b.gguf", "\u202egpj.gguf", "\ud800.gguf", "a\u2028b.gguf",
    "nul", "NUL.gguf", "con.gguf", "a/Aux.gguf", "prn/x.gguf", "com1.gguf", "LPT9.gguf",
    "COM¹.gguf", "conin$.gguf", "nul .gguf", "a./x.gguf", "a /x.gguf", "x.gguf.", "x.gguf ",
    "x" * 256, "ü" * 128, "a/" * 3000 + "x.gguf", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_names_that_can_be_files(name):
    assert fault_of_name(name) == ""
    check_files("o/r", [RepoFile(name, 1)])


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:30])
def test_names_that_are_refused(name):
    assert fault_of_name(name)
    with pytest.raises(DownloadError, match="nothing was fetched") as caught:
        check_files("o/r", [RepoFile("a.gguf", 1), RepoFile(name, 1, DIGEST)])
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("names", [("a.gguf", "A.gguf"), ("x/a", "X/a"), ("a", "a"), ("ß", "SS")])
def test_names_that_differ_in_case_only(names):
    with pytest.raises(DownloadError, match="alike but for upper and lower case"):
        check_files("o/r", [RepoFile(name, 1) for name in names])


@pytest.mark.parametrize(
    "size", [-1, "5", 2**70, MAX_REPO_BYTES + 1, 1.5, True, [], {}, b"1", float("nan"), "9" * 10**6]
)
def test_sizes_that_no_sound_server_states(size):
    with pytest.raises(DownloadError, match=r"states that .a\.gguf. has") as caught:
        listed("o/r", [("a.gguf", size, DIGEST)])
    assert len(str(caught.value)) < 200


def test_sizes_that_are_missing():
    # With a digest the content is known; without, nothing could be checked.
    check_files("o/r", listed("o/r", [("a.gguf", None, DIGEST), ("b.gguf", 0, None)]))
    with pytest.raises(DownloadError, match=r"neither a size nor a SHA-256 of a\.gguf"):
        check_files("o/r", listed("o/r", [("a.gguf", None, None)]))


@pytest.mark.parametrize(
    "digest", ["x", "0" * 63, "0" * 65, "AB" * 32, 5, ["a"], b"0", "0" * 63 + "\n"]
)
def test_digests_that_are_none(digest):
    with pytest.raises(DownloadError, match="states the SHA-256"):
        listed("o/r", [("a.gguf", 1, digest)])


@pytest.mark.parametrize("name", [None, 5, b"a", ["a"], {}])
def test_names_that_are_no_text(name):
    with pytest.raises(DownloadError, match="lists a file with the name"):
        listed("o/r", [(name, 1, "")])


def test_a_million_entries():
    start = time.monotonic()
    with pytest.raises(DownloadError, match=f"more than {MAX_REPO_FILES} files"):
        listed("o/r", ((f"{i}.gguf", 1, "") for i in range(1_000_000)))
    # As many as are read are chosen from in a time that nobody notices.
    files = listed("o/r", ((f"m-{i:05d}-of-99999.gguf", 1, "") for i in range(MAX_REPO_FILES - 1)))
    with pytest.raises(DownloadError) as caught:
        choose(HubName("o/r"), files[::2])
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - start < 60


def test_messages_stay_short_whatever_names_are_like():
    files = [RepoFile(f"{'x' * 10**5}{i}-Q{i}_K.gguf", 1) for i in range(100)]
    files.append(RepoFile("\x1b[2J-Q9_K.gguf", 1))
    for name in (HubName("o/r"), HubName("o/r", quant="Q4_K_M"), HubName("o/r", file="a.gguf")):
        with pytest.raises(DownloadError) as caught:
            choose(name, files)
        assert len(str(caught.value)) < 6000
        assert str(caught.value).isprintable()


def test_files_of_a_folder_lie_in_it():
    names = ["tokenizer/../../x.json", "chat_template/../x.json", "tokenizer/vocab.json"]
    files = [RepoFile(n, 1) for n in ["config.json", "model.safetensors", *names]]
    assert [f.name for f in choose(HubName("o/r"), files)] == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    "name",
    ["о/repo", "org/é", "o/" + "r" * 95, "o/r/a\x1b.gguf", "o/r/a\n.gguf", "o/r:" + "Q" * 5000,
     "o/r/" + "x" * 5000 + ".gguf", "o/r/\ud800.gguf", "o/r/\u202e.gguf", "o/r\n"],
    ids=lambda name: ascii(name)[:20],
)  # fmt: skip
def test_names_that_no_repository_has(name):
    assert parse(name) is None


def test_links_that_lead_out(tmp_path):
    folder, other = tmp_path / "to", tmp_path / "other"
    for path in (folder / "sub", other):
        path.mkdir(parents=True)
    (other / "x").write_text("precious")
    (folder / "inside").symlink_to("sub")
    refuse_ways_out(folder, ["a.gguf", "sub/a.gguf", "inside/a.gguf"])
    (tmp_path / "link to folder").symlink_to(folder)
    refuse_ways_out(tmp_path / "link to folder", ["sub/a.gguf"])

    (folder / "out").symlink_to(other)
    (folder / "a.gguf").symlink_to(other / "x")
    (folder / "sub" / "deep").symlink_to("../out")
    (folder / "loop").symlink_to("loop")
    (folder / "new").symlink_to(other / "not there yet")
    for name in ("out/x", "a.gguf", "sub/deep/x", "new"):
        with pytest.raises(DownloadError, match="is a link out of"):
            refuse_ways_out(folder, [name])
