"""Right programs: classes below plain ones that have operators, and others as models write them."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final[dict[str, tuple[str, list[str]]]] = {
    "poly list call": (
        """class Poly(list):
    def __call__(self, x): return sum(c * x**i for i, c in enumerate(self))
    def __add__(self, o):
        n = max(len(self), len(o))
        at = lambda p, i: p[i] if i < len(p) else 0
        return Poly([at(self, i) + at(o, i) for i in range(n)])
    def __mul__(self, o):
        out = [0] * (len(self) + len(o) - 1)
        for i, a in enumerate(self):
            for j, b in enumerate(o): out[i+j] += a*b
        return Poly(out)
    @property
    def degree(self): return len(self) - 1
""",
        [
            "Poly([1,2])(3) == 7",
            "Poly([1,2]) + Poly([1]) == Poly([2,2])",
            "Poly([1,1]) * Poly([1,1]) == [1,2,1]",
            "(Poly([1,1]) * Poly([1,1])).degree == 2",
            "Poly([1,2])[1] == 2",
        ],
    ),
    "vec tuple": (
        """class Vec(tuple):
    def __new__(cls, *xs): return super().__new__(cls, xs)
    def __add__(self, o): return Vec(*(a+b for a, b in zip(self, o)))
    def __sub__(self, o): return Vec(*(a-b for a, b in zip(self, o)))
    def __mul__(self, k): return Vec(*(a*k for a in self))
    __rmul__ = __mul__
    def __neg__(self): return self * -1
    def __abs__(self): return sum(a*a for a in self) ** .5
    def dot(self, o): return sum(a*b for a, b in zip(self, o))
    def __matmul__(self, o): return self.dot(o)
""",
        [
            "Vec(1,2) + Vec(3,4) == Vec(4,6)",
            "Vec(3,4) - Vec(1,1) == (2,3)",
            "Vec(1,2) * 3 == Vec(3,6)",
            "2 * Vec(1,2) == Vec(2,4)",
            "-Vec(1,2) == Vec(-1,-2)",
            "abs(Vec(3,4)) == 5",
            "Vec(1,2) @ Vec(3,4) == 11",
            "Vec(1,2).dot(Vec(3,4)) == 11",
            "len(Vec(1,2)) == 2",
        ],
    ),
    "money int": (
        """class Mod7(int):
    def __new__(cls, v): return super().__new__(cls, v % 7)
    def __add__(self, o): return Mod7(int(self) + int(o))
    __radd__ = __add__
    def __mul__(self, o): return Mod7(int(self) * int(o))
    def __pow__(self, e): return Mod7(pow(int(self), e, 7))
    def inverse(self): return Mod7(pow(int(self), 5, 7))
    def __truediv__(self, o): return self * Mod7(o).inverse()
class Celsius(float):
    def __add__(self, o): return Celsius(float(self) + float(o))
    @property
    def f(self): return self * 9 / 5 + 32
class Path2(str):
    def __truediv__(self, o): return Path2(self.rstrip('/') + '/' + o)
""",
        [
            "Mod7(5) + Mod7(4) == 2",
            "Mod7(5) + 4 == Mod7(2)",
            "4 + Mod7(5) == 2",
            "sum([Mod7(6), Mod7(6)], Mod7(0)) == 5",
            "Mod7(3) ** 6 == 1",
            "Mod7(3) / 3 == 1",
            "Mod7(3) * Mod7(5) == 1",
            "Celsius(1.5) + 1 == 2.5",
            "Celsius(100).f == 212",
            "Path2('a') / 'b' == 'a/b'",
            "Path2('a/') / 'b' / 'c' == Path2('a/b/c')",
        ],
    ),
    "grid dict": (
        """class Grid(dict):
    def __missing__(self, k): return 0
    def __getitem__(self, k):
        if isinstance(k, complex): k = (int(k.real), int(k.imag))
        return super().__getitem__(k)
    def __add__(self, o):
        g = Grid(self);
        for k, v in o.items(): g[k] = g[k] + v
        return g
    def __or__(self, o): return Grid({**self, **o, 'merged': True})
class Bag(set):
    def __add__(self, o): return Bag(self | set(o))
    def __contains__(self, x): return x == 'joker' or set.__contains__(self, x)
class Attr(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
def default():
    from collections import defaultdict
    return defaultdict(int, a=1), defaultdict(list), defaultdict(lambda: 5)
""",
        [
            "Grid({(1,2): 3})[1+2j] == 3",
            "Grid()[9] == 0",
            "Grid({1:1}) + Grid({1:2}) == {1:3}",
            "(Grid({1:1}) | {2:2})['merged'] is True",
            "Bag([1]) + [2] == {1,2}",
            "'joker' in Bag()",
            "Attr(a=1).a == 1",
            "default()[0]['zz'] == 0",
            "default()[1]['q'] == []",
            "default()[2]['q'] == 5",
            "default()[0] == {'a': 1}",
        ],
    ),
    "counter deque subclass": (
        """from collections import Counter, deque, UserDict, ChainMap
class Multi(Counter):
    def __add__(self, o): return Multi({k: self[k] + o[k] for k in set(self) | set(o)})
    def total2(self): return sum(self.values()) * 2
class Ring(deque):
    def __init__(self, it=(), n=3): super().__init__(it, maxlen=n)
    def mean(self): return sum(self) / len(self)
class Cfg(UserDict):
    def __getattr__(self, n): return self.data[n]
""",
        [
            "Multi('aab') + Multi('b') == Multi('aabb')",
            "Multi('aab')['a'] == 2",
            "Multi('aab').total2() == 6",
            "Ring([1,2,3,4]).mean() == 3",
            "list(Ring([1,2,3,4])) == [2,3,4]",
            "Ring([1,2], n=1) == deque([2], maxlen=1)",
            "Cfg({'a': 1}).a == 1",
            "Cfg({'a':1})['a'] == 1",
            "len(Ring([1,2])) == 2",
            "Multi('aab').most_common(1) == [('a',2)]",
        ],
    ),
    "namedtuple compare hash order": (
        """from collections import namedtuple
from typing import NamedTuple
P = namedtuple('P', 'x y')
class Q(NamedTuple):
    x: int
    y: int
    def __lt__(self, o): return self.y < o.y
    def __sub__(self, o): return Q(self.x - o.x, self.y - o.y)
    def __str__(self): return f'({self.x}|{self.y})'
def far(ps): return max(ps, key=lambda p: p.x**2 + p.y**2)
""",
        [
            "far([P(1,1), P(2,2)]) == P(2,2)",
            "P(1,2) < P(1,3)",
            "Q(5,1) < Q(1,2)",
            "sorted([Q(1,9), Q(9,1)])[0] == Q(9,1)",
            "Q(3,3) - Q(1,2) == Q(2,1)",
            "str(Q(1,2)) == '(1|2)'",
            "hash(P(1,2)) == hash((1,2))",
            "{P(1,2): 3}[P(1,2)] == 3",
            "P(1,2) + (3,) == (1,2,3)",
            "P(*[1,2]).y == 2",
        ],
    ),
    "enum with ops": (
        """from enum import Enum, IntEnum, IntFlag, StrEnum, Flag, auto
class D(Enum):
    N, E, S, W = range(4)
    def turn(self, k=1): return D((self.value + k) % 4)
    def __add__(self, k): return self.turn(k)
    @classmethod
    def parse(cls, s): return cls[s.upper()]
class Perm(Flag):
    R = auto(); W = auto(); X = auto()
    RW = R | W
class Size(IntEnum):
    S = 1; M = 2
    def __str__(self): return self.name.lower()
class T(StrEnum):
    A = 'a'
class Planet(Enum):
    EARTH = (5.97e24, 6.37e6)
    def __init__(self, m, r): self.m = m; self.r = r
    @property
    def g(self): return 6.67e-11 * self.m / self.r**2
""",
        [
            "D.N.turn() is D.E",
            "D.W + 1 == D.N",
            "D.parse('s') == D.S",
            "list(D)[2] == D.S",
            "Perm.R | Perm.W == Perm.RW",
            "Perm.R in Perm.RW",
            "not (Perm.RW & Perm.X)",
            "str(Size.M) == 'm'",
            "Size.M + 1 == 3",
            "T.A == 'a' and T.A.upper() == 'A'",
            "abs(Planet.EARTH.g - 9.8) < 0.1",
            "D.N.name == 'N'",
            "len(Perm) == 3",
            "D(1) is D.E",
            "{D.N: 1}[D.N] == 1",
            "Size(2) > Size.S",
            "sorted(Size) == [Size.S, Size.M]",
            "max(Size, key=int) == Size.M",
        ],
    ),
    "typed dict and newtype": (
        """from typing import TypedDict, NewType, Optional, Literal, Final, NamedTuple
UserId = NewType('UserId', int)
class User(TypedDict, total=False):
    id: UserId
    name: str
LIMIT: Final = 10
class Point(NamedTuple):
    x: float
    y: float = 0.0
    @property
    def norm(self): return (self.x**2 + self.y**2) ** 0.5
    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)
def make(i, name: Optional[str] = None) -> User:
    u: User = {'id': UserId(i)}
    if name: u['name'] = name
    return u
""",
        [
            "make(3) == {'id': 3}",
            "make(3,'x')['name'] == 'x'",
            "Point(3,4).norm == 5",
            "Point(1) + Point(2,3) == Point(3,3)",
            "Point(1,2)._replace(x=5) == (5,2)",
            "Point(1)._asdict() == {'x':1,'y':0.0}",
            "LIMIT == 10",
            "Point._fields == ('x','y')",
        ],
    ),
    "lambda sorts groupby": (
        """from itertools import groupby
from collections import defaultdict, Counter
from operator import itemgetter, attrgetter
def anagrams(ws):
    d = defaultdict(list)
    for w in ws: d[''.join(sorted(w))].append(w)
    return sorted(map(sorted, d.values()))
def rle(s): return [(k, len(list(g))) for k, g in groupby(s)]
def top(s, n): return Counter(s.split()).most_common(n)
def by(rows, k): return sorted(rows, key=itemgetter(k))
def groups(ws):
    d = defaultdict(list)
    for w in ws: d[len(w)].append(w)
    return d
""",
        [
            "anagrams(['eat','tea','tan']) == [['eat','tea'],['tan']]",
            "rle('aab') == [('a',2),('b',1)]",
            "top('a b a', 1) == [('a',2)]",
            "by([{'k':2},{'k':1}],'k') == [{'k':1},{'k':2}]",
            "groups(['a','bb','c']) == {1:['a','c'],2:['bb']}",
            "dict(groups(['a'])) == {1:['a']}",
            "groups([])[5] == []",
        ],
    ),
    "operator overloading matrix": (
        """class Matrix:
    def __init__(self, rows): self.rows = [list(r) for r in rows]
    @classmethod
    def identity(cls, n): return cls([[int(i == j) for j in range(n)] for i in range(n)])
    def __matmul__(self, o):
        columns = list(zip(*o.rows))
        return Matrix([[sum(a*b for a, b in zip(r, c)) for c in columns] for r in self.rows])
    def __mul__(self, k): return Matrix([[x*k for x in r] for r in self.rows])
    __rmul__ = __mul__
    def __pow__(self, n):
        out = Matrix.identity(len(self.rows)); base = self
        while n:
            if n & 1: out = out @ base
            base = base @ base; n >>= 1
        return out
    def __getitem__(self, ij):
        if isinstance(ij, tuple): return self.rows[ij[0]][ij[1]]
        return self.rows[ij]
    def __setitem__(self, ij, v): self.rows[ij[0]][ij[1]] = v
    def __eq__(self, o): return isinstance(o, Matrix) and self.rows == o.rows
    def __neg__(self): return self * -1
    def __len__(self): return len(self.rows)
    def __iter__(self): return iter(self.rows)
    def __contains__(self, x): return any(x in r for r in self.rows)
    def __repr__(self): return f'Matrix({self.rows!r})'
    @property
    def T(self): return Matrix(zip(*self.rows))
def fib(n): return (Matrix([[1,1],[1,0]]) ** n)[0, 1]
""",
        [
            "fib(90) == 2880067194370816120",
            "Matrix([[1,2],[3,4]]) @ Matrix.identity(2) == Matrix([[1,2],[3,4]])",
            "2 * Matrix([[1]]) == Matrix([[2]])",
            "Matrix([[1,2]]).T == Matrix([[1],[2]])",
            "Matrix([[1,2]])[0,1] == 2",
            "-Matrix([[1]]) == Matrix([[-1]])",
            "3 in Matrix([[1,3]])",
            "len(Matrix([[1],[2]])) == 2",
            "list(Matrix([[1],[2]])) == [[1],[2]]",
            "repr(Matrix([[1]])) == 'Matrix([[1]])'",
            "Matrix([[1]]) != 3",
        ],
    ),
    "total ordering": (
        """from functools import total_ordering
@total_ordering
class Money:
    __slots__ = ("cents",)
    def __init__(self, amount): self.cents = round(amount * 100)
    def __eq__(self, o): return isinstance(o, Money) and self.cents == o.cents
    def __lt__(self, o): return self.cents < o.cents
    def __hash__(self): return hash(self.cents)
    def __add__(self, o): return Money((self.cents + o.cents) / 100)
    def __radd__(self, o): return self if o == 0 else NotImplemented
    def __str__(self): return f"${self.cents / 100:.2f}"
    def __format__(self, spec): return format(str(self), spec)
    def __bool__(self): return self.cents != 0
    def __float__(self): return self.cents / 100
    def __int__(self): return self.cents // 100
def total(ms): return sum(map(Money, ms))
""",
        [
            "Money(1) < Money(2) <= Money(2)",
            "Money(3) >= Money(1.5)",
            "total([1, 2.5]) == Money(3.5)",
            "str(Money(3)) == '$3.00'",
            "f'{Money(3):>8}' == '   $3.00'",
            "not Money(0)",
            "bool(Money(1))",
            "float(Money(1.25)) == 1.25",
            "int(Money(9.99)) == 9",
            "max(Money(1), Money(3)) == Money(3)",
            "{Money(1): 'x'}[Money(1)] == 'x'",
            "len({Money(1), Money(1)}) == 1",
            "sorted([Money(3), Money(1)]) == [Money(1), Money(3)]",
        ],
    ),
    "iterator protocol and reversed": (
        """class Countdown:
    def __init__(self, n): self.n = n
    def __iter__(self):
        i = self.n
        while i > 0: yield i; i -= 1
    def __reversed__(self): return iter(range(1, self.n + 1))
    def __len__(self): return self.n
    def __getitem__(self, i):
        if isinstance(i, slice): return [self[j] for j in range(*i.indices(len(self)))]
        if i < 0: i += self.n
        if not 0 <= i < self.n: raise IndexError(i)
        return self.n - i
class Fib:
    def __init__(self, m): self.a, self.b, self.m = 0, 1, m
    def __iter__(self): return self
    def __next__(self):
        if self.a > self.m: raise StopIteration
        r = self.a; self.a, self.b = self.b, self.a + self.b; return r
""",
        [
            "list(Countdown(3)) == [3,2,1]",
            "list(reversed(Countdown(3))) == [1,2,3]",
            "Countdown(5)[1:3] == [4,3]",
            "Countdown(5)[-1] == 1",
            "list(Fib(10)) == [0,1,1,2,3,5,8]",
            "sum(Countdown(4)) == 10",
            "tuple(zip(Countdown(2), 'ab')) == ((2,'a'),(1,'b'))",
            "max(Countdown(7)) == 7",
            "3 in Countdown(4)",
            "sorted(Countdown(3)) == [1,2,3]",
            "[*Countdown(2), 0] == [2,1,0]",
        ],
    ),
    "event emitter callbacks": (
        """class Emitter:
    def __init__(self): self._h = {}
    def on(self, name, fn=None):
        if fn is None:
            def deco(f): self.on(name, f); return f
            return deco
        self._h.setdefault(name, []).append(fn)
    def emit(self, name, *a, **k): return [f(*a, **k) for f in self._h.get(name, [])]
def counter():
    n = 0
    def inc(by=1):
        nonlocal n; n += by; return n
    return inc
def compose(*fs):
    def g(x):
        for f in reversed(fs): x = f(x)
        return x
    return g
""",
        [
            "compose(lambda x: x+1, lambda x: x*2)(5) == 11",
            "(lambda c: (c(), c(), c(5)))(counter()) == (1,2,7)",
            "(lambda e: (e.on('x', lambda v: v*2), e.emit('x', 4)))(Emitter())[1] == [8]",
            "compose()(3) == 3",
            "callable(counter())",
            "compose(str, abs)(-3) == '3'",
        ],
    ),
    "lru ordereddict": (
        """from collections import OrderedDict
class LRUCache(OrderedDict):
    def __init__(self, capacity):
        super().__init__()
        self.capacity = capacity
    def get(self, key):
        if key not in self: return -1
        self.move_to_end(key)
        return self[key]
    def put(self, key, value):
        if key in self: self.move_to_end(key)
        self[key] = value
        if len(self) > self.capacity: self.popitem(last=False)
def play(cap, ops):
    c = LRUCache(cap); out = []
    for o in ops:
        out.append(c.get(*o[1:]) if o[0]=='g' else c.put(*o[1:]))
    return out
""",
        [
            "play(2,[('p',1,1),('p',2,2),('g',1),('p',3,3),('g',2)]) == [None,None,1,None,-1]",
            "len(LRUCache(3)) == 0",
            "LRUCache(3).capacity == 3",
        ],
    ),
    "singleton registry decorators args": (
        """import functools, time
REG = {}
def register(name=None, **meta):
    def deco(f):
        REG[name or f.__name__] = (f, meta)
        @functools.wraps(f)
        def inner(*a, **k): return f(*a, **k)
        inner.meta = meta
        return inner
    return deco
@register('dbl', kind='math')
def double(x):
    "Double it."
    return 2 * x
@functools.cache
def slow(n): return n if n < 2 else slow(n-1) + slow(n-2)
@functools.singledispatch
def show(x): return 'obj'
@show.register
def _(x: int): return 'int'
@show.register(list)
def _(x): return 'list'
def retry(n):
    def deco(f):
        @functools.wraps(f)
        def inner(*a):
            for i in range(n):
                try: return f(*a, i)
                except ValueError: pass
            raise RuntimeError('gave up')
        return inner
    return deco
@retry(3)
def flaky(at, i):
    if i < at: raise ValueError
    return i
""",
        [
            "double(4) == 8",
            "REG['dbl'][1] == {'kind':'math'}",
            "double.__name__ == 'double'",
            "double.meta == {'kind':'math'}",
            "double.__doc__ == 'Double it.'",
            "slow(80) == 23416728348467685",
            "show(1) == 'int' and show([]) == 'list' and show('') == 'obj'",
            "flaky(2) == 2",
            "REG['dbl'][0](3) == 6",
        ],
    ),
    "expression evaluator": (
        """import re, operator
class Num:
    def __init__(self, v): self.v = v
    def eval(self, env=None): return self.v
class Var:
    def __init__(self, n): self.n = n
    def eval(self, env=None): return (env or {})[self.n]
class Bin:
    ops = {'+': operator.add, '-': operator.sub, '*': operator.mul, '/': operator.truediv}
    def __init__(self, o, l, r): self.o, self.l, self.r = o, l, r
    def eval(self, env=None): return self.ops[self.o](self.l.eval(env), self.r.eval(env))
def tokenize(s): return re.findall(r'\\d+\\.?\\d*|[a-z]+|[()+\\-*/]', s)
def parse(s):
    t = tokenize(s); pos = 0
    def peek(): return t[pos] if pos < len(t) else None
    def take():
        nonlocal pos; pos += 1; return t[pos-1]
    def factor():
        x = take()
        if x == '(':
            e = expr(); take(); return e
        if x == '-': return Bin('-', Num(0), factor())
        return Var(x) if x.isalpha() else Num(float(x) if '.' in x else int(x))
    def term():
        n = factor()
        while peek() in ('*', '/'): n = Bin(take(), n, factor())
        return n
    def expr():
        n = term()
        while peek() in ('+', '-'): n = Bin(take(), n, term())
        return n
    return expr()
def calc(s, **env): return parse(s).eval(env)
""",
        [
            "calc('1+2*3') == 7",
            "calc('(1+2)*3') == 9",
            "calc('x*x-1', x=5) == 24",
            "calc('-2+5') == 3",
            "calc('7/2') == 3.5",
            "parse('a').eval({'a': 9}) == 9",
            "isinstance(parse('1'), Num)",
            "parse('1+1').o == '+'",
            "tokenize('a+1') == ['a','+','1']",
        ],
    ),
    "set that adds to itself and gives itself": (
        """class Bag(set):
    def add_all(self, xs):
        for x in xs: self.add(x)
        return self
class Path(list):
    def to(self, x):
        self.append(x)
        return self
def bag(xs): return Bag(xs)
""",
        [
            "Bag([1]).add_all([2]) == {1, 2}",
            "b = Bag()\nassert b.add_all([1]) is b and len(b.add_all([2, 3])) == 3",
            "Path().to(1).to(2) == [1, 2]",
            "bag([1, 2]).issubset({1, 2, 3}) and bag([1]).isdisjoint({2})",
            "bag([1]).union({2}) == {1, 2} and bag([1, 2]).difference({2}) == {1}",
        ],
    ),
    "a list that test and sample both add to": (
        """from contextlib import contextmanager
@contextmanager
def tag(out, name):
    out.append('<' + name + '>')
    yield name
    out.append('</' + name + '>')
""",
        [
            "o = []\nwith tag(o, 'a') as n:\n    o.append(n)\nassert o == ['<a>', 'a', '</a>']",
            "out = ['x']\nwith tag(out, 'a'):\n    pass\nassert out == ['x', '<a>', '</a>']",
        ],
    ),
    "a function by a name that Python has": (
        "def sum(a, b): return a + b\ndef double(x): return 2 * x",
        ["sum(2, 3) == 5", "sum([double(1), double(2)]) == 6"],
    ),
}
