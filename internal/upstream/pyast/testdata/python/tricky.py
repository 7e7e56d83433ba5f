# What the field's files do not hold, but may: each construct here is one that a reader of text gets wrong.
from __future__ import annotations

import dataclasses as dc, typing
from . import (
    a,  # the first
    b as bb,
)


class Plain: pass
class Two(
    typing.Generic[T],  # a comment, with (brackets
    metaclass=abc.ABCMeta,
    array_like=True,
): x: int = 1; y: "str | None" = None


if typing.TYPE_CHECKING:
    class Conditional(Two[int]): ...
else:
    try:
        class Conditional: x = 1
    except* (ImportError, OSError) as error: raise
    finally: pass


def outer():
    class Inner(Plain, kw={"a": 1, **other}):
        """class Fake(object): not a class"""
        text = '''
class AlsoFake:
    pass
'''
        @property
        def f(self): return lambda x, *y, z=1, **w: (x, y)

        async def g(self, a, /, b: int = 0x_FF, *args: int, c: "quoted" = ..., d=(1,), **kw: dict[str, Any]) -> tuple[()]:
            async with a as b, c as (d, e):
                return [await x async for x in y if x if not x]
    return Inner


def every_operator(x=a + b - c * d @ e / f % g // h ** -i, y=(a or b) or c and d or not e, z=not a == b != c):
    return ~a << b >> c & d, -(-1), +x, - 5 ** 2, (-5) ** 2, 2 ** 3 ** 4, (2 ** 3) ** 4, (a | b) & c, a - (b - c), (a - b) - c


def comparisons(a=x is not None, b=x not in (1, 2), c=1 < x <= 2, d=(x < y) < z, e=x in y is z, f=not (a in b)): ...
def conditionals(a=x if y else z if w else v, b=(x if y else z) if w else v, c=lambda: (yield), d=[x if y else z]): ...
def collections(a=(), b=(1,), c=[1, *x,], d={1, 2,}, e={}, f={"a": 1, **b, 'c': [2]}, g=(*a, b), h=((1, 2), [3])): ...
def comprehensions(a=[x for x in y], b={x: y for x, y in z if x if y}, c={x for (x, (y, z)) in w}, d=f(x for x in y)): ...
async def comprehensions2(a=[(x, y) for x in a for y in (b if c else d)], b=f(1, (x for x in y)), c=[x async for x in y]): ...
def subscripts(a=x[1], b=x[1, 2], c=x[(1, 2)], d=x[1,], e=x[()], f=x[1:2], g=x[:], h=x[::2], i=x[1:2:], j=x[a:b, ::c], k=x[*y]): ...
def attributes(a=x.y.z, b=1 .real, c=(1).real, d=1.0.real, e="x".join(y), f=(yield).x, g=True.real, h=(a + b).c, i=1j.real): ...
def calls(a=f(), b=f(x, y=1, *z, **w), c=f(x)(y)[z], d=f(*a, *b), e=f(**a, b=1), f=f((x := 1), y=(z := 2)), g=f(*a or b)): ...
def numbers(a=0, b=00_0, c=0xDEAD_beef, d=0o17, e=0b1_0, f=1_000, g=10**30, h=123456789012345678901234567890): ...
def floats(a=1., b=.5, c=1e5, d=1E-7, e=1_0.0_1e+1_0, f=1e16, g=1e15, h=1e-4, i=1e-5, j=1e400, k=1j, l=1.5J, m=1e20j, n=0.1): ...
def strings(a="a", b='it''s', c="it's", d='"', e="'\"", f="\n\t\r\\", g="\x00\x7f\x80\xa0\u1234\U0001F600", h='''a
b''', i="a\
b", j=r"\d\n", k=u"u", l="\d\8\400", m="é\u200b☃", n="\a\b\f\v\0\01\012", o=r'\'', p="" "", q="a" 'b' r"\c"): ...
def byte_strings(a=b"a", b=b'\xff\'"', c=rb"\x", d=Rb'\n', e=b"\N{x}\u1234", f=b"a" b'b', g=b"\400\n\x00", h=BR"\\"): ...
def formatted(a=f"x", b=f"{x}", c=f"{x!r:>{width}.{precision}f}", d=f"{{}}{x}", e=f"{x['a']}", f=f'{x=}', g=f"{x = :>3}"): ...
def formatted2(a=f"a\n{x}\t", b=f"'{x}'" '"', c="{" f"{x}", d=f"{ {1: 2}[1] }", e=rf"\d{x}\n", f=f"{x, y}", g=f"{(lambda: 1)}" "}"): ...
def formatted3(a=f"{'a' if x else 'b'}", b=f"{x:%Y-%m}{y!s}", c=F'''{
    x
}''', d=f"{x:{'>'}{10}}", e=f"{'it' + y}'s", f=f"{a}" f"{b}", g=f""): ...
def annotated(a: int | None, b: list[int] | None | str, c: a.b.C[d.E | None] | F, d: "x" | None, e: Callable[[int, *Ts], None]): ...
def annotated2(a: Literal["a", 'b', -1], b: (int), c: dict[str, tuple[int, ...],], d: Annotated[int, Field(ge=0)] = 1, *e: *Ts): ...
def annotated3(a: int | (str | None), b: (a[b] | c) | d, c: a[b] | (c | d), d: lambda: 1, e: x if y else z, f: None | a[b] = 1, g: (a | b) | c[d] = 2): ...


match = {"type": match.case}
type = print
match match, type:
    case {"a": 1, **rest} | [1, *_] | Plain(x=1) | None | -1 | "a" "b" if rest:
        print(match, file=type)
    case _: ...

x = y = a, b = yield_ = 1, *z
x[0], (x.y) = (y) = [z] = ((a), b)
x: tuple[int, ...] = 1, 2
(x): int = 3
x.y: int
x[1]: "int" = (
    # a comment
    4  # another
)
x = (
    a
    # within
    | b
    if  c  # here too
    else \
    d
)
with (open(a) as f, open(b) as g): x += 1; del y, (z), [w]
for x, in y: print(*x, sep='')
print(x, end="")
if x:
	y = 1
	if z:
	        w = 2
@a.b(c)[d]
@(yield_ if x else y)
def decorated(): global q, r; return
