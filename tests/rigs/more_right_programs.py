"""Right programs in the styles that models write, each with assertions that it passes.

A row is a program and assertions of it. `PROGRAMS` runs without packages, `WITH_PACKAGES` with
numpy, `PRINTING` are programs with what they read and print, `RETURNING` calls with JSON values.
"""

from __future__ import annotations

from typing import Final

PROGRAMS: Final[dict[str, tuple[str, list[str]]]] = {
    "wrapped list": (
        "from collections import UserList\n"
        "class Stack(UserList):\n    def top(self): return self[-1]\n"
        "def make(): return Stack([1, 2])\n",
        [
            "make() == [1, 2]",
            "[1, 2] == make()",
            "make() != [2, 1]",
            "Stack([1]) + [2] == [1, 2]",
            "s = Stack()\ns.append(3)\nassert s == [3] and s.top() == 3",
            "make().data == [1, 2] and list(make()) == [1, 2]",
        ],
    ),
    "wrapped dict and text": (
        "from collections import UserDict, UserString\n"
        "class Caseless(UserDict):\n"
        "    def __getitem__(self, key): return super().__getitem__(key.lower())\n"
        "    def __setitem__(self, key, value): super().__setitem__(key.lower(), value)\n"
        "class Name(UserString): pass\n",
        [
            "Caseless(A=1) == {'a': 1}",
            "d = Caseless()\nd['X'] = 2\nassert d['x'] == 2 and d == {'x': 2}",
            "Name('ab') == 'ab'",
            "Name('ab').upper() == 'AB'",
        ],
    ),
    "views of Python": (
        "from collections import ChainMap\nfrom types import MappingProxyType, SimpleNamespace\n"
        "def chain(): return ChainMap({'a': 1}, {'b': 2})\n"
        "def proxy(): return MappingProxyType({'a': 1})\n"
        "def space(): return SimpleNamespace(a=1, b=[2])\n"
        "def view(): return memoryview(b'ab')\n",
        [
            "chain() == {'a': 1, 'b': 2}",
            "proxy() == {'a': 1}",
            "space() == SimpleNamespace(a=1, b=[2])",
            "view() == b'ab'",
        ],
    ),
    "below Decimal, date and Fraction": (
        "from datetime import date, datetime\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "class Money(Decimal): pass\nclass Day(date): pass\nclass Part(Fraction): pass\nclass Now(datetime): pass\n"
        "def pay(): return Money('2.50')\ndef day(): return Day(2024, 1, 2)\n"
        "def part(): return Part(1, 2)\ndef now(): return Now(2024, 1, 2, 3)\n",
        [
            "pay() == Decimal('2.5')",
            "day() == date(2024, 1, 2)",
            "part() == Fraction(1, 2)",
            "now() == datetime(2024, 1, 2, 3)",
        ],
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n"
        "@dataclass\nclass P:\n    x: int\n    y: int = 2\n    tags: list = field(default_factory=list)\n"
        "    def norm(self): return (self.x ** 2 + self.y ** 2) ** 0.5\n"
        "def make(x): return P(x)\n",
        [
            "P(1) == P(1, 2)",
            "make(3).x == 3",
            "P(3, 4).norm() == 5",
            "abs(P(3, 4).norm() - 5) < 1e-9",
            "P(1) != P(2)",
            "repr(P(1)) == 'P(x=1, y=2, tags=[])'",
            "make(1) == P(1)",
            "isinstance(make(1), P)",
            "P(1).tags == []",
        ],
    ),
    "frozen dataclass": (
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True, order=True)\nclass V:\n    a: int\n    b: int\n"
        "def top(vs): return max(vs)\n",
        [
            "V(1, 2) < V(1, 3)",
            "top([V(1, 2), V(3, 0)]) == V(3, 0)",
            "len({V(1, 2), V(1, 2)}) == 1",
            "sorted([V(2, 1), V(1, 1)])[0] == V(1, 1)",
            "import dataclasses\ntry:\n    V(1, 2).a = 3\nexcept dataclasses.FrozenInstanceError:\n    pass\nelse:\n    assert False",
        ],
    ),
    "enum": (
        "from enum import Enum, IntEnum, Flag, auto\n"
        "class Color(Enum):\n    RED = 'red'\n    BLUE = 'blue'\n"
        "class Level(IntEnum):\n    LOW = 1\n    HIGH = 2\n"
        "def pick(n): return Color.RED if n else Color.BLUE\ndef level(n): return Level(n)\n",
        [
            "pick(1) is Color.RED",
            "pick(0) == Color.BLUE",
            "pick(1).value == 'red'",
            "Color('blue') is Color.BLUE",
            "Color['RED'] is Color.RED",
            "[c.name for c in Color] == ['RED', 'BLUE']",
            "len(Color) == 2",
            "level(1) == 1",
            "level(2) is Level.HIGH",
            "Level.LOW < Level.HIGH",
            "level(2) > 1",
            "{Color.RED: 1}[pick(1)] == 1",
            "pick(1) in (Color.RED,)",
            "isinstance(pick(1), Color)",
        ],
    ),
    "namedtuple": (
        "from collections import namedtuple\nfrom typing import NamedTuple\n"
        "Pt = namedtuple('Pt', 'x y')\nclass Emp(NamedTuple):\n    name: str\n    pay: int = 3\n"
        "def pt(a, b): return Pt(a, b)\ndef emp(n): return Emp(n)\n",
        [
            "pt(1, 2).x == 1",
            "pt(1, 2) == (1, 2)",
            "pt(1, 2) == Pt(1, 2)",
            "pt(1, 2)._asdict() == {'x': 1, 'y': 2}",
            "emp('a').pay == 3",
            "emp('a').name == 'a'",
            "x, y = pt(3, 4)\nassert x + y == 7",
            "pt(1, 2)._replace(x=5) == (5, 2)",
            "sorted([pt(2, 1), pt(1, 2)])[0].x == 1",
            "isinstance(pt(1, 2), tuple)",
            "len(pt(1, 2)) == 2",
            "pt(1, 2)[1] == 2",
            "str(pt(1, 2)) == 'Pt(x=1, y=2)'",
        ],
    ),
    "generators": (
        "import itertools\ndef gen(n):\n    for i in range(n): yield i * i\n"
        "def naturals():\n    i = 0\n    while True:\n        yield i\n        i += 1\n"
        "def echo():\n    got = None\n    while True: got = yield got\n"
        "class Count:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return iter(range(self.n))\n"
        "class It:\n    def __init__(self): self.i = 0\n    def __iter__(self): return self\n"
        "    def __next__(self):\n        self.i += 1\n        if self.i > 3: raise StopIteration\n        return self.i\n",
        [
            "list(gen(4)) == [0, 1, 4, 9]",
            "import itertools\nassert list(itertools.islice(naturals(), 3)) == [0, 1, 2]",
            "sum(gen(3)) == 5",
            "g = naturals()\nassert next(g) == 0 and next(g) == 1",
            "list(Count(3)) == [0, 1, 2]",
            "list(It()) == [1, 2, 3]",
            "g = echo()\nnext(g)\nassert g.send(5) == 5",
            "dict(enumerate(gen(2))) == {0: 0, 1: 1}",
            "[x for x in It()] == [1, 2, 3]",
            "import types\nassert isinstance(gen(1), types.GeneratorType)",
            "4 in gen(3)",
            "next(iter(Count(1))) == 0",
            "g = gen(1)\nnext(g)\ntry: next(g)\nexcept StopIteration: pass\nelse: assert 0",
        ],
    ),
    "operators": (
        "class Vector:\n    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)\n"
        "    def __sub__(self, o): return Vector(self.x - o.x, self.y - o.y)\n"
        "    def __mul__(self, k):\n        if isinstance(k, Vector): return self.x * k.x + self.y * k.y\n        return Vector(self.x * k, self.y * k)\n"
        "    __rmul__ = __mul__\n    def __neg__(self): return Vector(-self.x, -self.y)\n"
        "    def __eq__(self, o): return isinstance(o, Vector) and (self.x, self.y) == (o.x, o.y)\n"
        "    def __hash__(self): return hash((self.x, self.y))\n    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** .5\n"
        "    def __bool__(self): return bool(self.x or self.y)\n    def __repr__(self): return f'Vector({self.x}, {self.y})'\n"
        "    def __str__(self): return f'({self.x}, {self.y})'\n    def __getitem__(self, i): return (self.x, self.y)[i]\n"
        "    def __len__(self): return 2\n    def __iter__(self): return iter((self.x, self.y))\n    def __lt__(self, o): return abs(self) < abs(o)\n"
        "    def __call__(self, t): return self.x * t\n    def __contains__(self, v): return v in (self.x, self.y)\n",
        [
            "Vector(1, 2) + Vector(3, 4) == Vector(4, 6)",
            "Vector(1, 2) * 3 == Vector(3, 6)",
            "3 * Vector(1, 2) == Vector(3, 6)",
            "Vector(1, 2) * Vector(3, 4) == 11",
            "-Vector(1, 2) == Vector(-1, -2)",
            "abs(Vector(3, 4)) == 5.0",
            "not Vector(0, 0)",
            "repr(Vector(1, 2)) == 'Vector(1, 2)'",
            "str(Vector(1, 2)) == '(1, 2)'",
            "f'{Vector(1, 2)}' == '(1, 2)'",
            "Vector(1, 2)[1] == 2",
            "len(Vector(1, 2)) == 2",
            "list(Vector(1, 2)) == [1, 2]",
            "Vector(1, 1) < Vector(2, 2)",
            "Vector(2, 0)(4) == 8",
            "2 in Vector(1, 2)",
            "len({Vector(1, 2), Vector(1, 2)}) == 1",
            "(Vector(1, 2) + Vector(1, 2)) * 2 == Vector(4, 8)",
            "v = Vector(1, 2)\nv.x = 9\nassert v.x == 9",
            "Vector(1, 2) != Vector(2, 1)",
            "Vector(1, 2) - Vector(1, 2) == Vector(0, 0)",
            "sorted([Vector(3, 3), Vector(1, 1)])[0] == Vector(1, 1)",
            "max([Vector(3, 3), Vector(1, 1)]).x == 3",
            "(Vector(1, 2) * 3).x == 3",
            "x, y = Vector(1, 2)\nassert (x, y) == (1, 2)",
            "abs(Vector(3, 4) * 2) == 10",
            "[Vector(1, 2)] == [Vector(1, 2)]",
        ],
    ),
    "datetime": (
        "from datetime import datetime, date, timedelta, time, timezone\n"
        "def shift(d, n): return d + timedelta(days=n)\ndef age(a, b): return b - a\ndef utc(): return datetime(2020, 1, 1, tzinfo=timezone.utc)\n"
        "def parse(s): return datetime.strptime(s, '%Y-%m-%d')\ndef day(s): return date.fromisoformat(s)\ndef noon(): return time(12, 30)\n",
        [
            "shift(datetime(2020, 1, 31), 1) == datetime(2020, 2, 1)",
            "shift(date(2020, 1, 31), 1) == date(2020, 2, 1)",
            "age(date(2020, 1, 1), date(2020, 1, 3)) == timedelta(days=2)",
            "utc().tzinfo is not None",
            "parse('2020-05-06').month == 5",
            "import datetime\nassert shift(datetime.date(2020, 1, 31), 1) == datetime.date(2020, 2, 1)",
            "day('2020-01-02').isoformat() == '2020-01-02'",
            "noon().hour == 12",
            "utc().year == 2020",
            "parse('2020-05-06').strftime('%d/%m') == '06/05'",
        ],
    ),
    "decimal and fraction": (
        "from decimal import Decimal\nfrom fractions import Fraction\n"
        "def d(x): return Decimal(x) + 1\ndef fr(a, b): return Fraction(a, b)\n",
        [
            "d('0.1') == Decimal('1.1')",
            "fr(2, 4) == Fraction(1, 2)",
            "fr(1, 2) == 0.5",
            "fr(1, 2).denominator == 2",
            "str(d('1')) == '2'",
            "fr(1, 3) + fr(2, 3) == 1",
            "d(Decimal('2')) == 3",
            "float(fr(1, 4)) == 0.25",
        ],
    ),
    "containers": (
        "from collections import *\ndef dq(xs): return deque(xs, maxlen=3)\ndef cnt(s): return Counter(s)\ndef dd(xs):\n    d = defaultdict(list)\n"
        "    for k, v in xs: d[k].append(v)\n    return d\ndef od(xs): return OrderedDict(xs)\ndef rng(n): return range(n)\ndef fs(x): return frozenset(x)\n"
        "def keys(d): return d.keys()\ndef vals(d): return d.values()\ndef items(d): return d.items()\ndef ba(): return bytearray(b'ab')\ndef cm(): return 1 + 2j\n"
        "def mixed(): return {'a': [1, (2, {3})], (1, 2): None}\ndef nan(): return float('nan')\ndef inf(): return float('-inf')\ndef emp(): return set()\n"
        "def nothing(x): pass\n",
        [
            "dq([1, 2, 3, 4]) == deque([2, 3, 4])",
            "dq([1]).maxlen == 3",
            "cnt('aab')['a'] == 2",
            "cnt('aab').most_common(1) == [('a', 2)]",
            "dd([(1, 2), (1, 3)]) == {1: [2, 3]}",
            "list(od([(1, 2), (0, 1)])) == [1, 0]",
            "rng(3) == range(3)",
            "list(rng(3)) == [0, 1, 2]",
            "fs([1, 1]) == {1}",
            "list(keys({1: 2})) == [1]",
            "keys({1: 2}) == {1}",
            "list(vals({1: 2})) == [2]",
            "dict(items({1: 2})) == {1: 2}",
            "ba() == b'ab'",
            "cm() == 1 + 2j",
            "mixed() == {'a': [1, (2, {3})], (1, 2): None}",
            "import math\nassert math.isnan(nan())",
            "inf() == float('-inf')",
            "emp() == set()",
            "nothing(1) is None",
            "list(dq([1, 2])) == [1, 2]",
            "cnt('ab') + cnt('b') == Counter('abb')",
            "sorted(fs('ba')) == ['a', 'b']",
            "type(emp()) is set",
            "type(cnt('')) is Counter",
            "isinstance(dd([]), dict)",
        ],
    ),
    "big integers": (
        "import sys\nsys.set_int_max_str_digits(0)\ndef big(n): return 2 ** n\ndef fact(n): return 1 if n < 2 else n * fact(n - 1)\ndef digits(n): return str(2 ** n)\n",
        [
            "big(20000) == 2 ** 20000",
            "fact(300) % 1000007 == __import__('math').factorial(300) % 1000007",
            "len(digits(20000)) == 6021",
            "big(64) == 18446744073709551616",
            "-big(70) < 0",
            "f'{big(3)}' == '8'",
            "str(big(100)).startswith('12676506')",
        ],
    ),
    "closures": (
        "import functools\ndef adder(n): return lambda x: x + n\ndef counter():\n    c = 0\n    def inc():\n        nonlocal c\n        c += 1\n        return c\n    return inc\n"
        "def deco(f):\n    @functools.wraps(f)\n    def w(*a, **k): return f(*a, **k) * 2\n    return w\n@deco\ndef base(x):\n    'doc'\n    return x\n"
        "@functools.lru_cache(None)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\ndef compose(*fs):\n    def g(x):\n        for f in fs: x = f(x)\n        return x\n    return g\n"
        "def apply(f, *a, **k): return f(*a, **k)\nadd = functools.partial(lambda a, b: a + b, 1)\n"
        "def memo(f):\n    seen = {}\n    def g(x):\n        if x not in seen: seen[x] = f(x)\n        return seen[x]\n    return g\n",
        [
            "adder(2)(3) == 5",
            "c = counter()\nc()\nassert c() == 2",
            "base(4) == 8 and base.__name__ == 'base'",
            "fib(80) == 23416728348467685",
            "compose(lambda x: x + 1, str)(3) == '4'",
            "apply(max, 1, 2) == 2",
            "add(4) == 5",
            "apply(lambda *, k: k, k=4) == 4",
            "calls = []\ng = memo(lambda x: calls.append(x) or x)\ng(1); g(1)\nassert calls == [1]",
            "deco(lambda: 4)() == 8",
            "callable(adder(1))",
            "list(map(adder(1), [1, 2])) == [2, 3]",
            "sorted([3, 1], key=adder(1)) == [1, 3]",
            "fib.cache_info().hits > 0 or fib(10) == 55",
        ],
    ),
    "stateful classes": (
        "class Stack:\n    def __init__(self, items=None): self.items = list(items or [])\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self):\n        if not self.items: raise IndexError('empty')\n        return self.items.pop()\n    def __len__(self): return len(self.items)\n"
        "    @property\n    def top(self): return self.items[-1]\n    @classmethod\n    def of(cls, *xs): return cls(xs)\n    @staticmethod\n    def name(): return 'stack'\n"
        "class Account:\n    rate = 2\n    def __init__(self, b=0): self.balance = b\n    def deposit(self, n):\n        if n <= 0: raise ValueError('bad amount')\n        self.balance += n\n        return self\n"
        "class Node:\n    def __init__(self, v, nxt=None): self.val, self.next = v, nxt\ndef build(xs):\n    n = None\n    for x in reversed(xs): n = Node(x, n)\n    return n\n"
        "def rev(n):\n    p = None\n    while n: n.next, p, n = p, n, n.next\n    return p\n"
        "class Trie:\n    def __init__(self): self.w = set()\n    def insert(self, w): self.w.add(w)\n    def __contains__(self, w): return w in self.w\n    def startswith(self, p): return any(w.startswith(p) for w in self.w)\n"
        "class Solution:\n    def twoSum(self, nums, t):\n        d = {}\n        for i, n in enumerate(nums):\n            if t - n in d: return [d[t - n], i]\n            d[n] = i\n",
        [
            "s = Stack()\ns.push(1)\nassert len(s) == 1 and s.top == 1 and s.pop() == 1",
            "Stack.of(1, 2).items == [1, 2]",
            "Stack.name() == 'stack'",
            "try:\n    Stack().pop()\nexcept IndexError as e:\n    assert str(e) == 'empty'\nelse:\n    assert False",
            "Account(1).deposit(2).deposit(3).balance == 6",
            "Account.rate == 2",
            "n = build([1, 2, 3])\nassert (n.val, n.next.val, n.next.next.val, n.next.next.next) == (1, 2, 3, None)",
            "n = rev(build([1, 2]))\nassert n.val == 2 and n.next.val == 1",
            "t = Trie()\nt.insert('apple')\nassert 'apple' in t and 'app' not in t and t.startswith('app')",
            "Solution().twoSum([2, 7, 11], 9) == [0, 1]",
            "def check(candidate):\n    assert candidate([3, 3], 6) == [0, 1]\ncheck(Solution().twoSum)",
            "hasattr(Stack(), 'push') and not hasattr(Stack(), 'nope')",
            "a, b = Stack(), Stack()\na.push(1)\nassert len(b) == 0",
            "bool(Stack()) is False",
            "type(Stack()).__name__ == 'Stack'",
            "isinstance(Stack(), Stack) and not isinstance(3, Stack)",
            "a = Account()\nb = a.deposit(1)\nassert b is a",
            "nodes = []\nn = build([1, 2])\nwhile n:\n    nodes.append(n.val)\n    n = n.next\nassert nodes == [1, 2]",
        ],
    ),
    "derived from plain types": (
        "class Bag(list):\n    def total(self): return sum(self)\nclass D(dict):\n    __getattr__ = dict.__getitem__\nclass S(str):\n    def shout(self): return self.upper() + '!'\n"
        "class I(int):\n    def double(self): return self * 2\nfrom collections import UserDict, OrderedDict\nclass LRU(OrderedDict):\n    def get(self, k):\n        self.move_to_end(k)\n        return self[k]\n"
        "class M(dict):\n    def __missing__(self, k): return k * 2\ndef bag(xs): return Bag(xs)\n",
        [
            "Bag([1, 2]).total() == 3",
            "b = Bag()\nb.append(4)\nassert b == [4] and len(b) == 1 and b[0] == 4",
            "D(a=1).a == 1",
            "S('a').shout() == 'A!'",
            "S('a') == 'a'",
            "I(3).double() == 6",
            "I(3) + 1 == 4",
            "l = LRU()\nl['a'] = 1\nl['b'] = 2\nassert l.get('a') == 1 and list(l) == ['b', 'a']",
            "M()['x'] == 'xx'",
            "bag([3, 1]) == [3, 1]",
            "sorted(bag([3, 1])) == [1, 3]",
            "isinstance(bag([]), list)",
            "3 in bag([3])",
            "for i, x in enumerate(bag([5])): assert (i, x) == (0, 5)",
        ],
    ),
    "exceptions": (
        "class AppError(Exception):\n    def __init__(self, msg, code=1):\n        super().__init__(msg)\n        self.code = code\nclass Sub(AppError): pass\n"
        "def fail(k):\n    if k == 1: raise AppError('bad', 7)\n    if k == 2: raise Sub('worse')\n    if k == 3: return {}['x']\n    if k == 4: return 1 / 0\n    if k == 5: return int('q')\n    if k == 6: raise NotImplementedError\n"
        "import json\ndef load(s): return json.loads(s)\ndef out(): raise SystemExit(3)\ndef first(): return next(iter([]))\n",
        [
            "try:\n    fail(1)\nexcept AppError as e:\n    assert e.code == 7 and str(e) == 'bad' and e.args == ('bad',)\nelse: assert 0",
            "try: fail(2)\nexcept AppError as e: assert type(e) is Sub\nelse: assert 0",
            "try: fail(3)\nexcept KeyError: pass\nelse: assert 0",
            "try: fail(4)\nexcept ZeroDivisionError: pass\nelse: assert 0",
            "try: fail(5)\nexcept ValueError as e: assert 'q' in str(e)\nelse: assert 0",
            "import json\ntry: load('{')\nexcept json.JSONDecodeError as e: assert e.pos == 1\nelse: assert 0",
            "try: out()\nexcept SystemExit as e: assert e.code == 3\nelse: assert 0",
            "issubclass(Sub, AppError)",
            "try: fail(6)\nexcept NotImplementedError: pass\nelse: assert 0",
            "try: fail()\nexcept TypeError: pass\nelse: assert 0",
            "try: first()\nexcept StopIteration: pass\nelse: assert 0",
            "with pytest.raises(AppError, match='bad'): fail(1)",
            "with pytest.raises(AppError) as info: fail(1)\nassert info.value.code == 7",
        ],
    ),
    "in place": (
        "def sort(xs): xs.sort()\ndef rot(m): m[:] = [list(r) for r in zip(*m[::-1])]\ndef upd(d): d['a'] = 1\ndef app(x, acc=None):\n    acc = [] if acc is None else acc\n    acc.append(x)\n    return acc\ndef zero(m):\n    m[0][0] = 9\ndef pop(d): d.popleft()\ndef add(s): s.add(1)\n",
        [
            "xs = [3, 1]\nsort(xs)\nassert xs == [1, 3]",
            "m = [[1, 2], [3, 4]]\nrot(m)\nassert m == [[3, 1], [4, 2]]",
            "d = {}\nupd(d)\nassert d == {'a': 1}",
            "xs = []\nassert app(1, xs) is xs and xs == [1]",
            "row = [0]\nm = [row]\nzero(m)\nassert row == [9]",
            "from collections import deque\nd = deque([1, 2])\npop(d)\nassert list(d) == [2]",
            "s = set()\nadd(s)\nassert s == {1}",
            "app(1) == [1] and app(2) == [2]",
        ],
    ),
    "async": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x * 2\nasync def agen(n):\n    for i in range(n): yield i\nclass R:\n    async def __aenter__(self): return self\n    async def __aexit__(self, *a): return False\n    async def get(self): return 4\n"
        "async def many(xs): return await asyncio.gather(*[f(x) for x in xs])\n",
        [
            "import asyncio\nassert asyncio.run(f(2)) == 4",
            "import asyncio\nassert asyncio.run(many([1, 2])) == [2, 4]",
            "import asyncio\nasync def go():\n    return [x async for x in agen(3)]\nassert asyncio.run(go()) == [0, 1, 2]",
            "import asyncio\nasync def go():\n    async with R() as r:\n        return await r.get()\nassert asyncio.run(go()) == 4",
            "import asyncio\nasync def go(): return await asyncio.gather(f(1), f(2))\nassert asyncio.run(go()) == [2, 4]",
        ],
    ),
    "processes and threads": (
        "import multiprocessing, threading, queue\nfrom concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor\ndef sq(x): return x * x\n"
        "def pool(xs):\n    with multiprocessing.Pool(2) as p: return p.map(sq, xs)\ndef ppe(xs):\n    with ProcessPoolExecutor(2) as p: return list(p.map(sq, xs))\ndef tpe(xs):\n    with ThreadPoolExecutor(2) as p: return list(p.map(sq, xs))\n"
        "def thr():\n    out = []\n    ts = [threading.Thread(target=out.append, args=(i,)) for i in range(3)]\n    [t.start() for t in ts]; [t.join() for t in ts]\n    return sorted(out)\n"
        "def mq():\n    q = multiprocessing.Queue()\n    p = multiprocessing.Process(target=q.put, args=(3,))\n    p.start(); v = q.get(); p.join()\n    return v\n",
        [
            "pool([1, 2, 3]) == [1, 4, 9]",
            "tpe([1, 2]) == [1, 4]",
            "thr() == [0, 1, 2]",
            "mq() == 3",
            "ppe([2]) == [4]",
        ],
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(20000)\ndef depth(n): return 0 if n == 0 else 1 + depth(n - 1)\ndef perms(xs):\n    if len(xs) < 2: return [xs]\n    return [[x] + p for i, x in enumerate(xs) for p in perms(xs[:i] + xs[i + 1:])]\ndef nest(n): return [] if n == 0 else [nest(n - 1)]\n",
        [
            "depth(5000) == 5000",
            "len(perms([1, 2, 3, 4])) == 24",
            "nest(3) == [[[[]]]]",
            "str(nest(100)).count('[') == 101",
        ],
    ),
    "printing beside": (
        "print('loading')\ndef f(x):\n    print('debug', x)\n    return x + 1\nif __name__ == '__main__':\n    raise RuntimeError('not here')\n",
        [
            "f(1) == 2",
            "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f(1)\nassert b.getvalue() == 'debug 1\\n'",
        ],
    ),
    "modules": (
        "import math, re, json, random, string, itertools, functools, heapq, bisect, pathlib, uuid, collections, copy, pickle\nfrom math import isclose, sqrt\nfrom pathlib import Path\nclass K:\n    def __init__(self): self.v = [1]\n"
        "def area(r): return math.pi * r * r\ndef pat(): return re.compile('a+')\ndef mt(s): return re.match('(a)(b)', s)\ndef u(): return uuid.UUID(int=5)\ndef p(s): return Path(s).name\ndef js(x): return json.dumps(x)\ndef cp(): return copy.deepcopy(K()).v\ndef pk(): return pickle.loads(pickle.dumps(K())).v\n"
        "def rnd(): \n    random.seed(1)\n    return random.random()\ndef path(s): return Path(s) / 'x'\n",
        [
            "math.isclose(area(1), 3.14159, rel_tol=1e-4)",
            "isclose(area(1), math.pi)",
            "abs(area(2) - 4 * math.pi) < 1e-9",
            "pat().pattern == 'a+'",
            "mt('ab').group(1) == 'a'",
            "mt('x') is None",
            "u().int == 5",
            "p('/a/b.txt') == 'b.txt'",
            "json.loads(js({'a': 1})) == {'a': 1}",
            "cp() == [1]",
            "pk() == [1]",
            "rnd() == random.Random(1).random()",
            "str(path('/a')) == '/a/x'",
            "path('/a') == Path('/a/x')",
            "round(area(1), 2) == 3.14",
            "area(1) == pytest.approx(3.14159, rel=1e-4)",
            "int(area(1)) == 3",
            "area(1) - 3 > 0 and area(1) / 3 > 1",
        ],
    ),
    "own names": (
        "def calendar(n): return n\ndef queue(xs): return xs[::-1]\ndef solve(s): return s[::-1]\nclass abc:\n    x = 3\nLIMIT = 4\nTABLE = {'a': [1]}\ndef statistics(xs): return sum(xs) / len(xs)\nPI2: float = 6.28\n__all__ = ['solve']\n",
        [
            "calendar(3) == 3",
            "queue([1, 2]) == [2, 1]",
            "solve('ab') == 'ba'",
            "LIMIT == 4",
            "TABLE['a'] == [1]",
            "statistics([1, 3]) == 2",
            "PI2 > 6",
            "solve(solve('xy')) == 'xy'",
            "all(solve(s) == s for s in ('aa', 'b'))",
            "sorted(solve('ab')) == ['a', 'b']",
            "[solve(x) for x in ('ab',)] == ['ba']",
            "len(solve('abc')) == 3 and solve('abc')[0] == 'c'",
            "'b' in solve('ab')",
            "solve('ab').upper() == 'BA'",
            "max(queue([1, 5])) == 5",
        ],
    ),
    "abstract and generic": (
        "from abc import ABC, abstractmethod\nfrom typing import Generic, TypeVar, Protocol, Optional, List\nT = TypeVar('T')\nclass Shape(ABC):\n    @abstractmethod\n    def area(self): ...\nclass Sq(Shape):\n    def __init__(self, s): self.s = s\n    def area(self): return self.s ** 2\n"
        "class Box(Generic[T]):\n    def __init__(self, v: T): self.v = v\n    def get(self) -> T: return self.v\nclass Meta(type):\n    def __call__(cls, *a):\n        if not hasattr(cls, '_one'): cls._one = super().__call__(*a)\n        return cls._one\nclass Single(metaclass=Meta): pass\n"
        "class Slots:\n    __slots__ = ('a',)\n    def __init__(self, a): self.a = a\ndef total(shapes: List[Shape]) -> float: return sum(s.area() for s in shapes)\nclass Temp:\n    def __init__(self, c): self._c = c\n    @property\n    def c(self): return self._c\n    @c.setter\n    def c(self, v):\n        if v < -273: raise ValueError('cold')\n        self._c = v\n"
        "class Ctx:\n    log = []\n    def __enter__(self): self.log.append('in'); return self\n    def __exit__(self, *a): self.log.append('out')\n",
        [
            "Sq(3).area() == 9",
            "try: Shape()\nexcept TypeError: pass\nelse: assert 0",
            "isinstance(Sq(1), Shape) and issubclass(Sq, Shape)",
            "Box(3).get() == 3",
            "Single() is Single()",
            "Slots(1).a == 1",
            "total([Sq(1), Sq(2)]) == 5",
            "t = Temp(1)\nt.c = 5\nassert t.c == 5",
            "try: Temp(1).c = -300\nexcept ValueError: pass\nelse: assert 0",
            "class Tri(Shape):\n    def area(self): return 7\nassert total([Tri(), Sq(1)]) == 8",
            "with Ctx() as c: pass\nassert c.log == ['in', 'out']",
            "Box[int](3).get() == 3",
            "class Big(Sq):\n    def __init__(self, s):\n        super().__init__(s * 10)\n        self.extra = 1\n    def area(self): return super().area() + 1\nb = Big(1)\nassert b.area() == 101 and b.extra == 1 and isinstance(b, Sq)",
        ],
    ),
}

WITH_PACKAGES: Final[dict[str, tuple[str, list[str]]]] = {
    "numpy": (
        "import numpy as np\ndef arr(n): return np.arange(n)\ndef mean(x): return np.mean(x)\ndef i64(): return np.int64(3)\ndef mat(): return np.eye(2)\ndef scale(a): a *= 2\ndef flag(x): return np.bool_(x > 1)\ndef pair(): return np.array([1., 2.]), 3\ndef objs(): return np.array([1, 'a'], dtype=object)\ndef norm(v): return np.linalg.norm(v)\ndef s(): return np.array(['a', 'bc'])\n",
        [
            "arr(3).tolist() == [0, 1, 2]",
            "np.array_equal(arr(3), [0, 1, 2])",
            "(arr(3) == np.array([0, 1, 2])).all()",
            "mean([1, 2]) == 1.5",
            "i64() == 3",
            "isinstance(i64(), np.integer)",
            "np.allclose(mat() @ mat(), np.eye(2))",
            "mat().shape == (2, 2)",
            "a = np.array([1, 2])\nscale(a)\nassert a.tolist() == [2, 4]",
            "flag(2) == True",
            "bool(flag(0)) is False",
            "list(pair()[0]) == [1, 2]",
            "objs()[1] == 'a'",
            "abs(norm([3, 4]) - 5) < 1e-9",
            "s().tolist() == ['a', 'bc']",
            "np.testing.assert_allclose(mean([1, 2]), 1.5) is None",
            "arr(4).sum() == 6",
            "arr(4)[1:3].tolist() == [1, 2]",
            "mean(np.array([1, 3])) == pytest.approx(2)",
            "arr(3).dtype == np.int64",
            "(arr(3) + 1)[0] == 1",
        ],
    ),
}

_INPUT: Final = "3\n1 2 3\n"
PRINTING: Final[dict[str, tuple[str, str, str]]] = {
    "input loop": ("n = int(input())\nprint(sum(map(int, input().split())))", _INPUT, "6"),
    "read all": (
        "import sys\nd = sys.stdin.read().split()\nprint(sum(map(int, d[1:])))",
        _INPUT,
        "6\n",
    ),
    "until the end": (
        "t = 0\nwhile True:\n    try: t += sum(map(int, input().split()))\n    except EOFError: break\nprint(t)",
        _INPUT,
        "9",
    ),
    "main": (
        "def main():\n    input()\n    print(*map(int, input().split()), sep='\\n')\nif __name__ == '__main__':\n    main()",
        _INPUT,
        "1\n2\n3",
    ),
    "exit": ("import sys\nprint(6)\nsys.exit(0)", _INPUT, "6"),
    "exit without": ("print(6)\nexit()", _INPUT, "6"),
    "lines": ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "ab\ncd\n", "ba\ndc"),
    "buffer": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.readline())", "ab\n", "ab"),
    "open 0": ("print(len(open(0).read().split()))", _INPUT, "4"),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(int(input())))",
        "3\n",
        "A(x=3)",
    ),
    "pool": (
        "from multiprocessing import Pool\ndef f(x): return x * x\nif __name__ == '__main__':\n    with Pool(2) as p: print(p.map(f, [1, 2]))",
        "",
        "[1, 4]",
    ),
    "thread stack": (
        "import sys, threading\nsys.setrecursionlimit(10**5)\nthreading.stack_size(1 << 26)\ndef d(n): return 0 if n == 0 else 1 + d(n - 1)\nt = threading.Thread(target=lambda: print(d(20000)))\nt.start(); t.join()",
        "",
        "20000",
    ),
    "big": ("print(2 ** 20000 > 0, len(str(2 ** 20000)))", "", "True 6021"),
    "windows": ("print('a\\r')\nprint('b')", "", "a\nb"),
    "pickle": (
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)",
        "",
        "A",
    ),
    "unicode": ("print('h\\u00e9\\u4e16')", "", "h\u00e9\u4e16"),
    "asyncio": ("import asyncio\nasync def m(): print(5)\nasyncio.run(m())", "", "5"),
}

RETURNING: Final[dict[str, tuple[str, str, object]]] = {
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(n): return A(n).x",
        "f(3)",
        3,
    ),
    "tuple": ("def f(n): return (n, n)", "f(3)", [3, 3]),
    "deque": ("from collections import deque\ndef f(n): return deque([n])", "f(3)", [3]),
    "counter": (
        "from collections import Counter\ndef f(s): return Counter(s)",
        "f('aa')",
        {"a": 2},
    ),
    "bools": ("def f(): return [True, None, 1.5]", "f()", [True, None, 1.5]),
    "set": ("def f(): return {3, 1}", "f()", [1, 3]),
    "prints": ("def f(n):\n    print(n)\n    return n", "f(3)", 3),
    "nested": ("def f(): return {'a': [{'b': None}]}", "f()", {"a": [{"b": None}]}),
    "pool": (
        "from multiprocessing import Pool\ndef g(x): return x\ndef f():\n    with Pool(2) as p: return p.map(g, [1])",
        "f()",
        [1],
    ),
    "main": ("def f(): return 1\nif __name__ == '__main__':\n    print(input())", "f()", 1),
    "exit": ("import sys\ndef f(): return 1\nsys.exit(0)", "f()", 1),
    "wrapped list": (
        "from collections import UserList\nclass L(UserList): pass\ndef f(n): return L([n])",
        "f(3)",
        [3],
    ),
    "wrapped text": ("from collections import UserString as S\ndef f(): return S('a')", "f()", "a"),
    "chained": (
        "from collections import ChainMap\ndef f(): return ChainMap({'a': 1}, {'b': 2})",
        "f()",
        {"a": 1, "b": 2},
    ),
    "range": ("def f(n): return range(n)", "f(2)", [0, 1]),
    "json": ("import json\ndef f(s): return json.loads(s)", "f('[1]')", [1]),
}

FENCED: Final[dict[str, str]] = {
    "plain": "def f(x): return x + 1",
    "named": "So:\n```python\ndef f(x): return x + 1\n```\n",
    "windows": "So:\r\n```python\r\ndef f(x):\r\n    return x + 1\r\n```\r\nDone.\r\n",
    "windows alone": "def f(x):\r\n    return x + 1\r\n",
    "tildes": "~~~python\ndef f(x): return x + 1\n~~~",
    "capital": "```Python\ndef f(x): return x + 1\n```",
    "py3": "```python3\ndef f(x): return x + 1\n```",
    "indented": "1. So:\n   ```python\n   def f(x):\n       return x + 1\n   ```\n",
    "output after": "```python\ndef f(x): return x + 1\n```\nOutput:\n```\n2\n```\n",
    "text after": "```python\ndef f(x): return x + 1\n```\nOutput:\n```text\n2\n```\n",
    "shell after": "```python\ndef f(x): return x + 1\n```\nRun:\n```bash\npython x.py\n```\n",
    "two": "```python\ndef f(x): return x\n```\nBetter:\n```python\ndef f(x): return x + 1\n```\n",
    "unclosed": "So:\n```python\ndef f(x):\n    return x + 1\n",
    "unnamed": "So:\n```\ndef f(x): return x + 1\n```\n",
    "title": '```python title="a.py"\ndef f(x): return x + 1\n```\n',
    "backticks in text": "```python\ndef f(x):\n    s = '```'\n    return x + 1\n```\n",
    "usage after": "```python\ndef f(x): return x + 1\n```\nUsage:\n```python\nprint(f(1))\n```\n",
    "doctest after": "```python\ndef f(x): return x + 1\n```\nExample:\n```python\n>>> f(1)\n2\n```\n",
    "four": "````python\ndef f(x): return x + 1\n````\n",
}
