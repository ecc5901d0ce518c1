"""Small templates rendered by jinja2 as transformers sets it up."""
import json, sys
import transformers.utils.chat_template_utils as u
V = {"s": "Hello wörld\n x", "e": "", "n": None, "i": 7, "f": 2.5, "t": True, "l": [3, 1, 2], "w": ["b", "A", "c", "b"],
     "d": {"z": 1, "a": {"k": [1, 2.0, None, "é\"'<&>\n"]}, "items": "own"}, "m": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "x": 1}]}
T = r"""{{ s }}|{{ n }}|{{ u }}|{{ i }}|{{ f }}|{{ t }}|{{ l }}|{{ d }}|{{ w }}
{{ 'a' 'b' "c\n\t\u00e9\x41\\d\'" }}
{{ 1 + 2 * 3 ** 2 // 4 - 7 % 4 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1e3 }} {{ 1e16 }} {{ 0.00001 }} {{ 10 ** 2 }} {{ 2.0 * 3 }} {{ 1_000 }}
{{ 'x' * 3 }} {{ [1] + [2] }} {{ 'a' ~ 1 ~ none ~ true }} {{ (1, 2) + (3,) }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in s }} {{ 'H' in s }} {{ 'z' in d }} {{ 2 not in l }} {{ not 'q' in s }} {{ 1 == 1.0 }} {{ [1] == [1] }} {{ true == 1 }}
{{ e or 'x' }} {{ 'a' and 'b' }} {{ n and 'b' }} {{ 0 or none }} {{ not e }}
{{ 'a' if t else 'b' }} {{ 'a' if e }} {{ 'a' if e else 'b' if n else 'c' }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ l[1:] }} {{ l[-2:] }} {{ l[::2] }} {{ l[5:] }} {{ l[9] }} {{ (1,2,3)[::-1] }} {{ s[:-2] }} {{ s[6:8] }}
{{ d.z }} {{ d['z'] }} {{ d['items'] }}
{{ d.a.k[0] }} {{ d.q }} {{ d.q is defined }} {{ d['a']['k'][-1] }} {{ n.x is defined }} {{ m[0].role }} {{ l.0 }}
{{ u.x }}
{{ u['x'] }}
{{ s + n }}
{{ s + 1 }}
{{ 1 + s }}
{{ n.x.y }}
{{ 1 / 0 }}
{{ s < 1 }}
{{ n | length }}
{% for x in n %}{% endfor %}
{{ q() }}
{{ l.append(1) }}
{{ s | nosuch }}
{{ s is nosuch }}
{% nosuch %}
{{ 'a
{% if t %}x
{{ (1 }}
{{ raise_exception('no') }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}{% for x in [] %}a{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}
{% for k, v in d | dictsort %}{{ k }};{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}
{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}{% for x in l %}{% for y in l %}{{ loop.depth }}{% endfor %}{% endfor %}
{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% endfor %}
{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 5 %}{% endif %}{{ x }}
{% set ns = namespace(a=1, b=[]) %}{% for y in l %}{% set ns.a = ns.a + y %}{% endfor %}{{ ns.a }}{% set ns.b = ns.b + [1] %}{{ ns.b }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set x %}  block {{ a }} {% endset %}[{{ x }}]{% set x | upper | trim %} up {% endset %}[{{ x }}]
{% set d.z = 2 %}
{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(1, 2, 3, 4) }}{{ f(1, z=9) }}{{ f() }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{% set q = 4 %}{% macro g() %}{{ q }}{{ i }}{% endmacro %}{{ g() }}
{% macro wrap() %}<{{ caller(1) }}>{% endmacro %}{% call(x) wrap() %}in {{ x }}{{ i }}{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %}{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% raw %}{{ not }} {% if %}{% endraw %}|{% raw -%}  x  {%- endraw %}|
a {# comment #} b {#- c -#}   d
  {% if t %}  
  x
  {% endif %}
y
   {%- if t -%}   z   {%- endif -%}   w
  {{ i }}  
	{%+ if t %}q{% endif +%}
r
x {% if t %}
y{% endif %} z
{% if t %}a{% elif u %}b{% else %}c{% endif %}{% if e %}a{% elif i %}b{% else %}c{% endif %}{% if e %}a{% else %}c{% endif %}
{{ d | tojson }} {{ l | tojson }} {{ s | tojson }} {{ n | tojson }} {{ f | tojson }} {{ 1e20 | tojson }} {{ (1, 2) | tojson }}
{{ d | tojson(indent=2) }} {{ [] | tojson(indent=4) }} {{ {} | tojson(indent=1) }}
{{ d | tojson(ensure_ascii=true) }} {{ '😀é' | tojson(ensure_ascii=true) }} {{ d | tojson(sort_keys=true, separators=(',', ':')) }} {{ d | tojson(separators=(',', ':'), indent=1) }}
{{ u | tojson }}
{{ w | sort }} {{ w | unique | list }} {{ l | sort(reverse=true) }} {{ l | max }} {{ l | min }} {{ l | sum }} {{ w | first }} {{ w | last }} {{ [] | first }} {{ w | reverse | list }} {{ 'abc' | reverse }}
{{ m | map(attribute='role') | list }} {{ m | map(attribute='x', default=0) | list }} {{ w | map('upper') | join('-') }} {{ m | selectattr('role', 'equalto', 'user') | list }} {{ m | rejectattr('x', 'defined') | list }} {{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ [0, 1, ''] | select | list }} {{ n | selectattr('x') | list }} {{ m | groupby }}
{{ ' a ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 'aBc dEf' | title }} {{ 'aBC' | capitalize }} {{ 'a' | upper }} {{ 'A' | lower }} {{ 'a-b' | replace('-', '+') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ '<a>' | escape }} {{ '3' | int + 1 }} {{ 'x' | int(5) }} {{ '2.5' | float }} {{ 3.7 | int }} {{ -3 | abs }} {{ 2.567 | round(1) }} {{ 2.5 | round }} {{ 7 | string ~ 'x' }} {{ s | length }} {{ d | length }} {{ l | count }} {{ 'abc' | list }} {{ s | wordcount }}
{{ u | default('x') }} {{ e | default('x') }} {{ e | default('x', true) }} {{ n | d('y') }} {{ 'a\nb\n\nc' | indent(2) }} {{ 'a\nb' | indent(3, true) }} {{ d | items | list }} {{ l | join }} {{ l | join(', ') }} {{ m | join('|', attribute='role') }}
{{ ' a b '.strip() }}|{{ 'xay'.strip('xy') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'a\nb\r\nc\n'.splitlines() }}|{{ s.startswith('Hello') }}|{{ s.endswith(('x', 'y')) }}|{{ 'ab'.upper() }}|{{ 'AB'.lower() }}|{{ 'a b'.title() }}|{{ 'abab'.replace('a', 'c') }}|{{ 'abab'.replace('a', 'c', 1) }}|{{ '-'.join(w) }}|{{ 'héllo'.find('l') }}|{{ 'aba'.rfind('a') }}|{{ 'aba'.count('a') }}|{{ '12'.isdigit() }}|{{ 'abc'.removeprefix('a') }}|{{ '{} {x} {0}'.format(1, x=2) }}
{{ '%s-%d' % ('a', 3) }} {{ '%s' % 'x' }} {{ 'a' % 1 }}
{{ d.keys() | list }} {{ d.values() | list }} {{ d.get('z') }} {{ d.get('q') }} {{ d.get('q', 3) }} {{ l.index(1) }} {{ l.count(1) }} {{ dict(a=1, b=2) }} {{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }}
{{ t is true }} {{ 1 is true }} {{ u is false }} {{ n is none }} {{ u is none }} {{ i is odd }} {{ i is divisibleby 7 }} {{ i is divisibleby(2) }} {{ s is string }} {{ d is mapping }} {{ s is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is iterable }} {{ i is iterable }} {{ i is number }} {{ f is float }} {{ i is integer }} {{ t is integer }} {{ t is boolean }} {{ i is in l }} {{ 3 is in l }} {{ i is eq 7 }} {{ i is not eq 7 }} {{ range is callable }} {{ u is undefined }} {{ 'a' is lower }} {{ i is gt 3 and i is lt 9 }} {{ t is sameas true }} {{ 'length' is filter }}
{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1}['a'] }}{{ {"x": [1, {"y": 2}]} }}{{ {} }}{{ () }}{{ (1,) }}{{ ['a', "it's", 'q"', 'b"\'', 'n\n\\'] }}
{{ strftime_now('%d') | length }}
{{ "a" | upper ~ "b" | upper }} {{ -1 | abs }} {{ not t or t }} {{ 1 if 0 else 2 }} {{ (l | length) > 2 }} {{ l | length > 2 }} {{ 2 ** 3 ** 2 }} {{ 1 ~ 2 + 3 }} {{ - 2 * 3 }}
{% for x in range(3) -%}
  {{ x }}
{%- endfor %}
{%- for msg in m %}
{{- msg.role + ': ' }}
{%- if loop.last %} last {% endif %}
{{- msg.content | trim }}
{% endfor %}
{% generation %}x{% set q = 1 %}{% endgeneration %}{{ q }}
{% set x = [] %}{% set _ = x %}{{ x }}{{ _ }}{{ True }}{{ None }}{{ none is none }}{{ False or 'a' }}
{{ m[-1]['role'] == 'assistant' and m[-1].content is defined and m[-1]['x'] is not none }}{{ m[5:] }}{{ m[::-1][0].role }}{{ ("a" in s) | string }}
{% macro p(*a) %}{% endmacro %}
{{ f(*[1]) }}
{{ dict(**{'a': 1}) }} {{ 'x'.join(*[['a', 'b']]) }}
{{ range(200000) | list | length }}
{{ s.nosuch }}|{{ s.nosuch() }}
{{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != '1' }} {{ none == none }} {{ u == u2 }} {{ 1.5 > 1 }}
{{- '' }} {{ '' -}}   x
"""
# entries are separated by lines; multi-line ones are joined here by their position in the list below
lines = T.split("\n")
multi = {"  {% if t %}  ": 5, "  {{ i }}  ": 3, "{% for x in range(3) -%}": 3, "{%- for msg in m %}": 5, "x {% if t %}": 2}
srcs, k = [], 0
while k < len(lines):
    n = multi.get(lines[k], 1)
    srcs.append("\n".join(lines[k:k+n])); k += n
srcs += ["a\n", "a\n\n", "a\r\nb\r\n", "{% if t %}\n\n a{% endif %}\n", "{{ i }}\n\nx", "{# c #}\n x", "  {# c #}\n x", "x  {# c #}\n x", "{% set a = 1 %}\n{% set b = 2 %}\n{{ a }}\n{{ b }}\n"]
out = []
while srcs:
    src = srcs.pop(0)
    if not src: continue
    try:
        r = {"text": u._compile_jinja_template(src).render(**V)}
    except Exception as e:
        r = {"error": f"{type(e).__name__}: {e}"}
        if src.startswith("{{") and src.count("{{ ") > 1:  # find out which
            srcs = ["{{ " + x for x in src.split("{{ ")[1:]] + srcs
            continue
    out.append({"source": src, **r})
json.dump({"vars": V, "cases": out}, open(sys.argv[1], "w"), ensure_ascii=False, indent=1)
print(len(out), [c["source"] for c in out if "error" in c])
