"""Right programs in the styles that models write, with tests that they pass: each scores 1."""

from __future__ import annotations

from typing import Any, Final

Test = dict[str, Any]


def asserts(*texts: str) -> list[Test]:
    """Return a test for each assertion."""
    return [{"assert": text} for text in texts]


def calls(**pairs: object) -> list[Test]:
    """Return a test for each call."""
    return [{"call": call, "equals": value} for call, value in pairs.items()]


PROGRAMS: Final[dict[str, tuple[str, list[Test]]]] = {
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0\n"
        "def f(a): return P(a, 2)\ndef g(a): return P(a).x",
        asserts("f(1).x == 1", "f(1) == P(1, 2)", "f(3) != P(1, 2)", "g(7) == 7", "P(1).y == 0"),
    ),
    "frozen ordered dataclass": (
        "from dataclasses import dataclass, field, asdict\n@dataclass(order=True, frozen=True)\n"
        "class V:\n    major: int\n    minor: int = 0\n    tags: tuple = ()\n"
        "def newest(vs): return max(V(*v) for v in vs)\ndef d(v): return asdict(v)",
        asserts(
            "newest([(1, 2), (2, 0)]) == V(2, 0)",
            "V(1) < V(1, 1)",
            "d(V(1)) == {'major': 1, 'minor': 0, 'tags': ()}",
            "hash(V(1)) == hash(V(1))",
            "len({V(1), V(1), V(2)}) == 2",
            "sorted([V(2), V(1)])[0].major == 1",
        ),
    ),
    "dataclass for calls": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "def f(a):\n    return P(a).x + 1",
        [{"call": "f(1)", "equals": 2}, {"call": "f(-1)", "equals": 0}],
    ),
    "enum": (
        "from enum import Enum, IntEnum, auto\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\n"
        "class Level(IntEnum):\n    LOW = auto()\n    HIGH = auto()\n"
        "def f(x): return Color(x)\ndef g(): return Level.HIGH",
        asserts(
            "f(1) == Color.RED",
            "f(2) is Color.BLUE",
            "f(1).name == 'RED' and f(1).value == 1",
            "g() == 2",
            "g() is Level.HIGH",
            "g() > Level.LOW",
            "Color['RED'] == Color.RED",
            "[c.value for c in Color] == [1, 2]",
            "len(Color) == 2",
        ),
    ),
    "string enum": (
        "from enum import Enum\nclass S(str, Enum):\n    A = 'a'\n    B = 'b'\ndef f(): return S.A",
        asserts("f() == 'a'", "f().value == 'a'", "S('b') is S.B", "f() in ('a', 'b')"),
    ),
    "flags": (
        "from enum import Flag, auto\nclass P(Flag):\n    R = auto()\n    W = auto()\n"
        "def both(): return P.R | P.W\ndef has(p): return P.W in p",
        asserts("both() == P.R | P.W", "has(both())", "not has(P.R)", "both().value == 3"),
    ),
    "namedtuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(a): return P(a, a * 2)",
        asserts(
            "f(1).x == 1",
            "f(1).y == 2",
            "f(1) == (1, 2)",
            "f(1) == P(1, 2)",
            "tuple(f(2)) == (2, 4)",
            "f(3)._asdict() == {'x': 3, 'y': 6}",
            "isinstance(f(1), P)",
            "isinstance(f(1), tuple)",
            "len(f(1)) == 2",
        ),
    ),
    "typing.NamedTuple with a method": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int\n"
        "    def norm(self) -> int:\n        return abs(self.x) + abs(self.y)\n"
        "def f(): return P(3, -4)",
        asserts(
            "f().norm() == 7", "f() == (3, -4)", "f()[1] == -4", "P(1, 2)._replace(x=5) == (5, 2)"
        ),
    ),
    "generator": (
        "def gen(n):\n    for i in range(n):\n        yield i * i\n"
        "def forever():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        asserts(
            "list(gen(4)) == [0, 1, 4, 9]",
            "sum(gen(3)) == 5",
            "next(gen(1)) == 0",
            "3 not in gen(3)",
            "[x for _, x in zip(range(3), forever())] == [0, 1, 2]",
            "import itertools\nassert list(itertools.islice(forever(), 2)) == [0, 1]",
            "dict(enumerate(gen(2))) == {0: 0, 1: 1}",
        ),
    ),
    "generator with send": (
        "def acc():\n    total = 0\n    while True:\n        x = yield total\n        total += x",
        asserts("g = acc()\nnext(g)\nassert g.send(3) == 3\nassert g.send(4) == 7\ng.close()"),
    ),
    "iterator class": (
        "class Count:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n"
        "    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1\n"
        "        return self.n",
        asserts("list(Count(3)) == [2, 1, 0]", "max(Count(5)) == 4", "1 in Count(3)"),
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(20000)\ndef depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
        "def fact(n): return 1 if n < 2 else n * fact(n - 1)",
        asserts("depth(5000) == 5000", "fact(20) == 2432902008176640000")
        + [{"call": "fact(5)", "equals": 120}],
    ),
    "memoised": (
        "from functools import lru_cache, cache\n@lru_cache(maxsize=None)\ndef fib(n): return n if n < 2 "
        "else fib(n - 1) + fib(n - 2)\n@cache\ndef sq(n): return n * n",
        asserts(
            "fib(80) == 23416728348467685",
            "sq(4) == 16",
            "fib(30)\nassert fib.cache_info().hits > 0",
        ),
    ),
    "class with operators": (
        "class V:\n    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n"
        "    def __sub__(self, o): return V(self.x - o.x, self.y - o.y)\n"
        "    def __mul__(self, k): return V(self.x * k, self.y * k)\n    __rmul__ = __mul__\n"
        "    def __neg__(self): return V(-self.x, -self.y)\n    def __abs__(self): return 5\n"
        "    def __eq__(self, o): return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)\n"
        "    def __hash__(self): return hash((self.x, self.y))\n"
        "    def __repr__(self): return f'V({self.x}, {self.y})'\n    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return (self.x, self.y)[i]\n    def __bool__(self): return True\n"
        "    def __matmul__(self, o): return self.x * o.x + self.y * o.y\n"
        "    def __contains__(self, v): return v in (self.x, self.y)\n    def __iter__(self):\n"
        "        yield self.x\n        yield self.y\n    def __lt__(self, o): return self.x < o.x\n"
        "    def __call__(self, k): return k + self.x\n    def __format__(self, s): return f'<{self.x}>'",
        asserts(
            "V(1, 2) + V(3, 4) == V(4, 6)",
            "V(1, 2) - V(1, 1) == V(0, 1)",
            "V(1, 2) * 3 == V(3, 6)",
            "3 * V(1, 2) == V(3, 6)",
            "-V(1, 2) == V(-1, -2)",
            "abs(V(3, 4)) == 5",
            "repr(V(1, 2)) == 'V(1, 2)'",
            "str(V(1, 2)) == 'V(1, 2)'",
            "f'{V(1, 2)}' == '<1>'",
            "V(1, 2) @ V(3, 4) == 11",
            "len(V(1, 2)) == 2",
            "V(7, 8)[1] == 8",
            "2 in V(1, 2) and 3 not in V(1, 2)",
            "list(V(1, 2)) == [1, 2]",
            "tuple(V(1, 2)) == (1, 2)",
            "x, y = V(5, 6)\nassert (x, y) == (5, 6)",
            "V(1, 2) < V(2, 0)",
            "min([V(2, 0), V(1, 0)]) == V(1, 0)",
            "V(1, 2)(10) == 11",
            "{V(1, 2): 'a'}[V(1, 2)] == 'a'",
            "V(1, 2) != V(2, 1)",
            "sum([V(1, 1), V(2, 2)], V(0, 0)) == V(3, 3)",
            "V(1, 2) in [V(0, 0), V(1, 2)]",
        ),
    ),
    "in-place operators": (
        "class Acc:\n    def __init__(self): self.n = 0\n    def __iadd__(self, k):\n        self.n += k\n"
        "        return self\n",
        asserts("a = Acc()\na += 3\na += 4\nassert a.n == 7"),
    ),
    "stack": (
        "class Stack:\n    def __init__(self): self._s = []\n    def push(self, x): self._s.append(x)\n"
        "    def pop(self): return self._s.pop()\n    def peek(self): return self._s[-1]\n"
        "    def is_empty(self): return not self._s\n    @property\n    def size(self): return len(self._s)",
        asserts(
            "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert s.size == 1\nassert not s.is_empty()",
            "s = Stack()\ntry:\n    s.pop()\nexcept IndexError:\n    pass\nelse:\n    assert False",
        ),
    ),
    "list subclass": (
        "class Bag(list):\n    def total(self): return sum(self)\ndef f(): return Bag([1, 2])",
        asserts(
            "f() == [1, 2]",
            "f().total() == 3",
            "b = Bag()\nb.append(4)\nassert b == [4] and b.total() == 4",
            "b = f()\nb[0] = 9\nassert list(b) == [9, 2]",
            "b = f()\nb.extend([3])\nassert len(b) == 3 and b[-1] == 3",
        ),
    ),
    "dict subclass": (
        "class D(dict):\n    def __missing__(self, k): return k * 2\n    def __getattr__(self, n):\n"
        "        return self[n]\ndef f(): return D(a=1)",
        asserts(
            "f() == {'a': 1}", "f()['a'] == 1", "d = f()\nd['z'] = 5\nassert d == {'a': 1, 'z': 5}"
        ),
    ),
    "int subclass": (
        "class Mod(int):\n    def __add__(self, o): return Mod((int(self) + int(o)) % 7)\n"
        "def f(a, b): return Mod(a) + Mod(b)",
        asserts("f(3, 6) == 2", "int(f(3, 6)) == 2", "f(1, 2) < 4"),
    ),
    "datetime": (
        "from datetime import datetime, date, timedelta, timezone, time\n"
        "def add(d, n): return d + timedelta(days=n)\ndef now(): return datetime(2024, 2, 29, 12, 30)\n"
        "def utc(): return datetime(2024, 1, 1, tzinfo=timezone.utc)\ndef span(a, b): return b - a\n"
        "def t(): return time(3, 4)",
        asserts(
            "import datetime\nassert add(datetime.date(2024, 2, 28), 1) == datetime.date(2024, 2, 29)",
            "from datetime import datetime\nassert now() == datetime(2024, 2, 29, 12, 30)",
            "from datetime import datetime, timedelta\nassert add(datetime(2024, 1, 1, 5), 2).day == 3",
            "from datetime import datetime, timezone\nassert utc() == datetime(2024, 1, 1, tzinfo=timezone.utc)",
            "import datetime\nassert span(datetime.date(2024, 1, 1), datetime.date(2024, 1, 8)).days == 7",
            "now().isoformat() == '2024-02-29T12:30:00'",
            "now().strftime('%Y') == '2024'",
            "t() == time(3, 4)",
            "span(date(2024, 1, 1), date(2024, 1, 2)) == timedelta(days=1)",
        ),
    ),
    "Decimal": (
        "from decimal import Decimal, ROUND_HALF_UP\ndef price(x): return Decimal(x).quantize(Decimal('0.01'), "
        "ROUND_HALF_UP)",
        asserts(
            "from decimal import Decimal\nassert price('2.675') == Decimal('2.68')",
            "str(price('1')) == '1.00'",
            "price('1.005') + 1 == Decimal('2.01')",
        ),
    ),
    "Fraction": (
        "from fractions import Fraction\ndef half(n): return Fraction(n, 2)\ndef s(xs): return sum(xs, Fraction(0))",
        asserts(
            "from fractions import Fraction\nassert half(3) == Fraction(3, 2)",
            "half(4) == 2",
            "abs(half(1) - 0.5) < 1e-9",
            "s([Fraction(1, 3), Fraction(2, 3)]) == 1",
        ),
    ),
    "complex": (
        "import cmath\ndef roots(a, b, c):\n    d = cmath.sqrt(b * b - 4 * a * c)\n    return (-b + d) / (2 * a), (-b - d) / (2 * a)",
        asserts("roots(1, 0, 1) == (1j, -1j)", "abs(roots(1, -3, 2)[0] - 2) < 1e-9"),
    ),
    "deque": (
        "from collections import deque\ndef rot(xs, k):\n    d = deque(xs)\n    d.rotate(k)\n    return d",
        [
            *asserts(
                "from collections import deque\nassert rot([1, 2, 3], 1) == deque([3, 1, 2])",
                "list(rot([1, 2, 3], 1)) == [3, 1, 2]",
                "rot([1], 1)[0] == 1",
            ),
            {"call": "rot([1, 2, 3], 1)", "equals": [3, 1, 2]},
        ],
    ),
    "Counter": (
        "from collections import Counter\ndef count(s): return Counter(s)",
        [
            *asserts(
                "count('aab') == {'a': 2, 'b': 1}",
                "count('aab')['z'] == 0",
                "count('aab').most_common(1) == [('a', 2)]",
                "count('ab') == Counter('ba')",
                "count('aab')['a'] == 2",
            ),
            {"call": "count('aab')", "equals": {"a": 2, "b": 1}},
        ],
    ),
    "defaultdict": (
        "from collections import defaultdict, OrderedDict\ndef group(ws):\n    d = defaultdict(list)\n"
        "    for w in ws: d[len(w)].append(w)\n    return d\ndef o(): return OrderedDict([('b', 1), ('a', 2)])",
        asserts(
            "group(['a', 'bb', 'c']) == {1: ['a', 'c'], 2: ['bb']}",
            "list(o()) == ['b', 'a']",
            "o() == {'a': 2, 'b': 1}",
        ),
    ),
    "sets": (
        "def uniq(xs): return set(xs)\ndef fz(xs): return frozenset(xs)\ndef pair(a, b): return {(a, b)}",
        asserts(
            "uniq([1, 1, 2]) == {1, 2}",
            "fz([1]) == frozenset([1])",
            "1 in uniq([1])",
            "uniq([1, 2]) - {1} == {2}",
            "uniq([1]) <= {1, 2}",
            "pair(1, 2) == {(1, 2)}",
        ),
    ),
    "big integers": (
        "def p(n): return 2 ** n\ndef digits(n): return len(str(p(n)))\ndef back(n): return n",
        [
            *asserts(
                "p(100) == 2 ** 100",
                "p(20000) == 1 << 20000",
                "digits(20000) == 6021",
                "back(10 ** 5000) == 10 ** 5000",
                "str(p(15000))[:3] == '281'",
                "-p(64) == -(2 ** 64)",
                "p(53) + 1 == 9007199254740993",
            ),
            {"call": "p(64)", "equals": 18446744073709551616},
            {"call": "str(p(20000))[:2]", "equals": "39"},
        ],
    ),
    "big integers on standard output": (
        "print(2 ** 100, len(str(2 ** 20000)))",
        [{"stdin": "", "stdout": "1267650600228229401496703205376 6021"}],
    ),
    "floats": (
        "import math\ndef area(r): return math.pi * r * r\ndef inf(): return float('inf')\n"
        "def nan(): return float('nan')\ndef third(): return 1 / 3",
        asserts(
            "abs(area(1) - 3.14159) < 1e-4",
            "math.isclose(area(2), 12.566370614359172)",
            "inf() == float('inf')",
            "nan() != nan()",
            "math.isnan(nan())",
            "round(third(), 3) == 0.333",
            "area(1) / math.pi == 1",
            "-1e-9 < area(1) - math.pi < 1e-9",
            "isinstance(area(1), float)",
            "f'{third():.2f}' == '0.33'",
            "'%.3f' % third() == '0.333'",
            "int(area(1)) == 3",
            "divmod(area(1), 1)[0] == 3",
            "area(0) == 0 and not area(0)",
        ),
    ),
    "closures": (
        "def adder(n):\n    def add(x): return x + n\n    return add\n"
        "def counter():\n    n = 0\n    def step():\n        nonlocal n\n        n += 1\n        return n\n    return step\n"
        "compose = lambda *fs: lambda x: __import__('functools').reduce(lambda a, f: f(a), fs, x)",
        asserts(
            "adder(2)(3) == 5",
            "c = counter()\nc()\nassert c() == 2",
            "compose(lambda x: x + 1, lambda x: x * 2)(3) == 8",
            "list(map(adder(1), [1, 2])) == [2, 3]",
        ),
    ),
    "higher order": (
        "def apply(f, xs): return [f(x) for x in xs]\ndef keep(p, xs): return list(filter(p, xs))\n"
        "def by(xs, key): return sorted(xs, key=key, reverse=True)\ndef twice(f): return lambda x: f(f(x))\n"
        "def fold(f, xs, start):\n    for x in xs: start = f(start, x)\n    return start",
        asserts(
            "apply(lambda x: x + 1, [1, 2]) == [2, 3]",
            "keep(lambda x: x % 2, range(5)) == [1, 3]",
            "by(['a', 'ccc', 'bb'], len) == ['ccc', 'bb', 'a']",
            "twice(lambda x: x * 3)(2) == 18",
            "fold(lambda a, b: a + b, [1, 2, 3], 0) == 6",
            "apply(str, [1]) == ['1']",
        ),
    ),
    "decorators": (
        "import functools, time\ndef logged(f):\n    @functools.wraps(f)\n    def inner(*a, **k):\n"
        "        inner.calls += 1\n        return f(*a, **k)\n    inner.calls = 0\n    return inner\n"
        "@logged\ndef f(x, *, y=1): return x * y",
        asserts("f(3, y=2) == 6", "f(1)\nassert f.calls == 1", "f.__name__ == 'f'"),
    ),
    "context manager": (
        "from contextlib import contextmanager\nlog = []\n@contextmanager\ndef managed(n):\n    log.append(n)\n"
        "    try:\n        yield n * 2\n    finally:\n        log.append(-n)\n"
        "class C:\n    def __enter__(self): return self\n    def __exit__(self, *e): return True\n    def v(self): return 4",
        asserts(
            "with managed(3) as v:\n    assert v == 6\nassert log == [3, -3]",
            "with C() as c:\n    assert c.v() == 4\n    raise ValueError",
        ),
    ),
    "static and class methods": (
        "class A:\n    n = 0\n    def __init__(self, x): self.x = x\n    @classmethod\n    def of(cls, t): return cls(int(t))\n"
        "    @staticmethod\n    def twice(x): return x * 2\n    @property\n    def double(self): return self.x * 2\n"
        "    @double.setter\n    def double(self, v): self.x = v // 2",
        asserts(
            "A.of('3').x == 3",
            "A.twice(4) == 8",
            "a = A(1)\na.double = 10\nassert a.x == 5 and a.double == 10",
            "a = A(1)\na.x = 9\nassert a.x == 9",
            "isinstance(A.of('1'), A)",
            "A.n == 0",
            "hasattr(A(1), 'x') and not hasattr(A(1), 'zz')",
            "type(A(1)).__name__ == 'A'",
        ),
    ),
    "inheritance and abstract": (
        "from abc import ABC, abstractmethod\nclass Shape(ABC):\n    @abstractmethod\n    def area(self): ...\n"
        "    def twice(self): return 2 * self.area()\nclass Sq(Shape):\n    def __init__(self, a): self.a = a\n"
        "    def area(self): return self.a ** 2",
        asserts(
            "Sq(3).twice() == 18",
            "isinstance(Sq(1), Shape)",
            "issubclass(Sq, Shape)",
            "try:\n    Shape()\nexcept TypeError:\n    pass\nelse:\n    assert False",
            "class Tri(Shape):\n    def area(self):\n        return 5\nassert Tri().twice() == 10",
        ),
    ),
    "own exceptions": (
        "class Bad(ValueError):\n    def __init__(self, msg, code):\n        super().__init__(msg)\n        self.code = code\n"
        "def f(x):\n    if x < 0: raise Bad('negative', 7)\n    return x",
        asserts(
            "try:\n    f(-1)\nexcept Bad as e:\n    assert e.code == 7 and str(e) == 'negative'\nelse:\n    assert False",
            "try:\n    f(-1)\nexcept ValueError:\n    ok = True\nassert ok",
            "f(1) == 1",
        ),
    ),
    "builtin exceptions": (
        "def f(k): return {'a': 1}[k]\ndef g(x): return 1 / x\ndef h(x):\n    if not isinstance(x, int):\n"
        "        raise TypeError('int wanted')\n    return x",
        asserts(
            "try:\n    f('z')\nexcept KeyError as e:\n    assert e.args == ('z',)\nelse:\n    assert False",
            "try:\n    g(0)\n    assert False\nexcept ZeroDivisionError:\n    pass",
            "try:\n    h('a')\nexcept TypeError as e:\n    assert 'int wanted' in str(e)",
        ),
    ),
    "changes its arguments": (
        "def sort(xs): xs.sort()\ndef put(d, k): d[k] = 1\ndef grow(s): s.add(4)\n"
        "def rotate(m):\n    m[:] = [list(r) for r in zip(*m[::-1])]\ndef swap(m): m[0][0], m[1][1] = m[1][1], m[0][0]",
        asserts(
            "xs = [3, 1, 2]\nsort(xs)\nassert xs == [1, 2, 3]",
            "d = {}\nput(d, 'a')\nassert d == {'a': 1}",
            "s = {1}\ngrow(s)\nassert s == {1, 4}",
            "m = [[1, 2], [3, 4]]\nrotate(m)\nassert m == [[3, 1], [4, 2]]",
            "m = [[1, 2], [3, 4]]\nrow = m[0]\nswap(m)\nassert row == [4, 2]",
        ),
    ),
    "linked list": (
        "class Node:\n    def __init__(self, v, nxt=None): self.val, self.next = v, nxt\n"
        "def build(xs):\n    head = None\n    for x in reversed(xs): head = Node(x, head)\n    return head\n"
        "def rev(h):\n    prev = None\n    while h: h.next, prev, h = prev, h, h.next\n    return prev",
        asserts(
            "h = rev(build([1, 2, 3]))\nout = []\nwhile h:\n    out.append(h.val)\n    h = h.next\nassert out == [3, 2, 1]",
            "build([]) is None",
            "n = build([1, 2])\nassert n.next.val == 2 and n.next.next is None",
        ),
    ),
    "tree": (
        "class T:\n    def __init__(self, v, l=None, r=None): self.v, self.l, self.r = v, l, r\n"
        "def depth(t): return 0 if t is None else 1 + max(depth(t.l), depth(t.r))\n"
        "def inorder(t): return [] if t is None else inorder(t.l) + [t.v] + inorder(t.r)",
        asserts("depth(T(1, T(2, T(3)))) == 3", "inorder(T(2, T(1), T(3))) == [1, 2, 3]"),
    ),
    "asynchronous": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x * 2\n"
        "async def both(a, b): return await asyncio.gather(f(a), f(b))\nasync def agen(n):\n    for i in range(n): yield i",
        asserts(
            "import asyncio\nassert asyncio.run(f(2)) == 4",
            "asyncio.run(both(1, 2)) == [2, 4]",
            "async def main():\n    return [await f(1), await f(2)]\nassert asyncio.run(main()) == [2, 4]",
            "async def main():\n    return [x async for x in agen(3)]\nassert asyncio.run(main()) == [0, 1, 2]",
        ),
    ),
    "multiprocessing": (
        "from multiprocessing import Pool\ndef sq(x): return x * x\ndef run(xs):\n    with Pool(2) as p:\n"
        "        return p.map(sq, xs)",
        [*asserts("run([1, 2, 3]) == [1, 4, 9]"), {"call": "run([2])", "equals": [4]}],
    ),
    "process pool on standard output": (
        "from concurrent.futures import ProcessPoolExecutor\ndef sq(x): return x * x\n"
        "if __name__ == '__main__':\n    with ProcessPoolExecutor(2) as p:\n        print(sum(p.map(sq, range(int(input())))))",
        [{"stdin": "4\n", "stdout": "14"}],
    ),
    "threads": (
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\ndef run(xs):\n"
        "    with ThreadPoolExecutor(3) as p: return list(p.map(lambda x: x + 1, xs))\n"
        "def locked():\n    n, lock = [0], threading.Lock()\n    def go():\n        with lock: n[0] += 1\n"
        "    ts = [threading.Thread(target=go) for _ in range(4)]\n    [t.start() for t in ts]\n    [t.join() for t in ts]\n    return n[0]",
        asserts("run([1, 2]) == [2, 3]", "locked() == 4"),
    ),
    "if name is main": (
        "def f(x): return x + 1\nif __name__ == '__main__':\n    raise SystemExit(f(1))",
        [*asserts("f(1) == 2"), {"call": "f(2)", "equals": 3}],
    ),
    "main with standard input": (
        "import sys\ndef main():\n    data = sys.stdin.read().split()\n    print(sum(map(int, data)))\n\n"
        "if __name__ == '__main__':\n    main()",
        [{"stdin": "1 2\n3\n", "stdout": "6\n"}],
    ),
    "exit in the end": (
        "import sys\nprint(input()[::-1])\nsys.exit(0)",
        [{"stdin": "abc\n", "stdout": "cba"}],
    ),
    "dataclass on standard input": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(int(input())).x)",
        [{"stdin": "5", "stdout": "5"}],
    ),
    "input until the end": (
        "total = 0\nwhile True:\n    try:\n        total += int(input())\n    except EOFError:\n        break\nprint(total)",
        [{"stdin": "1\n2\n3", "stdout": "6"}],
    ),
    "lines of standard input": (
        "import sys\nfor line in sys.stdin:\n    print(line.strip().upper())",
        [{"stdin": "a\nb\n", "stdout": "A\nB"}],
    ),
    "prints beside returning": (
        "def f(x):\n    print('working on', x)\n    print({'a': 1})\n    return x * 2\nprint('loaded')",
        [*asserts("f(2) == 4"), {"call": "f(3)", "equals": 6}],
    ),
    "prints to standard error": (
        "import sys\nprint('debug', file=sys.stderr)\nprint(int(input()) + 1)",
        [{"stdin": "1", "stdout": "2"}],
    ),
    "CRLF fence": (
        "Sure:\r\n```python\r\ndef f(x):\r\n    return x + 1\r\n```\r\nDone.\r\n",
        [*asserts("f(1) == 2"), {"call": "f(1)", "equals": 2}],
    ),
    "usage after the solution": (
        "```python\ndef f(x):\n    return x + 1\n```\nUse it so:\n```python\nprint(f(1))\n```\nIt prints:\n```\n2\n```",
        [*asserts("f(1) == 2"), {"call": "f(1)", "equals": 2}],
    ),
    "wrong first, right last": (
        "First try:\n```python\ndef f(x):\n    return x\n```\nThat is wrong.\n```python\ndef f(x):\n    return x + 1\n```",
        asserts("f(1) == 2"),
    ),
    "tilde fence": ("~~~python\ndef f(): return 1\n~~~", asserts("f() == 1")),
    "capital tag": ("```Python\ndef f(): return 1\n```", asserts("f() == 1")),
    "py tag": ("```py\ndef f(): return 1\n```", asserts("f() == 1")),
    "indented fence": (
        "1. Code:\n   ```python\n   def f():\n       return 1\n   ```\n",
        asserts("f() == 1"),
    ),
    "fence without an end": ("Here:\n```python\ndef f():\n    return 1\n", asserts("f() == 1")),
    "no fence": ("def f():\n    return 1\n", asserts("f() == 1")),
    "fence in a docstring": (
        "````python\ndef f():\n    '''\n    ```\n    f()\n    ```\n    '''\n    return 1\n````",
        asserts("f() == 1"),
    ),
    "output block last": (
        "```python\nprint(int(input()) * 2)\n```\nOutput:\n```\n4\n```",
        [{"stdin": "2", "stdout": "4"}],
    ),
    "check(candidate)": (
        "def add(a, b): return a + b",
        asserts(
            "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n    for i in range(5):\n"
            "        assert candidate(i, i) == 2 * i\n\ncheck(add)"
        ),
    ),
    "own name of a module": (
        "def select(xs, p): return [x for x in xs if p(x)]\ndef queue(): return [1]",
        asserts("select([1, 2], lambda x: x > 1) == [2]", "queue() == [1]"),
    ),
    "imports that tests use": (
        "import math\nfrom collections import Counter\nfrom math import isclose, sqrt\nfrom typing import List, Optional\n"
        "def norm(x: float, y: float) -> float: return sqrt(x * x + y * y)\ndef words(s: str) -> Counter: return Counter(s.split())",
        asserts(
            "isclose(norm(3, 4), 5)",
            "math.isclose(norm(1, 1), math.sqrt(2))",
            "words('a b a') == Counter(a=2, b=1)",
        ),
    ),
    "regular expressions": (
        "import re\nEMAIL = re.compile(r'[^@]+@[^@]+')\ndef ok(s): return bool(EMAIL.fullmatch(s))\ndef m(s): return re.search(r'(\\d+)', s)",
        asserts(
            "ok('a@b') is True",
            "ok('ab') is False",
            "m('a12').group(1) == '12'",
            "m('x') is None",
            "EMAIL.pattern.startswith('[')",
        ),
    ),
    "text": (
        "def rev(s): return s[::-1]\ndef up(s): return s.upper()\ndef u(): return 'äöü€😀'\ndef b(s): return s.encode()\n"
        "def empty(): return ''\ndef lines(): return 'a\\nb\\r\\n'",
        asserts(
            "rev('abc') == 'cba'",
            "up('ä') == 'Ä'",
            "u() == 'äöü€😀'",
            "b('ä') == b'\\xc3\\xa4'",
            "empty() == '' and not empty()",
            "'ell' in up('hello').lower()",
            "rev('ab').startswith('b')",
            "lines() == 'a\\nb\\r\\n'",
            "rev('ab') + 'c' == 'bac'",
            "len(rev('abc')) == 3",
        ),
    ),
    "nested data": (
        "def f(): return {'a': [1, (2, 3), {'b': {4}}], 5: None, (1, 2): True}\ndef g(): return [[0] * 2 for _ in range(2)]",
        asserts(
            "f() == {'a': [1, (2, 3), {'b': {4}}], 5: None, (1, 2): True}",
            "f()[(1, 2)] is True",
            "f()[5] is None",
            "g() == [[0, 0], [0, 0]]",
            "isinstance(f()['a'][1], tuple)",
            "sorted(map(str, f())) == ['(1, 2)', '5', 'a']",
        ),
    ),
    "identity of booleans": (
        "def yes(): return True\ndef no(): return False\ndef none(): return None",
        asserts("yes() is True", "no() is False", "none() is None", "yes() == 1", "not no()"),
    ),
    "ranges and slices": (
        "def r(): return range(1, 10, 2)\ndef s(): return slice(1, 3)\ndef e(): return ...",
        asserts(
            "list(r()) == [1, 3, 5, 7, 9]",
            "r() == range(1, 10, 2)",
            "[0, 1, 2, 3][s()] == [1, 2]",
            "e() is ...",
        ),
    ),
    "paths and ids": (
        "from pathlib import Path\nimport uuid\ndef p(a): return Path('/a') / a\ndef u(): return uuid.UUID(int=5)",
        asserts(
            "p('b').name == 'b'", "str(p('b')) == '/a/b'", "p('b') == Path('/a/b')", "u().int == 5"
        ),
    ),
    "bytes": (
        "def b(): return bytes([1, 255])\ndef ba(x):\n    x.append(3)\n    return bytearray(x)",
        asserts(
            "b() == b'\\x01\\xff'",
            "b().hex() == '01ff'",
            "x = bytearray(b'a')\nassert ba(x) == b'a\\x03' and x == b'a\\x03'",
        ),
    ),
    "bank account": (
        "class InsufficientFunds(Exception):\n    pass\nclass Account:\n    def __init__(self, balance=0): self.balance = balance\n"
        "    def deposit(self, x):\n        if x <= 0: raise ValueError('positive')\n        self.balance += x\n        return self\n"
        "    def withdraw(self, x):\n        if x > self.balance: raise InsufficientFunds(f'need {x - self.balance} more')\n"
        "        self.balance -= x\n        return self.balance",
        asserts(
            "a = Account(10)\na.deposit(5).deposit(1)\nassert a.balance == 16\nassert a.withdraw(6) == 10",
            "try:\n    Account().withdraw(5)\nexcept InsufficientFunds as e:\n    assert str(e) == 'need 5 more'\nelse:\n    raise AssertionError",
        ),
    ),
    "matrix": (
        "class M:\n    def __init__(self, rows): self.rows = rows\n    def __mul__(self, o):\n        if isinstance(o, (int, float)):\n"
        "            return M([[x * o for x in r] for r in self.rows])\n        return M([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in self.rows])\n"
        "    def __eq__(self, o): return self.rows == o.rows\n    def __getitem__(self, ij): return self.rows[ij[0]][ij[1]]\n"
        "    def __setitem__(self, ij, v): self.rows[ij[0]][ij[1]] = v",
        asserts(
            "M([[1, 2], [3, 4]]) * M([[1, 0], [0, 1]]) == M([[1, 2], [3, 4]])",
            "(M([[1, 2]]) * 2).rows == [[2, 4]]",
            "M([[1, 2]])[0, 1] == 2",
            "m = M([[1]])\nm[0, 0] = 9\nassert m.rows == [[9]]",
        ),
    ),
    "graph": (
        "import heapq\ndef dijkstra(g, s):\n    d = {s: 0}\n    q = [(0, s)]\n    while q:\n        c, u = heapq.heappop(q)\n        if c > d[u]: continue\n"
        "        for v, w in g.get(u, {}).items():\n            if c + w < d.get(v, float('inf')):\n                d[v] = c + w\n                heapq.heappush(q, (d[v], v))\n    return d",
        [
            *asserts("dijkstra({'a': {'b': 1}, 'b': {'c': 2}}, 'a') == {'a': 0, 'b': 1, 'c': 3}"),
            {"call": "dijkstra({'a': {'b': 1}}, 'a')", "equals": {"a": 0, "b": 1}},
        ],
    ),
    "calls with JSON": (
        "def f(x): return {'t': True, 'n': None, 'f': 1.5, 'l': [x, (x,)]}\ndef s(): return 'ä'",
        [
            {"call": "f(1)", "equals": {"t": True, "n": None, "f": 1.5, "l": [1, [1]]}},
            {"call": "s()", "equals": "ä"},
            {"call": "f(1)['f'] * 2", "equals": 3},
        ],
    ),
    "windows line ends on standard output": (
        "import sys\nsys.stdout.write('a\\r\\nb  \\r\\n')",
        [{"stdin": "", "stdout": "a\nb"}],
    ),
    "protocol and generics": (
        "from __future__ import annotations\nfrom typing import Generic, Protocol, TypeVar\nT = TypeVar('T')\nclass Box(Generic[T]):\n"
        "    def __init__(self, v: T) -> None: self.v = v\n    def get(self) -> T: return self.v\nclass Has(Protocol):\n    def get(self) -> int: ...",
        asserts("Box(3).get() == 3", "Box[int](4).v == 4"),
    ),
    "slots and match": (
        "class P:\n    __slots__ = ('x',)\n    __match_args__ = ('x',)\n    def __init__(self, x): self.x = x\n"
        "def f(v):\n    match v:\n        case P(x): return x\n        case [a, *_]: return a\n        case {'k': k}: return k\n        case _: return None",
        asserts("f(P(3)) == 3", "f([1, 2]) == 1", "f({'k': 5}) == 5", "f('z') is None"),
    ),
    "singleton and descriptors": (
        "class S:\n    _i = None\n    def __new__(cls):\n        if cls._i is None: cls._i = super().__new__(cls)\n        return cls._i\n"
        "class Pos:\n    def __set_name__(self, o, n): self.n = '_' + n\n    def __get__(self, o, t=None): return getattr(o, self.n)\n"
        "    def __set__(self, o, v):\n        if v < 0: raise ValueError(v)\n        setattr(o, self.n, v)\nclass I:\n    q = Pos()\n    def __init__(self, q): self.q = q",
        asserts(
            "S() is S()",
            "I(3).q == 3",
            "try:\n    I(-1)\nexcept ValueError as e:\n    assert e.args == (-1,)",
        ),
    ),
    "lru cache class": (
        "from collections import OrderedDict\nclass LRU:\n    def __init__(self, n): self.n, self.d = n, OrderedDict()\n    def get(self, k):\n"
        "        if k not in self.d: return -1\n        self.d.move_to_end(k)\n        return self.d[k]\n    def put(self, k, v):\n        self.d[k] = v\n"
        "        self.d.move_to_end(k)\n        if len(self.d) > self.n: self.d.popitem(last=False)\n    def __contains__(self, k): return k in self.d\n    def __len__(self): return len(self.d)",
        asserts(
            "c = LRU(2)\nc.put(1, 1)\nc.put(2, 2)\nc.get(1)\nc.put(3, 3)\nassert c.get(2) == -1 and c.get(1) == 1 and len(c) == 2\nassert 3 in c and 2 not in c"
        ),
    ),
    "global state": (
        "seen = []\nCONST = 42\ntotal = 0\ndef note(x):\n    global total\n    total += 1\n    seen.append(x)\n    return len(seen)",
        asserts(
            "note('a')\nassert note('b') == 2 and seen == ['a', 'b']",
            "CONST == 42",
            "note(1)\nassert total == 1\nnote(2)\nassert total == 2\nseen.clear()\nassert note(5) == 1",
        ),
    ),
    "time and randomness": (
        "import random, time\ndef roll(seed): return random.Random(seed).randint(1, 6)\ndef slow():\n    time.sleep(0.01)\n    return 1",
        asserts("roll(1) == roll(1)", "1 <= roll(3) <= 6", "slow() == 1", "roll(2) in range(1, 7)"),
    ),
}
"""Programs by name: what the model wrote, and the tests."""

NUMPY: Final[dict[str, tuple[str, list[Test]]]] = {
    "numpy": (
        "import numpy as np\ndef f(n): return np.arange(n)\ndef s(xs): return np.mean(xs)\ndef i(): return np.int64(3)\n"
        "def b(): return np.bool_(True)\ndef m(): return np.eye(2)\ndef strs(): return np.array(['a', 'b'])\ndef inplace(a): a += 1\n"
        "def tup(): return np.array([1, 2]), np.float32(0.5)",
        [
            *asserts(
                "np.array_equal(f(3), [0, 1, 2])",
                "(f(3) == np.array([0, 1, 2])).all()",
                "f(3).tolist() == [0, 1, 2]",
                "np.allclose(m(), [[1, 0], [0, 1]])",
                "s([1, 2, 3]) == 2",
                "i() == 3",
                "i() + 1 == 4",
                "isinstance(i(), np.integer)",
                "bool(b())",
                "f(4).shape == (4,)",
                "f(4)[-1] == 3",
                "f(4).sum() == 6",
                "list(strs()) == ['a', 'b']",
                "import numpy as np\na = np.zeros(2)\ninplace(a)\nassert a.tolist() == [1, 1]",
                "abs(s([1, 2]) - 1.5) < 1e-9",
                "tup()[1] == 0.5 and tup()[0].tolist() == [1, 2]",
                "np.testing.assert_allclose(m() @ np.ones(2), [1, 1])",
            ),
            {"call": "f(3)", "equals": [0, 1, 2]},
            {"call": "i()", "equals": 3},
        ],
    )
}
"""The same, with packages."""
