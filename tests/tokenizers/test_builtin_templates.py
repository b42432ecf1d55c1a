"""Templates that rml knows by name, against the published renderings of those formats."""

import pytest

from rml.errors import TemplateError
from rml.tokenizers import ChatTemplate
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES

SYSTEM, FIRST, REPLY, SECOND = "Be brief.", "Hello", "Hi there", "Who are you?"
MESSAGES = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": FIRST},
    {"role": "assistant", "content": REPLY},
    {"role": "user", "content": SECOND},
]
EXPECTED = {
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "llama2": (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST] Hi there </s>"
        "<s>[INST] Who are you? [/INST]"
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi there<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho are you?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "gemma": (
        "<s><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n"
        "<start_of_turn>model\nHi there<end_of_turn>\n"
        "<start_of_turn>user\nWho are you?<end_of_turn>\n<start_of_turn>model\n"
    ),
    "mistral-v1": ("<s>[INST] Be brief.\n\nHello [/INST]Hi there</s>[INST] Who are you? [/INST]"),
    "mistral-v3": ("<s>[INST] Hello[/INST] Hi there</s>[INST] Be brief.\n\nWho are you?[/INST]"),
    "mistral-v7": (
        "<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>"
        "[INST] Who are you?[/INST]"
    ),
    "zephyr": (
        "<|system|>\nBe brief.</s>\n<|user|>\nHello</s>\n<|assistant|>\nHi there</s>\n"
        "<|user|>\nWho are you?</s>\n<|assistant|>\n"
    ),
    "phi3": (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\nHi there<|end|>\n"
        "<|user|>\nWho are you?<|end|>\n<|assistant|>\n"
    ),
    "phi4": (
        "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hello<|im_end|>"
        "<|im_start|>assistant<|im_sep|>Hi there<|im_end|>"
        "<|im_start|>user<|im_sep|>Who are you?<|im_end|><|im_start|>assistant<|im_sep|>"
    ),
    "granite": (
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Hello<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>Hi there<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Who are you?<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>"
    ),
    "command-r": (
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hi there<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Who are you?<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    "deepseek3": (
        "<s>Be brief.<｜User｜>Hello<｜Assistant｜>Hi there<｜end▁of▁sentence｜>"
        "<｜User｜>Who are you?<｜Assistant｜>"
    ),
    "chatglm4": (
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHello<|assistant|>\nHi there"
        "<|user|>\nWho are you?<|assistant|>\n"
    ),
    "openchat": (
        "<s>Be brief.<|end_of_turn|>GPT4 Correct User: Hello<|end_of_turn|>"
        "GPT4 Correct Assistant: Hi there<|end_of_turn|>"
        "GPT4 Correct User: Who are you?<|end_of_turn|>GPT4 Correct Assistant:"
    ),
    "vicuna": (
        "<s>Be brief.\n\nUSER: Hello\nASSISTANT: Hi there</s>\nUSER: Who are you?\nASSISTANT:"
    ),
    "alpaca": (
        "Be brief.\n\n### Instruction:\nHello\n\n### Response:\nHi there</s>\n\n"
        "### Instruction:\nWho are you?\n\n### Response:\n"
    ),
}
EXPECTED["mistral"] = EXPECTED["mistral-v3"]


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_format(name):
    template = ChatTemplate.builtin(name)

    assert template.render(MESSAGES, bos_token="<s>", eos_token="</s>") == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
@pytest.mark.parametrize("messages", [[], MESSAGES[:1], MESSAGES[1:2], MESSAGES[1:], MESSAGES])
def test_without_names_of_tokens(name, messages):
    text = ChatTemplate.builtin(name).render(messages, add_generation_prompt=False)

    assert all(message["content"] in text for message in messages if message["role"] != "system")


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_content_stays_content(name):
    parts = ChatTemplate.builtin(name).render_parts(MESSAGES)
    content = [text for text, by_template in parts if not by_template]

    for message in MESSAGES:
        assert any(message["content"] in text for text in content)


def test_unknown_name():
    with pytest.raises(TemplateError, match=r"no-such.*chatml.*zephyr"):
        ChatTemplate.builtin("no-such")
