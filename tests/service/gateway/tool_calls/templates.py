"""Chat templates in the manner of models that take tools; written for these tests."""

# ruff: noqa: E501

from __future__ import annotations

# As Qwen and Hermes do: tools in the system message, calls in tags, results as user turns.
HERMES = """\
{{ bos_token }}{% if tools %}<|sys|>{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools

<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Answer with <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call></s>
{% elif messages[0].role == 'system' %}<|sys|>{{ messages[0].content }}</s>
{% endif %}{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}</s>
{% elif m.role == 'assistant' %}<|bot|>{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\
</tool_call>{% endfor %}</s>
{% elif m.role == 'tool' %}<|user|><tool_response>{{ m.content }}</tool_response></s>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"""

# As Llama 3.1 does: tools in the first user message, one call at a time, results as JSON.
LLAMA3 = """\
{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}\
{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}<|sys|>\
{% if tools %}Environment: ipython
{% endif %}{{ system }}</s>{% if tools %}<|user|>Given the following functions, respond with a JSON \
in the format {"name": function name, "parameters": dictionary}.

{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{{ messages[0].content }}</s>{% set messages = messages[1:] %}{% endif %}\
{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}\
{{ raise_exception('single tool-calls only') }}{% endif %}<|bot|>\
{"name": "{{ m.tool_calls[0].function.name }}", "parameters": \
{{ m.tool_calls[0].function.arguments | tojson }}}</s>{% elif m.role == 'tool' %}<|tool|>\
{{ m.content | tojson }}</s>{% else %}<|{{ 'user' if m.role == 'user' else 'bot' }}|>\
{{ m.content }}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"""

# As Mistral does: tools before the last user message, ids of nine characters, no system messages.
MISTRAL = """\
{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}\
[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]\
{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}\
{% if call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}\
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, \
"id": "{{ call.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]</s>\
{% elif m.role == 'tool' %}[TOOL_RESULTS] {"content": {{ m.content }}, \
"call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]{% elif m.role == 'assistant' %} {{ m.content }}</s>\
{% else %}{{ raise_exception('roles') }}{% endif %}{% endfor %}"""

# No tools, no system messages.
PLAIN = """\
{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}</s>\
{% elif m.role == 'assistant' %}<|bot|>{{ m.content }}</s>{% else %}\
{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}<|bot|>"""
