"""Chat templates by name, for files that bring none.

Each is written for the format that the model's makers published. They read what every template
reads: ``messages``, ``add_generation_prompt``, ``bos_token`` and ``eos_token``. Formats without a
system turn put the system message before the first user message.
"""

from typing import Final

__all__ = ["BUILTIN_TEMPLATES"]

# Cuts a leading system message off: what stays is `turns`, and `system` is its text or "".
_SYSTEM: Final = """\
{%- if messages and messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
"""

BUILTIN_TEMPLATES: Final[dict[str, str]] = {
    "chatml": """\
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "llama2": _SYSTEM
    + """\
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {%- set text = message.content | trim %}
        {%- if loop.first and system %}
            {%- set text = '<<SYS>>\\n' ~ system ~ '\\n<</SYS>>\\n\\n' ~ text %}
        {%- endif %}
        {{- bos_token ~ '[INST] ' ~ text ~ ' [/INST]' }}
    {%- else %}
        {{- ' ' ~ message.content | trim ~ ' ' ~ eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "llama3": """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}
    {{- message.content | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "gemma": _SYSTEM
    + """\
{{- bos_token }}
{%- for message in turns %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' ~ role ~ '\\n' }}
    {%- if loop.first and system %}
        {{- system ~ '\\n\\n' }}
    {%- endif %}
    {{- message.content | trim ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
""",
    "mistral-v1": _SYSTEM
    + """\
{{- bos_token }}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' ~ (system ~ '\\n\\n' if loop.first and system else '') }}
        {{- message.content ~ ' [/INST]' }}
    {%- else %}
        {{- message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "mistral-v3": _SYSTEM
    + """\
{{- bos_token }}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' ~ (system ~ '\\n\\n' if loop.last and system else '') }}
        {{- message.content ~ '[/INST]' }}
    {%- else %}
        {{- ' ' ~ message.content | trim ~ eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "mistral-v7": """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYSTEM_PROMPT] ' ~ message.content ~ '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' ~ message.content ~ '[/INST]' }}
    {%- else %}
        {{- ' ' ~ message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "zephyr": """\
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>\\n' ~ message.content ~ eos_token ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
""",
    "phi3": """\
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>\\n' ~ message.content ~ '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
""",
    "phi4": """\
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '<|im_sep|>' ~ message.content ~ '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant<|im_sep|>' }}
{%- endif %}
""",
    "granite": """\
{%- for message in messages %}
    {{- '<|start_of_role|>' ~ message.role ~ '<|end_of_role|>' }}
    {{- message.content ~ '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
{%- endif %}
""",
    "command-r": """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set role = '<|CHATBOT_TOKEN|>' %}
    {%- elif message.role == 'system' %}
        {%- set role = '<|SYSTEM_TOKEN|>' %}
    {%- else %}
        {%- set role = '<|USER_TOKEN|>' %}
    {%- endif %}
    {{- '<|START_OF_TURN_TOKEN|>' ~ role ~ message.content | trim ~ '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}
{%- endif %}
""",
    "deepseek3": _SYSTEM
    + """\
{{- bos_token ~ system }}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {{- '<｜User｜>' ~ message.content }}
    {%- else %}
        {{- '<｜Assistant｜>' ~ message.content ~ '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
""",
    "chatglm4": """\
{{- '[gMASK]<sop>' }}
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>\\n' ~ message.content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
""",
    "openchat": """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- message.content ~ '<|end_of_turn|>' }}
    {%- else %}
        {{- 'GPT4 Correct ' ~ message.role | title ~ ': ' }}
        {{- message.content ~ '<|end_of_turn|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'GPT4 Correct Assistant:' }}
{%- endif %}
""",
    "vicuna": _SYSTEM
    + """\
{{- bos_token }}
{%- if system %}
    {{- system ~ '\\n\\n' }}
{%- endif %}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {{- 'USER: ' ~ message.content ~ '\\n' }}
    {%- else %}
        {{- 'ASSISTANT: ' ~ message.content ~ eos_token ~ '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'ASSISTANT:' }}
{%- endif %}
""",
    "alpaca": _SYSTEM
    + """\
{%- if system %}
    {{- system ~ '\\n\\n' }}
{%- endif %}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {{- '### Instruction:\\n' ~ message.content ~ '\\n\\n' }}
    {%- else %}
        {{- '### Response:\\n' ~ message.content ~ eos_token ~ '\\n\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '### Response:\\n' }}
{%- endif %}
""",
}
BUILTIN_TEMPLATES["mistral"] = BUILTIN_TEMPLATES["mistral-v3"]
