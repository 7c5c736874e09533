"""Expressions and statements of chat templates, for make_text_goldens.py. Where minijinja is known to
differ from Jinja, runtime/text/README.md says so."""

# One a line.
EXPRESSIONS = r"""
missing|length
missing|count
missing|list
missing|join(',')
missing|upper
missing|trim
missing|default('d')
''|default('d', true)
none|default('d')
none|default('d', true)
missing|first
missing is sequence
'ab' is sequence
{'a':1} is sequence
[1] is sequence
3 is sequence
none is sequence
none is iterable
true is iterable
missing is mapping
{'a':1} is mapping
true is number
true is integer
1 is integer
1.0 is float
1 is number
'a' is string
none is none
missing is none
missing == none
missing is string
true is boolean
1 is true
missing or 'x'
missing and 'x'
not missing
none or 'x'
'x' and 'y'
0 or ''
[] or {}
1 == 1.0
1 == true
'1' == 1
'a' < 'b'
1 < 2 < 3
3 > 2 > 2
7 // 2
-7 // 2
7 % -3
-7 % 3
7.5 // 2
2 ** 5
2 ** -1
2 ** 0.5
10 / 4
10 / 5
1e15
0.0001
0.1 + 0.2
1e300 * 1e10
-0.0
3.0
1.0|int
'3'|int
'x'|int(7)
'3.5'|float
3|float
3|string
3.0|string
true|string
none|string
[1, 'a', none, true, 1.0]|string
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1]
'ab' * 2
2 * 'ab'
[1] * 2
[1] + [2]
true + 1
(1, 2)
(1,)
()
[]
{}
[1, 'a', none, true, 1.0, [2], {'k': 'v'}]
{'a': 1, 'b': none, 3: 'x'}
["it's", 'say "x"', "both ' and \"", 'new\nline', 'tab\t', 'back\\slash', 'é😀']
'tab\tnew\nx'
"\x41\u00e9"
'abc'[0]
'abc'[-1]
'abc'[5]
'abc'[1:]
'abc'[:-1]
'abc'[::-1]
'abc'[::2]
[1,2,3][-1]
[1,2,3][1:]
[1,2,3][::-1]
[1,2,3][5]
{'a':1}['a']
{'a':1}.a
{'a':1}['b']
none.x
none['x']
{'a':{'b':2}}.a.b
'é'|length
'😀é'[1]
'a b c'.split()
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
' a  b '.split(' ')
'a\nb\r\nc'.splitlines()
'  a '.strip()
'xxaxx'.strip('x')
'xya'.lstrip('yx')
'abc'.startswith('ab')
'abc'.startswith(('x', 'ab'))
'abc'.endswith('bc')
'abc'.upper()
'hello wORLD'.title()
'hello wORLD'.capitalize()
'ab'.replace('a', 'b')
'aaa'.replace('a', 'b', 2)
'abc'.find('c')
'abc'.find('z')
'abcabc'.rfind('b')
'abc'.count('b')
','.join(['a', 'b'])
'{} {}'.format(1, 'a')
'{x}'.format(x=3)
'%.2f'|format(3.14159)
'%s and %s'|format('a', 'b')
'12'.isdigit()
'a1'.isalnum()
'ab'.isalpha()
'AB'.isupper()
'ab'.islower()
'  '.isspace()
'prefix-x'.removeprefix('prefix-')
'x.py'.removesuffix('.py')
{'a':1,'b':2}.keys()|list
{'a':1,'b':2}.values()|list
{'a':1,'b':2}.items()|list
{'a':1}.get('a')
{'a':1}.get('z')
{'a':1}.get('z', 9)
{'a':1}|items|list
missing|items|list
{'b':1,'a':2}|dictsort
{'b':1,'a':2}|list
{'b':1,'a':2}|length
'a' in {'a':1}
'a' in 'cat'
'a' in ['b']
1 in [1.0]
'x' not in 'abc'
none in [none]
'a' in missing
['b','a']|sort
['b','A','a']|sort
[3,1,2]|sort(reverse=true)
[{'n':2},{'n':1}]|sort(attribute='n')
[1,1,2]|unique|list
['a','A']|unique|list
[1,2,3]|sum
[{'n':2},{'n':1}]|sum(attribute='n')
[1,2,3]|max
[1,2,3]|min
[1,2,3]|first
[1,2,3]|last
[]|first
[1,2,3]|reverse|list
'abc'|reverse
[1,2,3,4,5]|batch(2)|list
[1,2,3,4,5]|slice(2)|list
['a','b']|map('upper')|list
[{'n':2},{'m':1}]|map(attribute='n', default=0)|list
[{'n':{'m':1}}]|map(attribute='n.m')|list
[1,2,3,4]|select('odd')|list
[1,2,3,4]|reject('odd')|list
[0,1,'',none]|select|list
[{'n':2},{'n':0}]|selectattr('n')|list
[{'n':2},{'m':0}]|selectattr('n', 'defined')|list
[{'n':2},{'n':0}]|rejectattr('n')|list
[{'r':'u'},{'r':'a'}]|rejectattr('r', 'equalto', 'u')|list
[{'r':'u'},{'r':'a'}]|selectattr('r', 'in', ['u', 's'])|list
[{'r':'u','n':1},{'r':'a','n':2}]|groupby('r')
[[1,2],[3]]|map('length')|list
['a','b']|join
[1,none,'a']|join('-')
[{'n':2},{'n':1}]|join(',', attribute='n')
'hello'|capitalize
'hello world'|title
'a b'|replace(' ', '_')
'abc'|upper|lower
' x '|trim
'xax'|trim('x')
'a\nb'|indent(2)
'a\nb'|indent(2, true)
'a\n\nb'|indent(2, blank=true)
'a\nb'|indent
'<a>'|escape
'<a>'|e
'<a>'|safe
'abc'|list
3.14159|round(2)
3.5|round
2.5|round
-2.5|round
3.14|round(1, 'floor')
3.14|round|int
-3|abs
{'a': 1}|tojson
{'b': 1, 'a': [1.0, none, true]}|tojson
'é<>&\''|tojson
[1,2]|tojson(indent=2)
[]|tojson(indent=2)
{}|tojson(indent=2)
(1,2)|tojson
range(3)|list
range(1, 7, 2)|list
dict(a=1, b='x')
dict(a=1).a
namespace(a=1).a
'a' if true else 'b'
'a' if false
[1,2,3]|length > 2 and 'y'
(1 if missing else 2) + 3
not none is defined
missing is not defined
none is defined
4 is divisibleby 2
4 is even
3 is odd
'a' is in ['a']
'a' is eq 'a'
1 is sameas 1
'A' is upper
'a' is lower
'a' is escaped
messages is sequence
messages is mapping
messages[0] is mapping
messages[0].missing is defined
messages[0]['content']|length
messages|map(attribute='content')|join('|')
messages|length - 1
messages[-1]['role']
messages[10]
messages.role
messages[0].items()|list
messages[0].keys()|list
messages[0].role.upper()
messages[0] == messages[0]
messages == []
bos_token + eos_token
tools
tools is none
documents is none
true
True
none
None
false and missing.x
[true, false, none]
'a'.join('bc')
"a" "b"
1_000
0x10
'a'.__class__
'abc'|first
'abc'|last
none|upper
1|upper
none|trim
1|trim
none|int
true|int
none|tojson
none|replace('a','b')
[1,2]|string|length
'%'
'a' ~ missing
loop is defined
loop
'ab'|map('upper')|list
'x'|pprint
[1,2]|attr('x')
'é'.upper()
'ß'.upper()
'İ'.lower()
'a\u00a0b'.split()
'\u00a0x\u00a0'.strip()
'\x0bx'|trim
'a b  c '.rsplit()
' a b c'.rsplit(none, 1)
',a,'.rsplit(',')
'a'.rsplit(',', 0)
"""

STATEMENTS = {
    'for else': '{% for x in [] %}a{% else %}b{% endfor %}',
    'for over missing': '{% for x in missing %}a{% else %}e{% endfor %}',
    'for over a text': "{% for c in 'ab' %}[{{ c }}]{% endfor %}",
    'for over a dict': "{% for k in {'a':1,'b':2} %}{{ k }}{% endfor %}",
    'for with if and loop': "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    'loop neighbours': "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}{{ loop.nextitem.role if loop.nextitem is defined else '-' }};{% endfor %}",
    'loop cycle and changed': "{% for x in [1,1,2] %}{{ loop.cycle('a','b') }}{{ loop.changed(x) }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    'recursive': "{% for n in [{'v':1,'c':[{'v':2,'c':[]}]}] recursive %}{{ n.v }}({{ loop(n.c) }}){% endfor %}",
    'set in a loop stays inside': '{% set x = 1 %}{% for i in [1,2] %}{% set x = i * 10 %}{{ x }};{% endfor %}{{ x }}',
    'set in an if goes outside': '{% if true %}{% set x = 3 %}{% endif %}{{ x }}',
    'set block': '{% set x %}a {{ 1 + 1 }} b{% endset %}[{{ x }}]{{ x is string }}',
    'set block with filter': '{% set x | upper %}abc{% endset %}{{ x }}',
    'set unpacks': '{% set a, b = (1, 2) %}{{ a }}{{ b }}',
    'for unpacks': '{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }};{% endfor %}',
    'for unpacks nested': '{% for i, (a, b) in [(0, (1, 2))] %}{{ i }}{{ a }}{{ b }}{% endfor %}',
    'with': '{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}',
    'filter block': '{% filter upper %}abc{% endfilter %}',
    'call block': "{% macro m(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call m('a') %}body{% endcall %}",
    'macro too many': '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}',
    'macro missing argument': '{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}',
    'macro sees context': '{% macro m() %}{{ messages | length }}{{ bos_token }}{% endmacro %}{{ m() }}',
    'macro sees later sets': '{% set y = 1 %}{% macro m() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ m() }}',
    'macro result is text': "{% macro m() %} x {% endmacro %}{{ m() | trim }}{{ m() is string }}{{ m() + 'a' }}{{ m()|length }}",
    'namespace in a loop': "{% set ns = namespace(n=0, found=false) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}",
    'namespace prints': '{% set ns = namespace(a=1) %}{{ ns.b is defined }}{{ ns.a }}',
    'raw': '{% raw %}{{ x }}{% endraw %}',
    'comment': 'a{# no #}b{#- no -#} c',
    'lstrip and trim': '  {% if true %}\n  x\n  {% endif %}\n  y',
    'no lstrip': '  {%+ if true %}\n  x\n  {%+ endif %}\n  y',
    'minus signs': "a \n {{- 'b' -}} \n c",
    'windows lines': 'a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n',
    'two last lines': 'a\n\n',
    'break and continue': '{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}',
    'do': '{% do messages %}',
    'generation': '{% generation %}a{% endgeneration %}b',
    'generation with spaces': '{%- generation -%} a {%- endgeneration -%} b',
    'autoescape': "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    'trans': '{% trans %}x{% endtrans %}',
    'block': '{% block x %}inside{% endblock %}',
    'if chain': "{% if false %}a{% elif none %}b{% elif '' %}c{% elif [] %}d{% elif 0.0 %}e{% else %}f{% endif %}",
    'inline if without else in concatenation': "{{ 'a' + ('b' if false) }}",
    'deep default': "{{ (messages[0].meta or {}).get('x', 'none') }}",
    'dict literal over lines': "{% set d = {\n 'a': 1,\n 'b': [1,\n 2,],\n} %}{{ d.b[1] }}",
    'escaped braces': "{{ '{{' }}{{ '}}' }}{{ '{%' }}",
    'unclosed quote in comment': "{# it's #}x",
    'text escapes': '{{ \'a\\\\b\' }}{{ \'q\\\'q\' }}{{ "q\\"q" }}{{ \'n\\nn\' }}{{ \'u\\u00e9\' }}{{ \'x\\q\' }}',
    'tuple in': "{% if messages[0].role in ('system', 'developer') %}s{% endif %}",
    'nested attribute test': "{{ messages | selectattr('content', 'string') | list | length }}",
    'select on missing': "{{ messages | selectattr('tool_calls') | list }}{{ messages | selectattr('tool_calls', 'defined') | list }}",
    'last user': "{{ (messages | selectattr('role', 'equalto', 'user') | list | last).content }}",
    'loop variable after the loop': '{% for i in [1] %}{% endfor %}{{ i is defined }}',
    'shadowed loop': '{% for i in [1,2] %}{% for j in [1] %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}',
    'import': "{% import 'x' as y %}",
    'extends': "{% extends 'x' %}",
    'continue outside': '{% continue %}',
    'message content none': "{{ none_content is none }}{% set m = {'content': none} %}{% if m.content %}a{% else %}b{% endif %}{{ m.content }}",
}
