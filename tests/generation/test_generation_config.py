"""Every key of Transformers' generation settings is in effect, harmless, or warned of by name."""

import json
import logging
import shutil
from pathlib import Path

import pytest

import rml
from rml.generation.generation_config import HARMLESS, IN_EFFECT, NOT_DONE, warn_of_keys

LLAMA = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "hf"

# The attributes of `GenerationConfig` in Transformers 4.45 to 5, written down from its source.
KEYS = set(
    """
    max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings
    do_sample num_beams num_beam_groups penalty_alpha dola_layers
    use_cache cache_implementation cache_config return_legacy_cache prefill_chunk_size max_cache_len
    temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff diversity_penalty
    repetition_penalty encoder_repetition_penalty length_penalty no_repeat_ngram_size bad_words_ids
    force_words_ids renormalize_logits constraints forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    forced_decoder_ids sequence_bias token_healing guidance_scale low_memory watermarking_config
    num_return_sequences output_attentions output_hidden_states output_scores output_logits
    return_dict_in_generate pad_token_id bos_token_id eos_token_id encoder_no_repeat_ngram_size
    decoder_start_token_id is_assistant num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size
    assistant_early_exit assistant_lookbehind target_lookbehind compile_config disable_compile
    use_mtp _from_model_config _commit_hash _original_object_hash transformers_version
""".split()  # noqa: SIM905 - a list that a person can compare
)

# A value that asks for something.
ASKED = {
    "begin_suppress_tokens": [3], "constraints": ["x"], "diversity_penalty": 0.5,
    "dola_layers": "high", "encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.5,
    "epsilon_cutoff": 3e-4, "eta_cutoff": 1e-3, "exponential_decay_length_penalty": [5, 1.1],
    "force_words_ids": [[5]], "forced_bos_token_id": 4, "forced_decoder_ids": [[1, 5]],
    "forced_eos_token_id": 2, "guidance_scale": 1.5, "max_time": 2.5, "min_length": 10,
    "min_new_tokens": 2, "no_repeat_ngram_size": 3, "num_beam_groups": 2, "num_beams": 4,
    "num_return_sequences": 2, "penalty_alpha": 0.6, "sequence_bias": [[[5], -10.0]],
    "stop_strings": ["x"], "token_healing": True, "top_h": 0.5,
    "watermarking_config": {"bias": 2.5},
}  # fmt: skip


def test_each_key_has_one_place():
    assert IN_EFFECT | HARMLESS | NOT_DONE.keys() == KEYS
    assert len(KEYS) == len(IN_EFFECT) + len(HARMLESS) + len(NOT_DONE)
    assert ASKED.keys() == NOT_DONE.keys()


@pytest.mark.parametrize("key", sorted(NOT_DONE))
def test_what_is_not_done_is_named_with_its_value(key, caplog):
    warn_of_keys({key: NOT_DONE[key]}, "g.json")
    warn_of_keys({key: None}, "g.json")
    assert caplog.text == ""

    warn_of_keys({key: ASKED[key]}, "g.json")
    assert f"g.json asks for what rml does not do, so answers may differ: {key}=" in caplog.text


def test_unknown_keys_are_named_once(caplog):
    warn_of_keys({"chat_format": "chatml", "top_k": 5, "use_cache": True, "odd": 1}, "g.json")

    assert [record.getMessage() for record in caplog.records] == [
        "g.json has keys that rml does not know: 'chat_format', 'odd'"
    ]


def test_bad_words_of_several_tokens_are_not_done(caplog):
    warn_of_keys({"bad_words_ids": [[5]]}, "g.json")
    assert caplog.text == ""
    warn_of_keys({"bad_words_ids": [[5], [6, 7]]}, "g.json")
    assert "bad_words_ids of several tokens" in caplog.text


def test_settings_in_a_config_json_are_said_not_to_be_in_effect(tmp_path, caplog):
    folder = Path(shutil.copytree(LLAMA, tmp_path / "llama"))
    file = folder / "config.json"
    config = json.loads(file.read_text())
    defaults = {"temperature": 1.0, "top_k": 50, "num_beams": 1, "bad_words_ids": None,
                "suppress_tokens": None, "no_repeat_ngram_size": 0}  # fmt: skip
    (folder / "generation_config.json").unlink(missing_ok=True)
    file.write_text(json.dumps(config | defaults))
    with rml.load(folder, n_threads=1):
        assert "settings of generation" not in caplog.text

    file.write_text(json.dumps(config | {"suppress_tokens": [5], "temperature": 0.6}))
    with rml.load(folder, n_threads=1):
        assert "config.json has settings of generation" in caplog.text
        assert "suppress_tokens=[5]" in caplog.text
        assert "temperature=0.6" in caplog.text

    # As in Transformers, the other file says all there is to say.
    caplog.clear()
    (folder / "generation_config.json").write_text("{}")
    with rml.load(folder, n_threads=1):
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_suppressed_tokens_are_never_chosen(tmp_path, caplog):
    folder = Path(shutil.copytree(LLAMA, tmp_path / "llama"))
    options = {"max_tokens": 6, "temperature": 0}
    with rml.load(folder, n_threads=1) as model:
        first = model.generate([9, 8, 7], **options, ignore_eos=True).token_ids[0]

    # 100 000 is beyond the vocabulary, and so are the padding and an end.
    config = {"suppress_tokens": [first, 100_000], "pad_token_id": 200_000, "num_beams": 4,
              "eos_token_id": [2, 300_000]}  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(config))
    with rml.load(folder, n_threads=1) as model:
        assert "num_beams=4" in caplog.text
        assert 300_000 not in model.stop_ids
        assert "300000" in caplog.text
        ids = model.generate([9, 8, 7], **options, ignore_eos=True).token_ids
        assert first not in ids
        assert len(ids) == 6
        # A bias of one's own leaves them suppressed; an argument replaces them.
        assert first not in model.generate([9, 8, 7], **options, logit_bias={5: 1.0}).token_ids
        again = model.generate([9, 8, 7], **options, ignore_eos=True, suppress_tokens=[])
        assert again.token_ids[0] == first
