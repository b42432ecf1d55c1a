"""rml run: the continuation alone on stdout."""

import os
import subprocess
import sys

import pytest

import rml

GREEDY = ("--temp", "0", "-n", "12")


@pytest.fixture(scope="module")
def expected(toy_path):
    with rml.load(toy_path) as model:
        return model.generate("the cat", temperature=0, max_tokens=12).text


def ended(text):
    return text if text.endswith("\n") else f"{text}\n"


def test_the_answer_and_nothing_else(rml_command, toy_path, expected):
    result = rml_command("run", "-m", toy_path, *GREEDY, "the cat")
    assert result.exit_code == 0
    assert result.stdout == ended(expected)
    assert result.stderr == ""


def test_a_copy_of_the_weights_answers_the_same(rml_command, toy_path, expected):
    result = rml_command("run", "-m", toy_path, "--no-mmap", *GREEDY, "the cat")
    assert (result.exit_code, result.stdout, result.stderr) == (0, ended(expected), "")


def test_the_prompt_is_shown_on_request(rml_command, toy_path, expected):
    result = rml_command("run", "-m", toy_path, *GREEDY, "--display-prompt", "the cat")
    assert result.stdout == ended("the cat" + expected)
    result = rml_command("run", "-m", toy_path, "--display-prompt", "-n", "0", "the cat")
    assert result.stdout == "the cat\n"


@pytest.mark.parametrize("how", ["-p", "stdin", "-", "-f", "-f -"])
def test_where_the_text_comes_from(rml_command, toy_path, expected, how, tmp_path):
    (tmp_path / "prompt").write_text("the cat\n")
    args, text = {
        "-p": (["-p", "the cat"], None),
        "stdin": ([], "the cat\n"),
        "-": (["-"], "the cat\n"),
        "-f": (["-f", tmp_path / "prompt"], None),
        "-f -": (["-f", "-"], "the cat\n"),
    }[how]
    result = rml_command("run", "-m", toy_path, *GREEDY, *args, input=text)
    assert result.stdout == ended(expected)


def test_texts_are_joined(rml_command, toy_path, tmp_path):
    (tmp_path / "a").write_text("\ufefffile\n", encoding="utf-8")
    args = (
        "run",
        "-m",
        toy_path,
        "-n",
        "0",
        "--display-prompt",
        "-f",
        tmp_path / "a",
        r"the\ttext",
    )
    assert rml_command(*args, input="piped\n").stdout == "piped\n\nfile\n\nthe\ttext\n"
    assert rml_command(*args, "--no-escape").stdout == "file\n\nthe\\ttext\n"


def test_a_cut_answer_is_announced(rml_command, toy_path):
    def said(*args):
        return rml_command("run", "-m", toy_path, "--ignore-eos", *args, "the cat").stderr

    cut = "[the answer is cut: the context is full with 40 tokens; -c N makes room for N tokens]\n"
    assert said("-c", "40", "-n", "99") == cut
    assert said("-c", "40") == cut
    assert said("-c", "40", "-n", "-1") == cut
    assert said("-n", "5") == ""
    assert said("-n", "0") == ""


def test_a_hugging_face_folder(rml_command, toy_path):
    result = rml_command("run", "-m", toy_path.parent / "hf", *GREEDY, "the cat")
    assert result.exit_code == 0
    assert result.stdout.strip()


def test_settings_reach_the_model(rml_command, toy_path):
    def run(*args):
        result = rml_command("run", "-m", toy_path, "-n", "20", "the cat", *args)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert run("-s", "1") == run("-s", "1", "-t", "1")
    assert len({run("-s", str(seed), "--temp", "5", "--top-k", "0") for seed in range(4)}) > 1
    assert run("--temp", "9", "--top-k", "1", "-s", "3") == run("--temp", "0")
    with rml.load(toy_path) as model:
        first = model.generate("the cat", temperature=0, max_tokens=1).token_ids[0]
    assert run("--temp", "0", "-l", f"{first}-inf") != run("--temp", "0")


def test_every_sampling_flag_is_understood(rml_command, toy_path):
    line = (
        "-s 1 --temp 0.7 --dynatemp-range 0.1 --dynatemp-exp 1.5 --top-k 30 --top-p 0.9 "
        "--min-p 0.01 --typical 0.9 --top-nsigma 3 --repeat-penalty 1.1 --repeat-last-n 32 "
        "--presence-penalty 0.1 --frequency-penalty 0.1 --dry-multiplier 0.8 --dry-base 1.75 "
        "--dry-allowed-length 2 --dry-penalty-last-n 64 --dry-sequence-breaker none "
        "--xtc-probability 0.1 --xtc-threshold 0.1 --mirostat 2 --mirostat-ent 4 --mirostat-lr 0.1 "
        "--samplers penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature "
        "--ignore-eos -l 5+1 -ctk f32 -ctv f32"
    )
    result = rml_command("run", "-m", toy_path, "-n", "8", *line.split(), "the cat")
    assert result.exit_code == 0, result.stderr
    again = rml_command("run", "-m", toy_path, "-n", "8", *line.split(), "the cat")
    assert again.stdout == result.stdout
    letters = rml_command("run", "-m", toy_path, "-n", "8", "--sampling-seq", "kt", "the cat")
    assert letters.exit_code == 0, letters.stderr


def test_a_long_prompt_is_shortened_on_request_and_said(rml_command, toy_path):
    args = ("run", "-m", toy_path, "-c", 40, "-n", 5, "the cat " * 30)
    refused = rml_command(*args)
    assert refused.exit_code == 1
    assert "truncate" in refused.stderr
    shortened = rml_command(*args, "--truncate", "left")
    assert shortened.exit_code == 0
    assert "tokens of the oldest text were left out" in shortened.stderr


def test_no_tokens(rml_command, toy_path):
    assert rml_command("run", "-m", toy_path, "-n", "0", "the cat").stdout == "\n"


def test_a_stop_string(rml_command, toy_path, expected):
    stop = expected[4:7]
    result = rml_command("run", "-m", toy_path, *GREEDY, "--stop", stop, "the cat")
    assert result.stdout == ended(expected[: expected.index(stop)])


def test_special_tokens_are_read_on_request(rml_command, toy_path):
    prompt = "<|im_start|>user\nhi<|im_end|>\n"
    plain = rml_command("run", "-m", toy_path, *GREEDY, prompt).stdout
    special = rml_command("run", "-m", toy_path, *GREEDY, "--parse-special", prompt).stdout
    assert plain != special


def test_verbose_says_speed_and_seed(rml_command, toy_path):
    result = rml_command("run", "-m", toy_path, "-n", "3", "-s", "5", "-v", "the cat")
    assert "tokens/s" in result.stderr
    assert "seed 5" in result.stderr
    assert "tokens/s" not in result.stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-c", "4", "a long prompt that does not fit"], 1, "the context holds 4"),
        (["--temp", "-1", "hi"], 1, "temperature=-1.0"),
        (["-ctk", "q8_0", "hi"], 1, "q8_0"),
        (["--samplers", "nonsense", "hi"], 1, "samplers"),
        (["-l", "99999999+1", "hi"], 1, "99999999"),
        (["hi", "-p", "ho"], 2, "once"),
        (["-f", "/nowhere"], 2, "/nowhere"),
        ([""], 1, "no tokens"),
    ],
)
def test_refusals(rml_command, toy_path, args, code, message):
    result = rml_command("run", "-m", toy_path, "-n", "2", *args)
    assert result.exit_code == code
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_is_downloaded(rml_command, known_toy):
    result = rml_command("run", "-m", "toy", "hi")
    assert result.exit_code == 1
    assert "rml pull toy" in result.stderr


def test_gpu_flags_do_no_harm(rml_command, toy_path, expected):
    result = rml_command("run", "-m", toy_path, *GREEDY, "-ngl", "99", "-fa", "the cat")
    assert result.stdout == ended(expected)
    assert result.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error_message(toy_path):
    command = f'"{sys.executable}" -m rml run -m "{toy_path}" -c 4000 -n 500 --ignore-eos "the cat"'
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1 | wc -c"],
        env=os.environ,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "1"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_smollm2_knows_paris(rml_command, smollm2_path):
    result = rml_command(
        "run", "-m", smollm2_path, "--temp", "0", "-n", "3", "The capital of France is"
    )
    assert result.stdout.startswith(" Paris")
