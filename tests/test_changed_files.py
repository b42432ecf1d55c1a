"""Files that other programs change while a model is in use: no crash, no numbers made of both."""

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import CheckpointError, ClosedError, OutOfMemory, memory_room
from rml.engine.sessions import open_session
from rml.files.mapped import MappedFile
from rml.llm.decoder import DecoderLM
from rml.llm.evaluator import Evaluator

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LLAMA = FIXTURES / "llama" / "model.gguf"
EXPECTED = "was changed while it was in use.*load it again.*rename it"

on_posix = pytest.mark.skipif(os.name != "posix", reason="Windows lets nobody do this")
pytestmark = on_posix


@pytest.fixture
def path(tmp_path):
    return Path(shutil.copy(LLAMA, tmp_path / "model.gguf"))


@pytest.fixture
def model(path):
    with rml.load(path, n_threads=1) as model:
        yield model


def answer(model):
    return model.generate("Hello", max_tokens=4, seed=1, logprobs=True)


def cut(path):
    os.truncate(path, 4096)


def empty(path):
    path.write_bytes(b"")


def overwrite(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    with path.open("r+b") as file:
        file.write(data)


def append(path):
    with path.open("ab") as file:
        file.write(b"more")


def other_model_in_place(path):
    shutil.copyfile(FIXTURES / "llama" / "model-q8_0.gguf", path)


def touch(path):
    os.utime(path)


def written_and_dated_back(path):
    """As ``rsync --inplace --times`` and ``cp -p`` do: another time, that of the source."""
    overwrite(path)
    os.utime(path, (1e9, 1e9))


CHANGES = [cut, empty, overwrite, append, other_model_in_place, touch, written_and_dated_back]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_an_error_before_the_next_step(model, path, change):
    stream = model.stream("Hello", max_tokens=20, seed=1)
    next(stream)
    change(path)

    with pytest.raises(CheckpointError, match=EXPECTED) as caught:
        list(stream)
    assert str(path) in str(caught.value)
    for use in (
        answer,
        lambda m: m.score("Hello you"),
        lambda m: m.embed("Hello"),
        lambda m: m.chat([{"role": "user", "content": "Hello"}]),
        lambda m: m.session().forward([5, 6]),
        lambda m: m.session().forward([5, 6], all_logits=True),
        lambda m: m.session().hidden_states([5, 6]),
        lambda m: m.plan(),
        lambda m: m._checkpoint.tensors["output_norm.weight"].numpy(),
        lambda m: m._checkpoint.tensors["output.weight"].data,
    ):
        with pytest.raises(CheckpointError, match=EXPECTED):
            use(model)


@pytest.mark.parametrize("change", [cut, overwrite])
def test_what_was_evaluated_before_stays_and_a_model_loaded_again_goes_on(model, path, change):
    expected = answer(model)
    with model.session() as session:
        session.forward([5, 6])
        change(path)
        with pytest.raises(CheckpointError, match=EXPECTED):
            session.forward([7])
        assert session.tokens == [5, 6]
        shutil.copyfile(LLAMA, path)
        with rml.load(path, n_threads=1) as again:
            assert answer(again).logprobs == expected.logprobs


def test_every_way_to_run_a_plan_looks(model, path):
    plan = model.plan()
    plan.profile(1)
    cut(path)
    for run in (plan.run, lambda: plan.profile(1)):
        with pytest.raises(CheckpointError, match=EXPECTED):
            run()


@pytest.mark.parametrize("outputs", ["last", "all"])
def test_numbers_of_a_step_during_which_the_file_was_written_to_are_not_handed_out(
    model, path, monkeypatch, outputs
):
    """The second look; here the file changes while the plan runs."""
    run, plan = Evaluator.plan, None

    def changed(self):
        nonlocal plan
        plan = run(self)
        overwrite(path)
        return plan

    with model.session() as session:
        session.forward([5])
        monkeypatch.setattr(Evaluator, "plan", changed)
        with pytest.raises(CheckpointError, match=EXPECTED):
            session.forward([6, 7], all_logits=outputs == "all")
        assert session.tokens == [5]


def test_a_head_computed_after_the_step_looks_again(model, path, monkeypatch):
    logits_of = Evaluator.logits_of

    def changed(self, *args):
        overwrite(path)
        logits_of(self, *args)

    monkeypatch.setattr(Evaluator, "logits_of", changed)
    with model.session() as session, pytest.raises(CheckpointError, match=EXPECTED):
        session.forward([6, 7], all_logits=True)


def renamed_over(path):
    new = path.with_name("new")
    shutil.copyfile(FIXTURES / "llama" / "model-q8_0.gguf", new)
    new.replace(path)


def linked(path):
    os.link(path, path.with_name("link"))


def moved(path):
    path.rename(path.with_name("elsewhere"))


def read(path):
    os.utime(path, ns=(10**18, path.stat().st_mtime_ns))  # another time of access
    path.read_bytes()


HARMLESS = [renamed_over, Path.unlink, lambda path: path.chmod(0o400), linked, moved, read]


@pytest.mark.parametrize("change", HARMLESS)
def test_what_cannot_change_the_weights_is_no_error(model, path, change):
    expected = answer(model)
    first = next(stream := model.stream("Hello", max_tokens=4, seed=1))

    change(path)

    assert first.text + "".join(piece.text for piece in stream) == expected.text
    assert answer(model).logprobs == expected.logprobs


def test_a_file_renamed_to_the_name_is_what_is_loaded_next(model, path):
    renamed_over(path)
    with rml.load(path, n_threads=1) as other:
        assert other._checkpoint.tensors["output.weight"].type == "Q8_0"
    # The old file is watched still, by whatever name it is written to.
    answer(model)


def test_the_old_file_is_watched_by_its_other_name(model, path):
    linked(path)
    renamed_over(path)
    answer(model)
    cut(path.with_name("link"))
    with pytest.raises(CheckpointError, match=EXPECTED):
        answer(model)


def test_a_file_cut_during_a_stream_does_not_end_the_process(path):
    code = f"""
import os, rml
with rml.load({str(path)!r}, n_threads=1) as model:
    stream = model.stream("Hello", max_tokens=20, temperature=0)
    next(stream)
    os.truncate({str(path)!r}, 100)
    try:
        list(stream)
    except rml.CheckpointError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "it has 100 bytes" in done.stdout
    assert "it had 81,152" in done.stdout


def test_other_code_that_closes_descriptors_is_named(model):
    os.close(model._checkpoint._open().files[0]._watched.descriptor)
    with pytest.raises(CheckpointError, match=r"cannot be watched.*os\.closerange"):
        answer(model)


def test_a_look_at_a_closed_file_says_that_it_is_closed(path):
    file = MappedFile(path)
    watched = file._watched
    file.close()
    with pytest.raises(ClosedError, match="the file is closed"):
        watched.require_unchanged()
    with pytest.raises(ClosedError, match="the file is closed"):
        file.view(0, 1)


def test_a_change_while_the_headers_are_read(path, monkeypatch):
    made = MappedFile.__init__

    def changed(self, path):
        made(self, path)
        touch(path)

    monkeypatch.setattr(MappedFile, "__init__", changed)
    with pytest.raises(CheckpointError, match=EXPECTED):
        rml.open_checkpoint(path)


# ---- mmap=False ----


def split(folder):
    """A model in two files of safetensors, with an index."""
    source = FIXTURES / "llama" / "hf"
    shutil.copytree(source, folder, dirs_exist_ok=True)
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    length = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    names = list(header)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"model-{number:05}-of-00002.safetensors"
        entries, data = {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            offsets = [len(data), len(data) + end - begin]
            entries[name] = header[name] | {"data_offsets": offsets}
            data += raw[8 + length + begin : 8 + length + end]
        text = json.dumps(entries).encode()
        (folder / shard).write_bytes(struct.pack("<Q", len(text)) + text + data)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(params=["gguf", "folder", "shards"])
def any_model(request, tmp_path):
    """A model of each form that is mapped; and the files of its weights."""
    if request.param == "gguf":
        path = Path(shutil.copy(LLAMA, tmp_path / "model.gguf"))
        return path, [path]
    if request.param == "folder":
        path = Path(shutil.copytree(FIXTURES / "llama" / "hf", tmp_path / "hf"))
        return path, [path / "model.safetensors"]
    path = split(tmp_path / "shards")
    return path, sorted(path.glob("*.safetensors"))


def test_every_file_of_a_model_is_watched(any_model):
    path, files = any_model
    for file in files:
        with rml.load(path, n_threads=1) as model:
            answer(model)
            touch(file)
            with pytest.raises(CheckpointError, match=f"{file.name}: .*was changed"):
                answer(model)


def test_a_copy_in_memory_has_the_same_bits_and_outlives_its_file(any_model):
    path, files = any_model
    with rml.load(path, n_threads=1) as model:
        expected = answer(model)
    with rml.load(path, n_threads=1, mmap=False) as model:
        twin_of = pickle.dumps(model)
        assert answer(model).logprobs == expected.logprobs
        with pickle.loads(twin_of) as twin:
            assert not twin._checkpoint.mmap
        for file in files:
            cut(file)
        assert answer(model).logprobs == expected.logprobs
        for file in files:
            file.unlink()
        assert answer(model).logprobs == expected.logprobs
        model.plan().profile(1)


def test_a_copy_in_memory_is_no_mapping_and_cannot_be_written(path):
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir())) if open_files.exists() else 0
    with rml.open_checkpoint(path, mmap=False) as checkpoint:
        assert not checkpoint.mmap
        view = checkpoint.tensors["output_norm.weight"].data
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
        if open_files.exists():
            assert len(list(open_files.iterdir())) == before
            assert str(path) not in Path("/proc/self/maps").read_text()
        with rml.open_checkpoint(path) as mapped:
            assert mapped.mmap
            for name, tensor in mapped.tensors.items():
                np.testing.assert_array_equal(tensor.data, checkpoint.tensors[name].data)
    assert view.nbytes  # the memory lives as long as a view


def test_pickled_checkpoints_tensors_and_decoders_keep_the_choice(path):
    for mmap in (True, False):
        with rml.open_checkpoint(path, mmap=mmap) as checkpoint:
            tensor = checkpoint.tensors["output.weight"]
            twin, view = pickle.loads(pickle.dumps((checkpoint, tensor)))
            decoder = DecoderLM(checkpoint, n_threads=1)
            again = pickle.loads(pickle.dumps(decoder))
            with twin:
                assert twin.mmap == again.checkpoint.mmap == mmap
                assert view._file.in_memory == (not mmap)
                np.testing.assert_array_equal(view.data, tensor.data)
            logits = open_session(decoder, 16).forward([5, 6])
            np.testing.assert_array_equal(open_session(again, 16).forward([5, 6]), logits)
            again.checkpoint.close()


def test_a_tensor_is_not_unpickled_from_another_file(path):
    with rml.open_checkpoint(path) as checkpoint:
        pickled = pickle.dumps(checkpoint.tensors["output.weight"])
    renamed_over(path)
    with pytest.raises(CheckpointError, match="not the file that was pickled"):
        pickle.loads(pickled)


def test_a_copy_that_does_not_fit_is_refused_before_it_is_read(path, monkeypatch):
    room = memory_room.Room(50_000, "a machine of that size")
    monkeypatch.setattr("rml.files.checkpoint.available", lambda: room)
    with pytest.raises(OutOfMemory, match=r"copy of .*81,152, available: 50,000") as caught:
        rml.open_checkpoint(path, mmap=False)
    assert (caught.value.needed, caught.value.available) == (81_152, 50_000)
    rml.open_checkpoint(path).close()  # mapped, it fits


def test_a_file_that_changes_while_it_is_copied_is_refused(path, monkeypatch):
    made = MappedFile.read_into_memory

    def changed(self):
        overwrite(path)
        made(self)

    monkeypatch.setattr(MappedFile, "read_into_memory", changed)
    with pytest.raises(CheckpointError, match=EXPECTED):
        rml.open_checkpoint(path, mmap=False)
