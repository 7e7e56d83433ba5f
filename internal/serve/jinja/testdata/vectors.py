"""Writes vectors.json: what Jinja2, set up as transformers does, makes of the templates below. Run it where jinja2 is installed."""

import json
import pathlib
import sys
from datetime import datetime

from jinja2 import TemplateError, ext, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif message.content and '</think>' in message.content %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role }}
        {%- if reasoning_content and (loop.last or loop.index0 > ns.last_query_index) %}
            {{- '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{ tool_call.arguments }}{% else %}{{- tool_call.arguments | tojson }}{% endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.tool_calls is not defined %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

PARTS = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}<image>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MACROS = """{%- macro render_extra_keys(json_dict, handled_keys, mark='*') -%}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {{-'\\n' ~ mark ~ '<' ~ json_key ~ '>' }}
            {%- if json_dict[json_key] is mapping or json_dict[json_key] is sequence and json_dict[json_key] is not string %}
                {{- json_dict[json_key] | tojson | safe }}
            {%- else %}
                {{- json_dict[json_key] | string }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{% for t in tools or [] %}
{{ render_extra_keys(t.function, ['name']) }}
{{ render_extra_keys(t.function.parameters, [], mark='+') -}}
{% endfor %}
{# a comment #}
{% set text %}captured {{ messages | length }}{% endset %}
[{{ text }}]
{%+ if true %}kept{% endif %}

   {% if true %}   lstripped{% endif %}
{{ messages | map(attribute='role') | join(', ') }}
{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}
{{ {'a': 1, 'b': [true, none, 1.5, "it's"]} }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 2 ** 5 }} {{ 7 / 2 }} {{ 'a' * 3 }} {{ "x" ~ 1 }}
{{ 'Hello World'[::-1] }} {{ 'abc'[1:] }} {{ [1, 2, 3][-1] }} {{ range(3) | list }} {{ missing is defined }} [{{ missing }}]
{{ 'a' if false else 'b' }} {{ none | default('d') }} {{ '' | default('e', true) }} {{ 'ab cd' | title }} {{ 'aB' | capitalize }}
{% for k, v in {'z': 1, 'a': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{{ loop.cycle('x', 'y') }}{% else %}none{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %}
{{ [3, 1, 2] | sort | join('-') }} {{ ['b', 'a'] | first }} {{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'x'.upper() + 'Y' | lower }}
{{ 1 < 2 <= 2 and not 3 in [1] }} {{ 'b' in 'abc' }} {{ [1, [2]] == [1, [2]] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' not in ['b'] }}
{{ "line\\nnext" | indent(2) }} {{ 'é' | tojson }} {{ '<&"' | tojson }} {{ [] | tojson }} {{ 'abc' | replace('b', '-') }} {{ '5' | int + 1 }} {{ 3.7 | int }}
{%- set a, b = 1, 2 %}
{{ a }}{{ b }} {{ 'a-b_c'.replace('-', '+') }} {{ loop is defined }} {{ "%s" }} {{ messages[0].content[:2] | trim }} {{ (1, 2) | length }}
"""

USER = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "get", "description": "Gets \"it\", <now>", "parameters": {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}}, "required": []}}}]
LONG = [
    {"role": "system", "content": "  Be brief. "}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHello"}, {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get", "arguments": {"unit": "c", "n": 1.0}}}]},
    {"role": "tool", "tool_call_id": "a", "content": "20"},
]
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}, {"role": "assistant", "content": " b "}, {"role": "user", "content": "c"}]
BASE = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None, "documents": None}

CASES = [
    ("qwen", QWEN, {"messages": USER}), ("qwen with tools", QWEN, {"messages": LONG, "tools": TOOLS}),
    ("qwen without thinking", QWEN, {"messages": TURNS, "enable_thinking": False}),
    ("llama", LLAMA, {"messages": USER}), ("llama with tools", LLAMA, {"messages": LONG, "tools": TOOLS}),
    ("mistral", MISTRAL, {"messages": TURNS}), ("mistral with tools", MISTRAL, {"messages": TURNS, "tools": TOOLS}),
    ("parts", PARTS, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
    ("parts as text", PARTS, {"messages": USER, "add_generation_prompt": False}),
    ("macros and the rest", MACROS, {"messages": TURNS, "tools": TOOLS}),
    ("control characters as JSON", "{{ text | tojson }}", {"text": "a\b\f\n\r\t\x01\"\\\x7f"}),
    ("an exception", "{{ raise_exception('no ' + messages[0].role) }}", {"messages": USER}),
    ("an undefined attribute", "{{ nothing.at.all }}", {"messages": USER}),
]


CONVERSATIONS = [
    ("a question", {"messages": USER}),
    ("no generation prompt", {"messages": USER + [{"role": "assistant", "content": "Hello"}], "add_generation_prompt": False}),
    ("turns", {"messages": TURNS}),
    ("tools", {"messages": USER, "tools": TOOLS}),
    ("a call and its result", {"messages": LONG, "tools": TOOLS}),
    ("reasoning", {"messages": USER + [{"role": "assistant", "content": "b", "reasoning": "c", "reasoning_content": "c"}] + USER}),
    ("without thinking", {"messages": USER, "enable_thinking": False}),
    ("effort", {"messages": USER, "reasoning_effort": "low"}),
    ("parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
    ("two questions", {"messages": USER + USER}),
]


class Generation(ext.Extension):
    """{% generation %}, which marks what a model is trained to say."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)


def main(folder=None, out=None):
    """With a folder of templates (*.jinja): writes what becomes of each with each conversation, and not those above."""
    cases = CASES
    if folder:
        cases = [(f"{path.stem}: {name}", path.read_text(), given)
                 for path in sorted(pathlib.Path(folder).glob("*.jinja")) for name, given in CONVERSATIONS]
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def fail(message):
        raise TemplateError(message)

    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = lambda form: datetime(2026, 2, 3, 4, 5, 6).strftime(form)
    vectors = []
    for name, template, variables in cases:
        variables = {**BASE, **variables}
        one = {"name": name, "template": template, "vars": variables}
        try:
            one["text"] = env.from_string(template).render(**variables)
        except TemplateError as error:
            one["error"] = str(error)
        except (TypeError, KeyError, AttributeError):
            continue  # of Python: the template does not take such a conversation
        vectors.append(one)
    path = pathlib.Path(out) if out else pathlib.Path(__file__).with_name("vectors.json")
    path.write_text(json.dumps(vectors, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


main(*sys.argv[1:])
