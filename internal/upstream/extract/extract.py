"""Read the wire profile of a vLLM release from its Python sources, without running any of them.

The program vllm-vcr starts this script as `python3 -I -S` in an empty environment, and answers its requests for files:

    script: {"read": ["vllm/v1/engine/__init__.py", …]}
    vllm-vcr: {"vllm/v1/engine/__init__.py": "base64 of the file", …}, without the files that do not exist
    script: {"profile": {…}, "version": "0.33.0", "commit": "g4ba787ec9", "gaps": […]} or {"error": "…"}

Each message is one line of JSON. What the script reads, and where it stops, is described in doc.go. A profile has the
form of a wire profile (package protocol), apart from the results of utilities, which vllm-vcr adds.

The words of this script: a module is one file. A definition is what a name at the top level of a module means. A
reference is what a dotted name means, after imports were followed. A gap is a part of the wire that the script cannot
read, with its place and the reason.
"""

import ast
import base64
import collections
import copy
import decimal
import json
import sys
import warnings

OURS = "vllm"  # the package whose modules are read; names of other packages are not followed

# The modules that the wire is read from. Every other module is found from these by its imports.
ENGINE = "vllm.v1.engine"
CORE = "vllm.v1.engine.core"
CLIENT = "vllm.v1.engine.core_client"
UTILS = "vllm.v1.engine.utils"
COORDINATOR = "vllm.v1.engine.coordinator"
EVENTS = "vllm.distributed.kv_events"
SERIAL = "vllm.v1.serial_utils"
STATS = "vllm.v1.metrics.loggers"
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
SCHEDULER = "vllm.v1.core.sched.scheduler"

# The modules that send and receive messages.
SPEAKERS = [CORE, CLIENT, UTILS, COORDINATOR]

# The messages themselves. A release without one of them cannot be read: that is a gap, never a removal.
ROOTS = [
    (ENGINE, "EngineCoreRequest"),
    (ENGINE, "EngineCoreOutputs"),
    (ENGINE, "EngineCoreReadyResponse"),
    (ENGINE, "EngineCoreRequestType"),
    (ENGINE, "FinishReason"),
    (UTILS, "EngineHandshakeMetadata"),
    (UTILS, "EngineZmqAddresses"),
    (EVENTS, "KVEventBatch"),
    (EVENTS, "KVEventsConfig"),  # since 0.27 in the ready response; a publisher has always had these settings
]

# The modules that declare the metrics that a server exports however it is deployed. Metrics of KV connectors are not
# read: each connector has its own.
METRIC_MODULES = [
    STATS, "vllm.v1.spec_decode.metrics", "vllm.v1.metrics.perf", "vllm.parser.metrics",
    "vllm.entrypoints.serve.dev.sleep.metrics", "vllm.entrypoints.rl.online.metrics",
    "vllm.entrypoints.speech_to_text.realtime.metrics",
]

# The files that the releases until 0.33 need. They are requested together, which saves requests and decides nothing.
LIKELY_FILES = """
vllm/_version.py vllm/v1/engine/__init__.py vllm/v1/engine/core.py vllm/v1/engine/core_client.py
vllm/v1/engine/utils.py vllm/v1/engine/coordinator.py vllm/v1/serial_utils.py vllm/distributed/kv_events.py
vllm/config/__init__.py vllm/config/kv_events.py vllm/config/utils.py vllm/sampling_params.py
vllm/pooling_params.py vllm/lora/request.py vllm/multimodal/inputs.py vllm/outputs.py vllm/tasks.py
vllm/v1/outputs.py vllm/v1/metrics/stats.py vllm/v1/metrics/perf.py vllm/v1/metrics/cache_hit_source.py
vllm/v1/spec_decode/metrics.py vllm/compilation/cuda_graph.py vllm/v1/core/kv_cache_utils.py
vllm/v1/core/sched/interface.py vllm/v1/metrics/loggers.py vllm/v1/metrics/buckets.py vllm/parser/metrics.py
vllm/entrypoints/serve/dev/sleep/metrics.py vllm/entrypoints/rl/online/metrics.py
vllm/entrypoints/speech_to_text/realtime/metrics.py vllm/v1/kv_hints/__init__.py vllm/v1/kv_hints/protocol.py
vllm/v1/fault_tolerance/utils.py vllm/v1/fault_tolerance/engine_core_sentinel.py
vllm/distributed/elastic_ep/external_elastic_ep.py vllm/v1/core/sched/scheduler.py
vllm/distributed/kv_transfer/kv_connector/v1/base.py
""".split() + [
    f"{NIXL.replace('.', '/')}/{name}.py"
    for name in ("metadata", "base_scheduler", "pull_scheduler", "base_worker", "pull_worker", "scheduler", "worker")
]

# Limits on what a release can make the script do.
MAX_MODULES = 400
MAX_TEXT = 4 << 20  # bytes of all modules; those of vLLM have 740 kB
MAX_DEPTH = 100  # levels of a syntax tree; those of vLLM have 28
MAX_HOPS = 16  # names that only stand for another, and bases of a class
MAX_VARIABLES = 2000  # expressions that are searched for the variables of metrics; vLLM 0.33 has 273
MAX_TEXTS = 500  # labels of a metric, and metrics of a declaration
CPU_SECONDS = 60
MEMORY = 2 << 30  # bytes


class Failure(Exception):
    """The release cannot be read at all."""


# --- Nodes of the syntax tree ---

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor)
TYPE_ALIAS = getattr(ast, "TypeAlias", ())  # the statement "type X = …", since Python 3.12


class Unreadable(Exception):
    """A text cannot be read as Python."""


def parse_tree(text, mode="exec"):
    """Parse Python, and give every node its parent, and the root the list of its nodes in the order of the source."""
    try:
        tree = ast.parse(text, mode=mode)
    except SyntaxError as error:
        place = f"line {error.lineno}: " if error.lineno else ""
        raise Unreadable(f"{place}{error.msg} (Python {sys.version.split()[0]})") from error
    except OSError as error:  # a codec of another file than those that can be opened
        raise Unreadable("its encoding is not UTF-8") from error
    except ValueError as error:  # a NUL byte
        raise Unreadable(str(error)) from error
    except (RecursionError, MemoryError) as error:
        raise Unreadable("it is nested too deeply, or needs more memory than allowed") from error
    tree.parent, tree.nodes = None, []
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise Unreadable(f"line {getattr(node, 'lineno', 0)}: it is nested deeper than {MAX_DEPTH} levels")
        tree.nodes.append(node)
        children = [child for child in ast.iter_child_nodes(node) if child._fields]
        for child in children:
            child.parent = node
        # A decorator belongs to what is around the function or class that it decorates.
        for decorator in getattr(node, "decorator_list", ()):
            decorator.parent = node.parent
        stack += [(child, depth + 1) for child in reversed(children)]
    return tree


def each(*nodes):
    """Yield nodes and all nodes below them, in the order of the source."""
    stack = list(reversed(nodes))
    while stack:
        at = stack.pop()
        yield at
        stack += reversed([child for child in ast.iter_child_nodes(at) if child._fields])


def enclosing_function(node):
    node = node.parent
    while node is not None and not isinstance(node, FUNCTIONS):
        node = node.parent
    return node


def scope(node):
    """The function or class that a node is in, or None for the module."""
    node = node.parent
    while node is not None and not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
        node = node.parent
    return node


def dotted(node):
    """The text of a plain or dotted name, "" for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last_name(node):
    """The last part of a name, also of one that is an attribute of another expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def text_of(node):
    """An expression as one line that does not depend on its layout."""
    return ast.unparse(node).replace("\n", "\\n")


def called(node):
    return node.func if isinstance(node, ast.Call) else node


def statement_line(node):
    """The line that a statement begins in, decorators included."""
    decorators = getattr(node, "decorator_list", None)
    return decorators[0].lineno if decorators else node.lineno


def positional_arguments(call):
    """The arguments of a call without those that have a name: nodes, and their texts."""
    found = [(node, text_of(node)) for node in call.args]
    return found + [(k.value, "**" + text_of(k.value)) for k in call.keywords if k.arg is None]


def keyword(call, name):
    return next((k.value for k in call.keywords if k.arg == name), None)


def sole_argument(call):
    return call.args[0] if len(call.args) == 1 and not call.keywords else None


def argument(call, name, position):
    """An argument of a call by its name, else by its position; None without one."""
    value = keyword(call, name)
    if value is None and position is not None and position < len(call.args):
        value = call.args[position]
    return value


def bindings(node):
    """The pairs of target and value of an assignment, else nothing. The value of "x: int" is None."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    return [(node.target, node.value)] if isinstance(node, ast.AnnAssign) else []


def parameters(function):
    """The parameters of a function: pairs of name and (annotation, default), with "*" and "/" as they are written."""
    a = function.args
    plain = a.posonlyargs + a.args
    defaults = [None] * (len(plain) - len(a.defaults)) + a.defaults
    found = [(p.arg, p.annotation, default) for p, default in zip(plain, defaults)]
    if a.posonlyargs:
        found.insert(len(a.posonlyargs), ("/", None, None))
    if a.vararg:
        found.append(("*" + a.vararg.arg, a.vararg.annotation, None))
    elif a.kwonlyargs:
        found.append(("*", None, None))
    found += [(p.arg, p.annotation, default) for p, default in zip(a.kwonlyargs, a.kw_defaults)]
    if a.kwarg:
        found.append(("**" + a.kwarg.arg, a.kwarg.annotation, None))
    return found


def binds(function, name):
    """Whether a function, or one within it, sets a variable of this name."""
    return any(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in each(*function.body)
    )


def is_local(function, name):
    """Whether a function, or one around it, has a parameter or a variable of this name."""
    while function is not None:
        if any(p.lstrip("*") == name for p, _, _ in parameters(function)) or binds(function, name):
            return True
        function = enclosing_function(function)
    return False


# --- Values ---


class NotLiteral(Exception):
    pass


def literal(node):
    """The value of a literal that JSON can express. Sets and tuples are lists, and bytes are the text "0x00", as profiles
    have them."""
    match node:
        case ast.Constant(value=bytes() as value):
            return "0x" + value.hex()
        case ast.Constant(value=None | bool() | int() | str() as value):
            return value
        case ast.Constant(value=float() as value) if abs(value) < float("inf"):
            return value
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return [literal(e) for e in elements]
        case ast.Dict(keys=keys, values=values) if all(plain_text(k) is not None for k in keys):
            return {k.value: literal(v) for k, v in zip(keys, values)}
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=ast.Constant(value=int() | float())):
            value = literal(node.operand)
            if not isinstance(value, bool):
                return -value if isinstance(sign, ast.USub) else value
    raise NotLiteral


def is_literal(node):
    try:
        literal(node)
    except NotLiteral:
        return False
    return True


def plain_text(node):
    """The value of an expression that is a text, else None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def number_list(value):
    """Numbers as profiles have the bounds of histograms, where 1 and 1.0 are the same bound; None for other values."""
    if not isinstance(value, list) or not value:
        return None
    texts = []
    for v in value:
        if isinstance(v, bool) or not isinstance(v, (int, float)):
            return None
        text = format(decimal.Decimal(repr(v)), "f")
        texts.append(text.rstrip("0").rstrip(".") if "." in text else text)
    return ", ".join(texts)


# --- Modules and their definitions ---


class Definition:
    """What a name at the top level of a module means: the last definition, if there are several."""

    def __init__(self, kind, node, statement, condition, module="", name=""):
        self.kind = kind  # "class", "function", "value" or "import"
        self.node = node  # the class, the function, or the assigned value
        self.statement = statement
        self.condition = condition  # why the name may not be declared: "under a condition"; "" if it always is
        self.module, self.name = module, name  # of an import; no name means the module itself
        self.declared = ""  # the name that it defines
        self.again = 0  # line of an earlier definition; 0 if there is none

    @property
    def line(self):
        return statement_line(self.statement)


class Module:
    """One file, and what its top level declares."""

    def __init__(self, name, path, text=b""):
        self.name, self.path, self.text = name, path, text
        self.broken = ""  # why it cannot be parsed
        self.definitions = {}
        self.stars = []  # (module, statement) of each "from module import *"
        self.computed = None  # (node, how) of what sets names that are known only when the module runs
        self.nodes = []

    def parse(self):
        try:
            tree = parse_tree(self.text)
        except Unreadable as error:
            self.broken = str(error)
            return
        self.nodes = tree.nodes
        self.collect(tree.body, "")
        self.computed = self.find_computed()

    def of(self, *kinds):
        return [n for n in self.nodes if isinstance(n, kinds)]

    def first_line(self, node):
        """The first line of the source of a node, as a gap shows it."""
        lines = self.text.splitlines()
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        return lines[node.lineno - 1][node.col_offset : end].decode(errors="replace")

    def collect(self, statements, condition):
        """Note what statements declare."""
        for s in statements:
            match s:
                case ast.Assign() | ast.AnnAssign():
                    for target, value in bindings(s):
                        if isinstance(target, ast.Name) and value is not None:
                            self.define(target.id, Definition("value", value, s, condition))
                case ast.ClassDef():
                    self.define(s.name, Definition("class", s, s, condition))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.define(s.name, Definition("function", s, s, condition))
                case ast.Import() | ast.ImportFrom():
                    self.imports(s, condition)
                case ast.If() if dotted(s.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                    self.collect(s.body, condition)  # what type checkers see is how the module means its names
                case _ if isinstance(s, TYPE_ALIAS):
                    self.define(s.name.id, Definition("value", s.value, s, condition))
                case _:
                    blocks = [getattr(s, field, []) for field in ("body", "orelse", "finalbody")]
                    blocks += [inner.body for inner in getattr(s, "handlers", []) + getattr(s, "cases", [])]
                    for block in blocks:
                        self.collect(block, "under a condition")

    def define(self, name, new):
        before = self.definitions.get(name)
        if before:
            if before.kind == "import" and new.kind == "value" and new.condition:
                return  # the stand-in for what could not be imported
            same = (before.module, before.name) == (new.module, new.name)
            if before.kind != "import" or new.kind == "import" and not same:
                new.again = before.line
        new.declared = name
        self.definitions[name] = new

    def imports(self, s, condition):
        """Note what an import statement binds, apart from relative imports that lead out of the package."""
        if isinstance(s, ast.Import):
            for alias in s.names:  # a.b.c as x, or a.b.c, which binds a
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                self.define(alias.asname or name, Definition("import", None, s, condition, name))
            return
        source = self.imported_from(s)
        for alias in s.names:
            if alias.name == "*":
                self.stars.append((source, s))
            elif source:
                self.define(alias.asname or alias.name, Definition("import", None, s, condition, source, alias.name))

    def imported_from(self, s):
        """The module that a statement imports from; "" if it is outside of the package."""
        if not s.level:
            return s.module
        up = s.level - self.path.endswith("/__init__.py")  # relative imports of a package start from itself
        parts = self.name.split(".")
        if up >= len(parts):
            return ""
        return join(*parts[: len(parts) - up], s.module)

    def find_computed(self):
        """What sets names that are known only when the module runs, and how. A function __getattr__ answers for names
        that are not there, and keeps them so."""
        for n in self.of(ast.Call, ast.Assign, ast.AnnAssign):
            if isinstance(n, ast.Call):
                name, top = dotted(n.func), scope(n) is None
                if name in ("exec", "eval") and top and isinstance(n.parent, ast.Expr):
                    return n, f"its module runs text as code by {name}"
                if top and isinstance(n.func, ast.Attribute) and n.func.attr == "update" and is_namespace(n.func.value):
                    return n, SETS_NAMES + self.first_line(n)
                continue
            for target, _ in bindings(n):
                if not isinstance(target, ast.Subscript):
                    continue
                function = enclosing_function(target)
                in_getattr = function is not None and function.name == "__getattr__"
                computed = is_namespace(target.value) and not in_getattr and not is_literal(target.slice)
                if computed or dotted(target.value) == "sys.modules":
                    return n, SETS_NAMES + self.first_line(n)
        return None


SETS_NAMES = "its module sets names that are known only when it runs: "


def is_namespace(node):
    """Whether an expression is the dictionary of a module's names."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    return dotted(node.func) == "globals" or dotted(node.func) in ("vars", "locals") and scope(node) is None


def join(*parts):
    return ".".join(p for p in parts if p)


def is_ours(module):
    return module == OURS or module.startswith(OURS + ".")


# The names that need no import and may be in annotations and class headers.
BUILTINS = """object bool int float complex str bytes bytearray memoryview list tuple dict set frozenset type slice range
None Exception BaseException""".split()


class Reference:
    """What a dotted name means."""

    def __init__(self, module=None, name="", definition=None, rest="", external="", lost=""):
        self.module, self.name, self.definition = module, name, definition  # of vLLM, where it is declared
        self.rest = rest  # what of it is meant: "FINAL_ONLY" of RequestOutputKind.FINAL_ONLY
        self.external = external  # the dotted name elsewhere: "msgspec.Struct", "builtins.int"
        self.lost = lost  # why it was not found
        self.doubt = ""  # why it may be another
        self.later = ""  # why it may become another when its module has run to the end

    @property
    def kind(self):
        return self.definition.kind if self.definition else ""

    def why(self):
        """Why the name leads to nothing of vLLM."""
        return f"it is {self.external}, which is not of vLLM" if self.external else self.lost


class Library:
    """The modules of a release, each read once."""

    def __init__(self, read):
        self.read = read  # returns the files of some paths, by path
        self.texts, self.modules, self.parsed = {}, {}, 0
        self.found = {}  # references of the name that is being resolved

    def fetch(self, *paths):
        missing = [p for p in paths if p not in self.texts]
        if missing:
            found = self.read(missing)
            self.texts.update((p, found.get(p)) for p in missing)

    def load(self, name):
        """A module by its dotted name, which may be broken; None if there is none."""
        if name not in self.modules:
            file = name.replace(".", "/")
            self.modules[name] = None
            for path in (file + "/__init__.py", file + ".py"):  # as Python prefers them
                self.fetch(path)
                if self.texts[path] is not None:
                    self.modules[name] = self.parse(name, path, self.texts[path])
                    break
        return self.modules[name]

    def load_whole(self, name):
        """A module that can be parsed, or None."""
        m = self.load(name)
        return m if m and not m.broken else None

    def parse(self, name, path, text):
        self.parsed += len(text)
        if len(self.modules) > MAX_MODULES:
            raise Failure(f"more than {MAX_MODULES} modules are of the wire: this is not vLLM")
        if self.parsed > MAX_TEXT:
            raise Failure(f"more than {MAX_TEXT} bytes of Python are of the wire: this is not vLLM")
        m = Module(name, path, text)
        m.parse()
        return m

    def resolve(self, m, name):
        """What a dotted name means in a module. Imports and re-exports within vLLM are followed."""
        self.found.clear()
        return self.follow(m, name)

    def follow(self, m, name, stars=True):
        """Follow a name, once for each resolve. stars is whether an import of everything behind a definition is looked
        at."""
        key = m, name, stars
        if key not in self.found:
            self.found[key] = Reference(lost="its imports lead in a circle")
            self.found[key] = self.follow_once(m, name, stars)
        return self.found[key]

    def follow_once(self, m, name, stars):
        head, _, rest = name.partition(".")
        d = m.definitions.get(head)
        if not d:
            return self.follow_stars(m, name, stars)
        ref = Reference(m, head, d, rest)
        if d.kind == "import":
            ref = copy.copy(self.follow_import(m, d, rest, stars))
            if d.again and not ref.doubt:
                ref.doubt = f"{m.path}:{d.line} imports it from elsewhere than line {d.again}"
        if ref.later or not stars:
            return ref
        for source, s in m.stars:  # behind the definition, it may put another in its place
            if s.lineno < d.statement.end_lineno:
                continue
            there = self.load_whole(source) if is_ours(source) else None
            if there:
                other = self.follow(there, name, stars=False)
                if other.lost or (other.definition, other.external) == (ref.definition, ref.external):
                    continue
            ref.later = f"{m.path}:{s.lineno} imports everything from {source}, which may have another"
            break
        return ref

    def follow_stars(self, m, name, stars):
        """Look where the module imports everything from, last first, and among the names that Python knows."""
        for source, _ in reversed(m.stars):
            if not is_ours(source):
                continue
            there = self.load_whole(source)
            if not there:
                return Reference(lost=f"it may come from {source}, which cannot be read")
            ref = self.follow(there, name, stars)
            if ref.definition or ref.external:
                return ref
        if name in BUILTINS:
            return Reference(external="builtins." + name)
        return Reference(lost=m.path + " neither declares nor imports it")

    def follow_import(self, m, d, rest, stars):
        if not is_ours(d.module):
            return Reference(external=join(d.module, d.name, rest))
        below = join(d.module, d.name)
        if not d.name or d.module == m.name:  # the second is "from . import name", in the package itself
            return self.in_module(below, rest, stars)
        there = self.load_whole(d.module)
        if not there:
            return self.no_module(d.module)
        ref = self.follow(there, join(d.name, rest), stars)
        if ref.lost and self.load(below):  # the name is that of a module in the package
            return self.in_module(below, rest, stars)
        return ref

    def in_module(self, name, rest, stars):
        """Find a dotted name that starts in the module itself, or in one below it."""
        if not rest:
            return Reference(lost=name + " is a module")
        there = self.load_whole(name)
        head, _, below = rest.partition(".")
        if there and (head in there.definitions or not below):
            return self.follow(there, rest, stars)
        if not below:
            return self.no_module(name)
        return self.in_module(join(name, head), below, stars)

    def no_module(self, name):
        m = self.load(name)
        return Reference(lost=f"{m.path} cannot be parsed: {m.broken}" if m else f"there is no module {name}")

    def resolve_in(self, m, function, name):
        """resolve for a name within a function, which may import what it needs by itself; None is no function."""
        head = name.partition(".")[0]
        while function is not None:
            local = Module(m.name, m.path)
            for n in each(*function.body):
                if isinstance(n, (ast.Import, ast.ImportFrom)):
                    local.imports(n, "")
            if head in local.definitions:
                return self.resolve(local, name)
            function = enclosing_function(function)
        return self.resolve(m, name)

    def resolve_type(self, m, function, name):
        """resolve_in for a type. A name that only stands for another is that other."""
        ref = self.resolve_in(m, function, name)
        for _ in range(MAX_HOPS):
            d = ref.definition
            if not d or d.kind != "value" or ref.rest or d.again or d.condition or not dotted(d.node):
                break
            ref = self.resolve(ref.module, dotted(d.node))
        return ref


# --- Classes ---

STRUCT_BASES = ["msgspec.Struct"]
TUPLE_BASES = ["typing.NamedTuple", "typing_extensions.NamedTuple"]
ENUM_BASES = ["enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag"]
INERT_BASES = """abc.ABC typing.Generic typing.Protocol typing_extensions.Protocol builtins.object builtins.str
builtins.int builtins.bytes builtins.Exception builtins.BaseException""".split()
CONTAINER_BASES = """collections.UserDict collections.UserList collections.OrderedDict collections.defaultdict
builtins.dict builtins.list builtins.set builtins.tuple""".split()
DATA_DECORATORS = ["dataclasses.dataclass", "pydantic.dataclasses.dataclass"]
# A decorator of vLLM that has one of these makes dataclasses.
TRANSFORMERS = ["typing.dataclass_transform", "typing_extensions.dataclass_transform"]
# These change nothing of what is written.
INERT_DECORATORS = """enum.unique typing.final typing_extensions.final functools.total_ordering
typing.runtime_checkable""".split()
INERT_KEYWORDS = "gc frozen eq order weakref dict cache_hash repr_omit_defaults".split()
WIRE_KEYWORDS = "array_like omit_defaults tag".split()
NOT_FIELDS = "typing.ClassVar typing_extensions.ClassVar dataclasses.InitVar dataclasses.KW_ONLY".split()


# A member of a struct, before its type is read. msgspec puts those with keyword_only behind all others.
Field = collections.namedtuple("Field", "name module line annotation value keyword_only")


class Class:
    """What the header and the body of a class declare, with what it inherits."""

    def __init__(self, ref):
        self.name, self.module, self.definition = ref.name, ref.module, ref.definition
        # To the encoder, which is that of msgspec: "struct" (msgspec.Struct: a map, or an array if it is array_like),
        # "data" (a map, with every key), "tuple" (an array), "enum" (its value), "container" (a dict or list of the
        # types in its base), "foreign" (of an unknown base that is not vLLM's) or "plain".
        self.kind = "plain"
        self.bases, self.fields = [], []
        self.arguments = []  # of a container's base: dict[str, X]
        self.foreign = ""  # the unknown base
        self.abstract = False
        self.config = {}  # of msgspec, with what is inherited
        self.undecorated = False  # derived from a dataclass without being made one: it has the fields of the base
        self.keyword_only = False  # kw_only of this class alone
        self.members, self.values = [], {}  # of an enum; values by name

    @property
    def node(self):
        return self.definition.node

    @property
    def place(self):
        return {"module": self.module.path, "at": self.node.lineno}

    @property
    def encoding(self):
        array = self.kind == "tuple" or self.kind == "struct" and self.config.get("array_like") is True
        return "array" if array else "map"

    def method(self, name):
        """The class that has a method, and the method: of this class or of what it is derived from."""
        for n in reversed(self.node.body):
            if isinstance(n, FUNCTIONS) and n.name == name:
                return self, n
        for b in self.bases:
            found = b.method(name)
            if found:
                return found
        return None

    def add(self, field):
        """Append a field. One that the base has too keeps its place."""
        for i, known in enumerate(self.fields):
            if known.name == field.name:
                self.fields[i] = field
                return
        self.fields.append(field)

    def sets_field(self, node):
        """Whether a statement binds or deletes the name of a field."""
        names = {f.name for f in self.fields}
        return any(isinstance(n, ast.Name) and n.id in names and not isinstance(n.ctx, ast.Load) for n in each(node))


# --- Types ---

# The modules whose names are written without them.
PLAIN_MODULES = ["typing", "typing_extensions", "collections.abc", "builtins", "types", "concurrent.futures"]
# The generics that have a builtin of their own.
LOWER_NAMES = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "FrozenSet": "frozenset", "Type": "type"}


def external_name(name):
    """A name of elsewhere as it is usually written."""
    for module in PLAIN_MODULES:
        if name.startswith(module + "."):
            short = name[len(module) + 1 :]
            return LOWER_NAMES.get(short, short)
    if name.startswith("numpy."):
        return "np." + name.removeprefix("numpy.")
    return "dict" if name in ("collections.OrderedDict", "collections.defaultdict") else name


def union(options):
    """The text of a union, whose None is the last option."""
    some = [o for o in options if o != "None"]
    return " | ".join(some + ["None"] * (len(some) < len(options)))


class Annotation:
    """A type that is being read: its names are resolved, and what of vLLM it names is reached."""

    def __init__(self, extractor, module, what, function=None, line=0):
        self.x, self.module = extractor, module
        self.what = what  # for gaps: "EngineCoreRequest.params"
        self.function = function  # its own imports count too
        self.line = line  # of the string that the type is in; 0 if it is in none

    def line_of(self, node):
        return self.line or node.lineno

    def gap(self, node, why):
        self.x.gap(self.module, self.line_of(node), self.what, why)

    def text(self, node):
        """One spelling of the type: Optional["List[X]"] is list[X] | None."""
        return union(self.options(node))

    def options(self, node):
        """The options of a union; any other type is its only option."""
        match node:
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.options(left) + self.options(right)
            case ast.BinOp(op=op):
                self.gap(node, f"its type is computed by {type(op).__name__}")
                return [text_of(node)]
            case ast.Constant(value=str()):
                return self.quoted(node)
            case ast.Name() | ast.Attribute() if dotted(node):
                return [self.name(node)]
            case ast.Subscript():
                return self.generic(node)
            case ast.List(elts=elements):
                return ["[" + ", ".join(self.text(e) for e in elements) + "]"]
        if not is_literal(node) and not isinstance(node, ast.Constant):
            self.gap(node, f"its type {text_of(node)} is known only when it runs")
        return [text_of(node)]

    def quoted(self, node):
        """Read a type that is written as a string."""
        try:
            inner = parse_tree(node.value.strip(), "eval")
        except Unreadable:
            self.gap(node, f"its type {json.dumps(node.value, ensure_ascii=False)} is not an expression")
            return [node.value]
        return Annotation(self.x, self.module, self.what, self.function, self.line_of(node)).options(inner.body)

    def generic(self, node):
        """Read head[arguments]."""
        head = self.text(node.value)
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head in ("Optional", "Union"):
            options = [o for a in arguments for o in self.options(a)]
            return options + ["None"] * (head == "Optional")
        texts = []
        for i, a in enumerate(arguments):
            if head == "Literal":  # a value, or the name of another Literal
                texts.append(self.name(a) if isinstance(a, ast.Name) else text_of(a))
            elif head == "Annotated" and i > 0:
                texts.append(text_of(a))
            else:
                texts.append(self.text(a))
        return [head + "[" + ", ".join(texts) + "]"]

    def name(self, node):
        """Read a plain or dotted name."""
        text = dotted(node)
        ref = self.x.library.resolve_type(self.module, self.function, text)
        if ref.lost:
            self.gap(node, f"its type names {text}: {ref.lost}")
            return text
        if ref.external:
            return external_name(ref.external)
        self.x.reach(ref, self.module, self.line_of(node), self.what)
        return join(ref.name, ref.rest)


# --- Extraction ---

# The functions that stand for a default and more.
FIELD_MAKERS = ["dataclasses.field", "msgspec.field", "pydantic.Field", "pydantic.fields.Field"]
# A name may be assigned the result of these, which is a type and not a struct. What other calls make is not known.
TYPE_VARIABLES = ["typing.TypeVar", "typing.ParamSpec", "typing_extensions.TypeVar", "typing_extensions.ParamSpec"]
NEW_TYPES = ["typing.NewType", "typing_extensions.NewType"]
# These make a class at run time. What they make in the module of the wire is taken to be of the wire.
CLASS_MAKERS = """msgspec.defstruct dataclasses.make_dataclass collections.namedtuple typing.NamedTuple builtins.type
enum.Enum enum.IntEnum enum.StrEnum""".split()
# The classes that the wire carries, and whose form no declaration shows: a hook of the encoder writes UtilityResult as
# [type information, result].
OPAQUE = ["UtilityResult"]


class Extractor:
    def __init__(self, read):
        self.library = Library(read)
        self.profile = {"messages": {}, "enums": {}, "constants": {}, "utilities": {}, "structs": {}, "metrics": {}}
        self.gaps = []
        self.classes = {}  # by definition
        self.pending = {}  # gaps of classes that may not be of the wire, by definition
        self.reached, self.taken = set(), set()  # definitions: of types, of constants
        self.queue = []  # references that are yet to be read, each with what made it part of the wire
        self.origin = {}  # the place that a name of the profile was found at

    def run(self):
        self.library.fetch(*LIKELY_FILES)
        version, commit = self.version_text("__version__"), self.version_text("__commit_id__")
        for step in (
            self.root_structs, self.declared_by_engine, self.decoded_types, self.encoder_codes, self.event_media,
            self.utilities, self.messages, self.drain, self.changes, self.metrics, self.nixl,
        ):  # fmt: skip
            step()
        return {"profile": self.profile, "gaps": self.gaps, "version": version, "commit": commit}

    def gap(self, module, line, what, why):
        self.gaps.append({"module": module.path if module else "", "at": line, "what": what, "why": why})

    def need(self, name, what):
        """A module that the wire cannot be read without; None, and a gap, if it cannot be read."""
        m = self.library.load(name)
        if not m:
            why = f"there is no module {name}: it was renamed, moved, or this is not a release of vLLM"
            self.gap(None, 0, what, why)
        elif m.broken:
            self.gap(m, 0, what, "the module cannot be parsed: " + m.broken)
            return None
        return m

    def version_text(self, name):
        """What vllm/_version.py sets a name to; "" without one."""
        m = self.library.load(OURS + "._version")
        if m and m.broken:
            raise Failure(f"{m.path}: {m.broken}")
        d = m.definitions.get(name) if m else None
        return plain_text(d.node) or "" if d and d.kind == "value" else ""

    def root_structs(self):
        """Reach the roots, wherever the modules that name them have them from."""
        for module, name in ROOTS:
            what = "class " + name
            m = self.need(module, what)
            if not m:
                continue
            ref = self.library.resolve(m, name)
            if ref.definition:
                self.reach(ref, m, ref.definition.line, what)
            else:
                self.gap(m, 0, what, ref.why())

    def declared_by_engine(self):
        """Reach what vllm.v1.engine declares, and what the modules of both sides import from it."""
        engine = self.library.load_whole(ENGINE)
        if not engine:
            return  # the roots are gaps already
        declaring = [engine]
        for source, _ in engine.stars:  # what it imports everything from declares as it does
            there = self.library.load_whole(source) if is_ours(source) else None
            if there:
                declaring.append(there)
        names = {name for m in declaring for name, d in m.definitions.items() if d.kind in ("class", "value")}
        for speaker in SPEAKERS:
            m = self.need(speaker, f"the messages that {speaker} sends and receives")
            if m:
                names |= {d.name for d in m.definitions.values() if d.kind == "import" and d.module == ENGINE}
        for name in sorted(names):
            ref = self.library.resolve(engine, name)
            if ref.kind == "value":
                self.constant(ref)
            elif ref.kind == "class" and self.class_of(ref).kind not in ("plain", "foreign", "container"):
                self.reach(ref, ref.module, ref.definition.node.lineno, "class " + ref.name)

    def decoded_types(self):
        """Reach what both sides decode: the types that they pass to msgspec, or to the decoder of vLLM."""
        for name in SPEAKERS:
            m = self.library.load_whole(name)
            for n in m.of(ast.Call) if m else []:
                decoded, function = decoded_type(n), enclosing_function(n)
                if decoded is None or is_local(function, dotted(decoded).partition(".")[0]):
                    continue  # a caller of this function, or what it looks at, names the type
                Annotation(self, m, "what is decoded by " + text_of(n), function).text(decoded)

    def encoder_codes(self):
        """Take the extension types of MessagePack: what the encoder passes to msgpack.Ext."""
        what = "extension types of MessagePack"
        m = self.need(SERIAL, what)
        if not m:
            return
        found = False
        for n in m.of(ast.Call):
            if not dotted(n.func).endswith("msgpack.Ext") or not n.args:
                continue
            ref = self.library.resolve(m, dotted(n.args[0]))
            if ref.kind == "value":
                found = True
                self.constant(ref)
            else:
                self.gap(m, n.lineno, what, "the type is not a constant of a module: " + text_of(n.args[0]))
        if not found:
            self.gap(m, 0, what, "nothing calls msgpack.Ext with a constant")

    def event_media(self):
        """Take the names of where a block may be, MEDIUM_GPU and its like."""
        m = self.need(EVENTS, "media of KV cache events")
        for name, d in sorted(m.definitions.items()) if m else []:
            if d.kind == "value" and name.startswith("MEDIUM_"):
                self.constant(Reference(m, name, d))

    def reach(self, ref, module, line, what):
        """Take a name into the profile, because of what is at this place."""
        doubt = ref.doubt or ref.later
        if ref.definition and doubt:
            self.gap(module, line, what, f"which {ref.name} is meant cannot be read: {doubt}")
        if ref.definition and ref.definition not in self.reached:
            self.reached.add(ref.definition)
            self.queue.append((ref, module, line, what))

    def drain(self):
        """Read what was reached, and what that reaches."""
        while self.queue:
            ref, module, line, what = self.queue.pop(0)
            if ref.kind == "class":
                self.read_class(self.class_of(ref), what)
            elif ref.kind == "value":
                self.read_alias(ref, what)
            else:
                why = f"{ref.name} is a function: what it makes is known only when it runs"
                self.gap(module, line, what, why)

    # --- Classes and structs ---

    def class_of(self, ref, depth=0):
        """Read a class, once. Circles among bases end at MAX_HOPS."""
        if ref.definition in self.classes:
            return self.classes[ref.definition]
        c = Class(ref)
        if depth > MAX_HOPS:
            self.gap(c.module, c.node.lineno, "class " + c.name, "its bases lead in a circle")
            return c
        self.check_place(c)
        self.header(c, depth)
        self.decorators(c)
        self.inherit(c)
        if c.kind == "enum":
            self.enum_body(c)
        elif c.kind in ("struct", "tuple") or c.kind == "data" and not c.undecorated:
            self.struct_body(c)
        self.classes[c.definition] = c
        return c

    def class_gap(self, c, node, why):
        """Note what of a class cannot be read. It counts once the class turns out to be of the wire."""
        gap = {"module": c.module.path, "at": node.lineno, "what": "class " + c.name, "why": why}
        self.pending.setdefault(c.definition, []).append(gap)

    def check_place(self, c):
        """Note what makes a class other than it looks."""
        if c.definition.condition:
            self.class_gap(c, c.node, f"it is declared {c.definition.condition}")
        if c.definition.again:
            self.class_gap(c, c.node, f"it is declared more than once: also in line {c.definition.again}")
        if c.module.computed:
            self.class_gap(c, *c.module.computed)

    def header(self, c, depth):
        """Read the bases and the keywords of a class."""
        for n in c.node.bases:
            name = dotted(n.value if isinstance(n, ast.Subscript) else n)
            if name:
                self.base(c, n, name, depth)
            else:
                self.class_gap(c, n, f"its header has {text_of(n)}, which is known only when it runs")
        for k in c.node.keywords:
            if k.arg is None:
                self.class_gap(c, k, f"its header has **{text_of(k.value)}, which is known only when it runs")
                continue
            shown = f"{k.arg}={text_of(k.value)}"
            if k.arg in INERT_KEYWORDS:
                continue
            if not is_literal(k.value):
                self.class_gap(c, k, f"{shown} is known only when it runs")
                continue
            value = literal(k.value)
            if k.arg == "kw_only":
                c.keyword_only = value is True
            elif k.arg in WIRE_KEYWORDS:
                c.config[k.arg] = value
            elif value is not None and value is not False:
                self.class_gap(c, k, f"a profile cannot express {shown}")

    def base(self, c, n, name, depth):
        """Read one of the classes that a class is derived from."""
        ref = self.library.resolve_type(c.module, None, name)
        if ref.doubt:
            self.class_gap(c, n, f"which base {name} is meant cannot be read: {ref.doubt}")
        if ref.lost:
            self.class_gap(c, n, f"its base {name} cannot be found: {ref.lost}")
        elif ref.kind == "class" and not ref.rest:
            c.bases.append(self.class_of(ref, depth + 1))
        elif ref.definition:
            self.class_gap(c, n, f"its base {name} is not a class of {ref.module.path}")
        elif ref.external in STRUCT_BASES:
            c.kind = "struct"
        elif ref.external in TUPLE_BASES:
            c.kind = "tuple"
        elif ref.external in ENUM_BASES:
            c.kind = "enum"
        elif ref.external in CONTAINER_BASES:
            c.kind = "container"
            if isinstance(n, ast.Subscript):
                c.arguments += n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]
        elif ref.external == "abc.ABC":
            c.abstract = True
        elif ref.external not in INERT_BASES:
            c.kind, c.foreign = "foreign", ref.external

    def decorators(self, c):
        """Read those of a class. A decorator of vLLM makes a dataclass if it is declared to."""
        for n in c.node.decorator_list:
            name = dotted(called(n))
            ref = self.library.resolve(c.module, name)
            plain = not ref.lost and not ref.rest and not ref.doubt
            if plain and ref.external in INERT_DECORATORS:
                continue
            if plain and (ref.external in DATA_DECORATORS or self.is_transformer(ref)):
                c.kind = "data"
            else:
                why = f"what its decorator {name or text_of(called(n))} does to it cannot be read"
                self.class_gap(c, n, why)

    def is_transformer(self, ref):
        resolve = self.library.resolve
        return ref.kind == "function" and any(
            resolve(ref.module, dotted(called(d))).external in TRANSFORMERS for d in ref.definition.node.decorator_list
        )

    def inherit(self, c):
        """Take over what the bases have."""
        source = None
        for b in c.bases:
            self.pending.setdefault(c.definition, []).extend(self.pending.get(b.definition, []))
            if b.kind == "plain":
                continue
            if source and source.fields and b.fields:
                why = f"it is derived from {source.name} and {b.name}: the order of its fields cannot be read"
                self.class_gap(c, c.node, why)
            if not source or b.fields:
                source = b
        if not source:
            return
        if c.kind == "plain":
            c.kind, c.foreign = source.kind, source.foreign
            c.undecorated = c.kind == "data"
        if c.kind == "container" and not c.arguments:
            c.arguments = source.arguments
        c.fields = list(source.fields)
        c.config = {k: v for k, v in source.config.items() if k in WIRE_KEYWORDS} | c.config

    def struct_body(self, c):
        """Read the fields that the statements of a class declare."""
        for s in c.node.body:
            match s:
                case ast.Expr(value=ast.Call(func=function)):
                    self.class_gap(c, s, f"its body calls {text_of(function)}")
                case ast.Assign(targets=[target, *_]) | ast.AugAssign(target=target) if sets_annotations(target):
                    self.class_gap(c, s, "its body sets __annotations__")
                case ast.AnnAssign(target=target, annotation=annotation, value=value):
                    if self.is_field(c.module, annotation):
                        keyword_only = c.keyword_only and c.kind == "struct"
                        c.add(Field(text_of(target), c.module, s.lineno, annotation, value, keyword_only))
                case ast.Assign() | ast.AugAssign() | ast.Expr():
                    if c.sets_field(s):
                        self.class_gap(c, s, f"its body sets a field otherwise: {c.module.first_line(s)}")
                case _:
                    self.check_statement(c, s, "fields")
        if c.kind == "struct":
            c.fields.sort(key=lambda f: f.keyword_only)

    def check_statement(self, c, s, what):
        """Look at a statement of a class body that is not an expression: one that assigns or calls something may
        declare."""
        if isinstance(s, (*FUNCTIONS, ast.ClassDef)):
            return
        for n in each(s):
            declares = isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Call))
            if declares or isinstance(n, ast.Delete) and c.sets_field(n):
                self.class_gap(c, s, f"it declares {what} under a condition")
                return

    def is_field(self, m, annotation):
        """Whether an annotation is that of a field, and not of what the class alone has."""
        node = annotation
        if plain_text(node) is not None:
            try:
                node = parse_tree(node.value.strip(), "eval").body
            except Unreadable:
                return True  # it becomes a gap
        name = dotted(node.value if isinstance(node, ast.Subscript) else node)
        return self.library.resolve(m, name).external not in NOT_FIELDS

    def enum_body(self, c):
        """Read the members of an enum, in the order of their declaration."""
        counts_otherwise = (
            c.method("_generate_next_value_") or self.derives_from(c, "enum.Flag") or self.derives_from(c, "enum.IntFlag")
        )
        is_text = self.derives_from(c, "enum.StrEnum")  # auto() is the name in lower case
        last = 0  # else auto() is the next
        for s in c.node.body:
            if not isinstance(s, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)):
                self.check_statement(c, s, "members")
                continue
            for target, value_node in bindings(s):
                name = dotted(target)
                is_sunder = len(name) > 2 and name.startswith("_") and name.endswith("_")
                if value_node is None or is_sunder:
                    continue
                if not isinstance(target, ast.Name):
                    self.class_gap(c, s, f"its member {text_of(target)} has no plain name")
                    continue
                try:
                    if isinstance(value_node, ast.Call):
                        maker = self.library.resolve(c.module, dotted(value_node.func)).external
                        if maker != "enum.auto" or counts_otherwise:
                            raise NotLiteral
                        value = name.lower() if is_text else last + 1
                    elif dotted(value_node) in c.values:
                        value = c.values[dotted(value_node)]
                    else:
                        value = self.evaluate(c.module, value_node)
                except NotLiteral:
                    self.class_gap(c, s, f"the value of its member {name} is known only when it runs")
                    continue
                if isinstance(value, int) and not isinstance(value, bool):
                    last = max(last, value)
                c.values[name] = value
                c.members.append({"name": name, "value": value, "at": s.lineno})

    def derives_from(self, c, base):
        own = any(self.library.resolve(c.module, dotted(n)).external == base for n in c.node.bases)
        return own or any(self.derives_from(b, base) for b in c.bases)

    def read_class(self, c, because):
        """Take a class into the profile, because of something that is of the wire."""
        if c.name in OPAQUE and c.kind == "plain":
            return
        what = "class " + c.name
        pending = self.pending.get(c.definition, [])
        self.gaps += pending
        if c.kind in ("struct", "data", "tuple"):
            self.read_struct(c)
        elif c.kind == "enum":
            if self.is_unique(c):
                self.profile["enums"][c.name] = {**c.place, "members": c.members}
        elif c.kind == "container":
            for a in c.arguments:
                self.annotation(c.module, a, what)
        elif c.kind == "foreign":
            why = f"its base class {c.foreign} is not part of vLLM: the fields that it adds are not known ({because})"
            self.gap(c.module, c.node.lineno, what, why)
        elif not pending:  # else that is why
            why = f"it has no fields that are declared: its form on the wire is not known ({because})"
            self.gap(c.module, c.node.lineno, what, why)

    def is_unique(self, c):
        """Note a second meaning of a name: the profile knows structs by their names."""
        place = f"{c.module.path}:{c.node.lineno}"
        other = self.origin.setdefault(c.name, place)
        if other != place:
            self.gap(c.module, c.node.lineno, "class " + c.name, f"another class of the wire has its name: {other}")
        return other == place

    def read_struct(self, c):
        """Take a struct with its fields, and the structs that it is derived from. An abstract struct is never written
        itself: the classes of its module that are derived from it are taken instead."""
        place, what = (c.module, c.node.lineno), "class " + c.name
        for b in c.bases:
            if b.kind == c.kind and not b.abstract:
                self.reach(Reference(b.module, b.name, b.definition), *place, what)
        if c.abstract:
            found = False
            for name, d in sorted(c.module.definitions.items()):
                ref = Reference(c.module, name, d)
                if d.kind == "class" and d is not c.definition and c in self.class_of(ref).bases:
                    found = True
                    self.reach(ref, *place, what)
            if not found:
                self.gap(*place, what, "it is abstract, and its module derives no class from it")
            return
        if not self.is_unique(c):
            return
        tag = c.config.get("tag", "")
        tag = c.name if tag is True else tag
        self.profile["structs"][c.name] = {
            **c.place,
            "encoding": c.encoding,
            "omit_defaults": c.config.get("omit_defaults") is True,
            "exact": c.kind == "tuple",
            "tag": tag if isinstance(tag, str) else "",
            "fields": [self.read_field(c, f) for f in c.fields],
        }

    def read_field(self, c, f):
        read = {"name": f.name, "type": self.annotation(f.module, f.annotation, f"{c.name}.{f.name}"), "at": f.line}
        preset, wire_name = self.preset(f.module, f.value)
        read |= preset
        if wire_name and c.kind == "struct":
            read["name"] = wire_name
        if f.module is not c.module:
            read["module"] = f.module.path
        return read

    def annotation(self, m, node, what):
        return Annotation(self, m, what).text(node)

    # --- Defaults and constants ---

    def evaluate(self, m, node):
        """The value of a literal, the name of a constant, or a member of an enum; NotLiteral for anything else."""
        for _ in range(MAX_HOPS):
            if is_literal(node):
                return literal(node)
            if not dotted(node):
                break
            ref = self.library.resolve(m, dotted(node).removesuffix(".value"))
            d = ref.definition
            if not d or ref.doubt or d.condition or d.again:
                break
            if d.kind == "class" and ref.rest:
                values = self.class_of(Reference(ref.module, ref.name, d)).values
                if ref.rest in values:
                    return values[ref.rest]
                break
            if d.kind != "value" or ref.rest:
                break
            m, node = ref.module, d.node
        raise NotLiteral

    def preset(self, m, node):
        """The default of a field, and the name that it is written by, if that is another. A default that is known only
        when it runs is its source."""
        if node is None or isinstance(node, ast.Constant) and node.value is ...:
            return {"required": True}, ""
        if isinstance(node, ast.Call) and self.library.resolve(m, dotted(node.func)).external in FIELD_MAKERS:
            return self.field_call(m, node)
        try:
            value = self.evaluate(m, node)
        except NotLiteral:
            value = text_of(node)
        return ({} if value is None else {"default": value}), ""

    def field_call(self, m, call):
        """Read field(default=..., default_factory=..., name=...). Pydantic takes the default without its name."""
        preset, wire_name = {"required": True}, ""
        for name, value in [("default", a) for a in call.args] + [(k.arg, k.value) for k in call.keywords]:
            if name == "default":
                preset = self.preset(m, value)[0]
            elif name == "default_factory":
                preset = {"default": self.factory(m, value)}
            elif name == "name":
                wire_name = plain_text(value) or text_of(value)
        return preset, wire_name

    def factory(self, m, node):
        """A default that is made anew for each object: an empty container, or a struct with its own defaults, which is
        an empty one of its kind here."""
        ref = self.library.resolve(m, dotted(node))
        if ref.external in ("builtins.list", "builtins.set", "builtins.tuple", "builtins.frozenset"):
            return []
        if ref.external == "builtins.dict":
            return {}
        if ref.kind == "class" and not ref.rest:
            c = self.class_of(ref)
            if c.kind in ("struct", "data", "tuple"):
                return [] if c.encoding == "array" else {}
        return text_of(node) + "()"

    def read_alias(self, ref, because):
        """Take a name that annotations use, and that stands for another type. It becomes a constant, whose value is
        that type, as what it permits is of the wire: PauseMode is Literal['abort', 'wait', 'keep']."""
        m, node, what = ref.module, ref.definition.node, "type " + ref.name
        if isinstance(node, ast.Call):
            maker = self.library.resolve(m, dotted(node.func)).external
            if maker in NEW_TYPES and len(node.args) == 2:
                self.take_constant(ref, self.annotation(m, node.args[1], what))
            elif maker not in TYPE_VARIABLES:
                why = f"it is made by a call of {text_of(node.func)}, so that what it is, is known only when it runs"
                self.gap(m, ref.definition.line, what, f"{why} ({because})")
            return
        if is_literal(node) and plain_text(node) is None and not (isinstance(node, ast.Constant) and node.value is None):
            self.gap(m, ref.definition.line, what, "it is used as a type, and is the value " + text_of(node))
            return
        text = self.annotation(m, node, what)
        self.check_constant(ref, what)
        self.take_constant(ref, text)

    def constant(self, ref):
        """Take a name that nothing uses as a type: its value if it is a literal, the type if it is one, or nothing."""
        node = ref.definition.node
        if is_literal(node):
            self.check_constant(ref, "constant " + ref.name)
            self.take_constant(ref, literal(node))
        elif isinstance(node, (ast.Subscript, ast.BinOp)):
            self.reach(ref, ref.module, ref.definition.line, "type " + ref.name)
        elif isinstance(node, ast.Call):  # it becomes a gap
            if self.library.resolve(ref.module, dotted(node.func)).external in CLASS_MAKERS:
                self.reach(ref, ref.module, ref.definition.line, "class " + ref.name)

    def check_constant(self, ref, what):
        """Note that a name may have another value."""
        if ref.definition.condition:
            self.gap(ref.module, ref.definition.line, what, "it is declared " + ref.definition.condition)
        if ref.definition.again:
            self.gap(ref.module, ref.definition.line, what, "it is declared more than once")

    def take_constant(self, ref, value):
        self.taken.add(ref.definition)
        place = {"module": ref.module.path, "at": ref.definition.line}
        self.profile["constants"][ref.name] = {**place, "value": value}

    # --- Utility methods ---

    def utilities(self):
        """Read which methods the Python frontend calls, and what the engine makes of them."""
        what = "utility methods"
        client = self.need(CLIENT, what)
        if not client:
            return
        sites = self.call_sites(client, what)
        if not sites:
            self.gap(client, 0, what, "nothing calls call_utility")
            return
        core = self.need(CORE, what)
        if not core:
            return
        engines = []
        for name in ("EngineCoreProc", "DPEngineCoreProc"):  # of every engine, and of one that runs in waves
            ref = self.library.resolve(core, name)
            if ref.kind == "class":
                engines.append(self.class_of(ref))
            else:
                self.gap(core, 0, "class " + name, "it answers utility calls, and cannot be found: " + ref.why())
        for name, found in sorted(sites.items()):
            self.utility(client, core, engines, name, found)

    def call_sites(self, client, what):
        """The calls of call_utility and its variants, by the method that they name, which is a literal or a constant.
        A call site has the call, the function that it is in, and the arguments behind the name of the method."""

        def is_caller(name):
            return name.removeprefix("_").startswith("call_utility")

        sites = {}
        for n in client.of(ast.Call):
            if not is_caller(last_name(n.func)):
                continue
            function, arguments = enclosing_function(n), positional_arguments(n)
            if not arguments:
                self.gap(client, n.lineno, what, "a call that names no method: " + text_of(n))
                continue
            method = arguments[0][0]
            if isinstance(method, ast.Name) and is_local(function, method.id):
                # A function that is itself a way to call any method passes on a name: it is not a call site.
                around = function
                while around is not None and not is_caller(around.name):
                    around = enclosing_function(around)
                if around is not None:
                    continue
            try:
                name = self.evaluate(client, method)
            except NotLiteral:
                name = None
            if not isinstance(name, str):
                self.gap(client, n.lineno, what, "the name of a method is known only when it runs: " + text_of(n))
                continue
            sites.setdefault(name, []).append((n, function, [text for _, text in arguments[1:]]))
        return sites

    def utility(self, client, core, engines, name, sites):
        """Take a method with the signature that an engine declares. What the frontend's own functions pass on and get
        back is reached too: an engine that answers without a method has no other types."""
        what = "utility " + name
        found = next(filter(None, (c.method(name) for c in engines)), None)
        if found:
            of, function = found
            place = {"module": of.module.path, "at": function.lineno}
            parts = [self.parameter(of.module, p, what) for p in parameters(function)]
            signature = self.signature(of.module, parts, function, what)
        else:
            # The call may be answered before it gets to the engine, where its name is compared with a literal.
            at = self.compared_with(core, name)
            if at is None:
                why = f"the frontend calls it, and no engine class of {core.path} has it"
                self.gap(client, sites[0][0].lineno, what, why)
                return
            place = {"module": core.path, "at": at.lineno}
            signature = self.client_signature(client, sites[0], what)
        calls = sorted({", ".join(arguments) for _, _, arguments in sites})
        self.profile["utilities"][name] = {**place, "signature": signature, "calls": calls}
        for site in sites:
            if site[1] is not None:
                self.client_signature(client, site, what)

    def compared_with(self, m, text):
        """The first comparison of a module with a text, or None."""
        for n in m.of(ast.Compare):
            for side in [n.left, *n.comparators]:
                try:
                    if self.evaluate(m, side) == text:
                        return n
                except NotLiteral:
                    pass
        return None

    def signature(self, m, parts, function, what):
        """The signature of a function: (self, level: int=1) -> None."""
        text = "(" + ", ".join(parts) + ")"
        if function is not None and function.returns is not None:
            text += " -> " + self.annotation(m, function.returns, what)
        return text

    def parameter(self, m, parameter, what):
        text, annotation, default = parameter
        if annotation is not None:
            text += ": " + self.annotation(m, annotation, what)
        if default is not None:
            text += "=" + text_of(default)
        return text

    def client_signature(self, m, site, what):
        """The signature that a method must have for a call: of those parameters of the calling function that it passes
        on."""
        _, function, arguments = site
        known = {} if function is None else {name: annotation for name, annotation, _ in parameters(function)}
        parts = ["self"] + [self.parameter(m, (name, known.get(name), None), what) for name in arguments]
        return self.signature(m, parts, function, what)

    # --- Messages without a struct ---

    def messages(self):
        """Read the messages that have no struct. Each has a method, which notes the gaps of its own."""
        for module, names, read in (
            (CORE, ["HELLO", "READY"], self.handshakes),
            (UTILS, ["INIT.parallel_config"], self.init_keys),
            (CLIENT, ["UTILITY", "coordinator load"], self.client_tuples),
            (EVENTS, ["KV events", "KV events replay", "KV events replay end"], self.event_frames),
            (COORDINATOR, ["START_DP_WAVE", "coordinator counts"], self.coordination),
        ):
            m = self.need(module, "messages " + ", ".join(names))
            if not m:
                continue
            read(m)
            for name in names:
                if name not in self.profile["messages"]:
                    self.gap(m, 0, "message " + name, "it cannot be found in the form that is known")

    def message(self, m, node, name, encoding, keys):
        """Take a message. A second one of the same name must be the same."""
        before = self.profile["messages"].get(name)
        if before:
            if [(k["name"], k.get("optional")) for k in before["keys"]] != [(k["name"], k.get("optional")) for k in keys]:
                why = f"it is written in another form than in line {before['at']}"
                self.gap(m, node.lineno, "message " + name, why)
            return
        self.profile["messages"][name] = {"encoding": encoding, "module": m.path, "at": node.lineno, "keys": keys}

    def sequence(self, m, node, name, encoding, parts):
        """Take a message of an array or of frames, whose parts have names."""
        self.message(m, node, name, encoding, [{"name": part, "at": node.lineno} for part in parts])

    def handshakes(self, m):
        """Read the dictionaries that an engine registers with: those whose key "status" has the value HELLO or READY."""
        for n in m.of(ast.Dict):
            status = next((v for k, v in zip(n.keys, n.values) if plain_text(k) == "status"), None)
            if plain_text(status) in ("HELLO", "READY"):
                self.message(m, n, status.value, "map", self.dict_keys(m, n, "message " + status.value))

    def key(self, keys, m, node, line, shown, what):
        """Note the name of a key, which is the text of an expression."""
        name = plain_text(node)
        if name is None:
            self.gap(m, line, what, "a key is known only when it runs: " + shown)
            return None
        keys.append({"name": name, "at": line})
        return keys[-1]

    def dict_keys(self, m, node, what):
        """The keys of a dictionary, and those that its function sets on the variable that it is assigned to."""
        keys = []
        for k, v in zip(node.keys, node.values):
            if k is None:
                self.key(keys, m, None, v.lineno, "**" + text_of(v), what)
            else:
                self.key(keys, m, k, k.lineno, f"{text_of(k)}: {text_of(v)}", what)
        targets, function = [t for t, _ in bindings(node.parent)], enclosing_function(node)
        if function is None or len(targets) != 1 or not isinstance(targets[0], ast.Name):
            return keys
        variable = targets[0].id
        for n in each(*function.body):
            if changes_dict(n, variable):
                self.gap(m, n.lineno, what, "its keys are changed by " + text_of(n))
            targets = [n.target] if isinstance(n, ast.AugAssign) else [t for t, _ in bindings(n)]
            for t in targets:  # variable["key"] = value
                if isinstance(t, ast.Subscript) and dotted(t.value) == variable:
                    key = self.key(keys, m, t.slice, n.lineno, text_of(t), what)
                    if key and is_conditional(n, node):
                        key["optional"] = True
        return keys

    def init_keys(self, m):
        """Read which settings a frontend sends to an engine, under a condition all of them: the names of a
        comprehension or the keys of a dictionary that is assigned to what it passes as parallel_config."""
        what = "message INIT.parallel_config"
        for n in m.of(ast.Call):
            value = keyword(n, "parallel_config")
            if dotted(n.func) == "EngineHandshakeMetadata" and value is not None:
                break
        else:
            self.gap(m, 0, what, "nothing calls EngineHandshakeMetadata(parallel_config=…)")
            return
        function = enclosing_function(value)
        if not isinstance(value, ast.Name) or function is None:
            self.init_value(m, value, what)
            return
        for n in each(function):
            for target, assigned in bindings(n):
                if dotted(target) == value.id and assigned is not None and not is_empty_dict(assigned):
                    self.init_value(m, assigned, what)

    def init_value(self, m, node, what):
        keys = []
        match node:
            case ast.IfExp(body=body, orelse=orelse):  # {…} if coordinated else {}
                for branch in (body, orelse):
                    if isinstance(branch, (ast.Dict, ast.DictComp)) and not is_empty_dict(branch):
                        self.init_value(m, branch, what)
                return
            case ast.Dict():
                keys = self.dict_keys(m, node, what)
            case ast.DictComp(generators=[*_, ast.comprehension(iter=ast.Tuple(elts=names) | ast.List(elts=names))]):
                for name in names:
                    self.key(keys, m, name, name.lineno, text_of(name), what)
            case ast.DictComp(generators=generators):
                shown = text_of(generators[-1].iter)
                self.gap(m, node.lineno, what, "its keys are known only when it runs: " + shown)
            case _:
                self.gap(m, node.lineno, what, "its keys are known only when it runs: " + text_of(node))
                return
        for key in keys:
            key["optional"] = True
        self.message(m, node, "INIT.parallel_config", "map", keys)

    def client_tuples(self, m):
        """Read the arrays that a client sends and receives without a struct: a utility call is the tuple with the
        method's name that it encodes, and the load of the engines is what it takes apart as soon as it is decoded."""
        for n in m.of(ast.Call, ast.Assign):
            if isinstance(n, ast.Call):
                names = encoded_tuple(n)
                if "call_id" in names and "method" in names:
                    self.sequence(m, n, "UTILITY", "array", names)
                continue
            for target in n.targets:
                names = elements(target) or []
                if is_decode_call(n.value) and "counts" in names:
                    self.sequence(m, n, "coordinator load", "array", names)

    def event_frames(self, m):
        """Read the frames that the publisher of KV events sends: on its socket for subscribers, and on the one for
        replays, where the end of a replay has a number of its own."""
        what, publisher = "messages of KV events", "ZmqEventPublisher"
        ref = self.library.resolve(m, publisher)
        if ref.kind != "class":
            self.gap(m, 0, "class " + publisher, ref.why())
            return
        for n in each(ref.definition.node):
            if not isinstance(n, ast.Call) or last_name(n.func) != "send_multipart":
                continue
            names = elements(sole_argument(n))
            if names is None:
                self.gap(ref.module, n.lineno, what, "the frames are known only when it runs: " + text_of(n))
                continue
            socket = frame_name(n.func.value) if isinstance(n.func, ast.Attribute) else ""
            name = "KV events"
            if "replay" in socket:
                name = "KV events replay end" if "END_SEQ" in names else "KV events replay"
            elif "pub" not in socket:
                self.gap(ref.module, n.lineno, what, "it sends on a socket that is not known: " + socket)
                continue
            self.sequence(ref.module, n, name, "frames", names)

    def coordination(self, m):
        """Read what the coordinator of data-parallel engines sends and receives: the tuple of START_DP_WAVE, the counts
        that it keeps of an engine, and the notice of a first request, which frontends sent until 0.32."""
        counts, counts_at = {}, None
        for n in m.of(ast.Call, ast.Assign):
            if isinstance(n, ast.Call):
                names, function = encoded_tuple(n), enclosing_function(n)
                if names and function is not None and function.name == "_send_start_wave":
                    self.sequence(m, n, "START_DP_WAVE", "array", names)
                continue
            for target in n.targets:
                names = elements(target)
                if names and is_decoded(n.value):
                    self.sequence(m, n, "coordinator first request", "array", names)
                match target, n.value:  # stats[0] = scheduler_stats.num_waiting_reqs
                    case (
                        ast.Subscript(slice=ast.Constant(value=int() as index)),
                        ast.Attribute(value=ast.Name(id="scheduler_stats"), attr=name),
                    ):
                        counts[index], counts_at = name, n
        for i in range(len(counts)):
            if i not in counts:
                self.gap(m, counts_at.lineno, "message coordinator counts", f"nothing sets its element {i}")
                return
        if counts:
            self.sequence(m, counts_at, "coordinator counts", "array", [counts[i] for i in range(len(counts))])

    # --- Changes after a declaration ---

    def changes(self):
        """Look in all modules that were read for statements that make something of the wire other than its declaration
        shows: that bind its name anew, delete it, or change its parts. What other modules do stays unseen."""
        known = {d.declared for d in self.reached | self.taken}
        for name in sorted(self.library.modules):
            m = self.library.load_whole(name)
            for n in m.nodes if m else []:
                for target in changed(n):
                    if not known.isdisjoint(target.split(".")):
                        self.change(m, n, target)

    def change(self, m, n, target):
        """Note what a statement changes, if it is of the wire."""
        if not isinstance(n, ast.Global) and is_local(enclosing_function(n), target.partition(".")[0]):
            return
        ref = self.library.resolve(m, target)
        if ref.definition not in self.reached and ref.definition not in self.taken:
            return
        if ref.rest and not ref.rest.startswith("_"):
            return  # an attribute of the class, which is not written
        what = ("class " if ref.kind == "class" else "constant ") + ref.name
        while not isinstance(n, ast.stmt):
            n = n.parent
        self.gap(m, n.lineno, what, "it is changed after its declaration: " + m.first_line(n))

    # --- Metrics ---

    def metrics(self):
        """Read the declarations of metrics. They are not messages; but a release without any would be compared with
        nothing."""
        what, reader = "metrics of the Python server", Metrics(self)
        for name in METRIC_MODULES:
            m = self.library.load_whole(name)
            if m:  # else an older release, or its metrics are removed or declared elsewhere
                reader.read(m)
        if reader.variables > MAX_VARIABLES:
            self.gap(None, 0, what, "their declarations have more variables than this program follows")
        elif not self.profile["metrics"]:
            why = f"no metric is declared in {STATS}: it was renamed, moved, or declares them in another way"
            self.gap(None, 0, what, why)

    def nixl(self):
        """Read the boundary of NIXL as a profile of its own. A release without the connector has none."""
        if self.library.load(NIXL + ".metadata"):
            whole, self.profile = self.profile, {"messages": {}, "constants": {}, "structs": {}}
            Nixl(self).read()
            whole["nixl"], self.profile = self.profile, whole


def decoded_type(call):
    """The argument of a call that names the type to decode to, or None."""
    last = last_name(call.func)
    if last in ("decode", "convert", "Decoder") and keyword(call, "type") is not None:
        return keyword(call, "type")
    if last in ("MsgpackDecoder", "Decoder") and call.args:
        return call.args[0]
    if dotted(call.func) == "msgspec.convert" and len(call.args) > 1:
        return call.args[1]
    return None


def sets_annotations(target):
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
    return isinstance(target, ast.Name) and target.id == "__annotations__"


def is_empty_dict(node):
    return isinstance(node, ast.Dict) and not node.values


def changes_dict(node, variable):
    """Whether a node changes a dictionary otherwise than by setting one key."""
    match node:
        case ast.Call(func=function):
            receiver, _, name = dotted(function).partition(".")
            return receiver == variable and name in ("update", "pop", "clear", "setdefault", "popitem")
        case ast.AugAssign(target=target):
            return dotted(target) == variable
        case ast.Delete(targets=targets):
            return any(isinstance(t, ast.Subscript) and dotted(t.value) == variable for t in targets)
    return False


# The statements and clauses that do not always run what they contain.
CONDITIONS = (ast.If, *LOOPS, ast.While, ast.ExceptHandler, ast.Match)


def is_conditional(node, other):
    """Whether a statement runs only under a condition that another, of the same function, has not."""
    outer = set()
    while other is not None:
        outer.add(other)
        other = other.parent
    node = node.parent
    while node is not None and node not in outer:
        if isinstance(node, CONDITIONS):
            return True
        node = node.parent
    return False


def is_decode_call(node):
    return isinstance(node, ast.Call) and last_name(node.func) == "decode"


def is_decoded(variable):
    """Whether an expression is a variable that was decoded in the same function."""
    function = enclosing_function(variable) if isinstance(variable, ast.Name) else None
    return function is not None and any(
        dotted(target) == variable.id and is_decode_call(value) for n in each(function) for target, value in bindings(n)
    )


def encoded_tuple(call):
    """The names of the elements of a tuple that a call encodes."""
    return elements(sole_argument(call)) or [] if last_name(call.func) == "encode" else []


def elements(node):
    """The names of the elements of a tuple or list, or of what one is taken apart to; None for anything else."""
    return [frame_name(e) for e in node.elts] if isinstance(node, (ast.Tuple, ast.List)) else None


def frame_name(node):
    """What a part of a message is called: the name that it is passed by, without what the language adds to it. One that
    is always empty is "empty"."""
    match node:
        case ast.Call(func=ast.Attribute(value=value)):  # seq.to_bytes(8, "big")
            return frame_name(value)
        case ast.Constant(value=b""):
            return "empty"
        case ast.Name() | ast.Attribute():
            return last_name(node).lstrip("_").removesuffix("_bytes")
    return text_of(node)


def changed(node):
    """The dotted names that a node binds, deletes or changes, apart from the plain assignments, classes, functions and
    imports that are declarations. Names of a function or a class body are its own."""
    stores = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    match node:
        case ast.Name() if stores and scope(node) is None:
            plain = isinstance(node.parent, (ast.Assign, ast.AnnAssign)) and isinstance(node.ctx, ast.Store)
            return [] if plain else [node.id]
        case ast.Attribute() if stores:
            return [dotted(node)] if dotted(node) else []
        case ast.Subscript(value=value, slice=index) if stores:  # x.y["key"], or what the names of a module have by the key
            if is_namespace(value):  # else the module has computed names
                return [plain_text(index)] if plain_text(index) is not None else []
            return [dotted(value)] if isinstance(value, ast.Attribute) and dotted(value) else []
        case ast.Global(names=names):
            function = enclosing_function(node)
            return [name for name in names if function is not None and binds(function, name)]
        case ast.Call():
            return changed_by_call(node)
    return []


def changed_by_call(call):
    """The names that a call changes: setattr(X, …), X.__annotations__.update(…), and extend(X) where nothing takes the
    result."""
    function = dotted(call.func)
    before, found, inner = function.partition(".__")
    if found and "__." in inner:
        return [before]
    name = dotted(call.args[0]) if call.args else ""
    if not name:
        return []
    if function in ("setattr", "delattr"):
        attribute = plain_text(call.args[1]) if len(call.args) > 1 else None
        return [name] + ([f"{name}.{attribute}"] if attribute else [])
    return [name] if isinstance(call.parent, ast.Expr) and scope(call) is None else []


class Nixl:
    """A reader of the boundary between a prefill engine and a decode engine, which NixlConnector has: the handshake over
    its side channel, the hash that both sides must agree on, notifications, and the kv_transfer_params that a router
    carries from one to the other. It has the form of a profile of its own."""

    # The modules of releases before the connector had two modes are the second names.
    MODULES = {
        "base_scheduler": "scheduler", "base_worker": "worker", "pull_scheduler": "scheduler", "pull_worker": "worker",
    }  # fmt: skip

    def __init__(self, extractor):
        self.x, self.library = extractor, extractor.library

    def module(self, name):
        m = self.library.load_whole(f"{NIXL}.{name}") or self.library.load_whole(f"{NIXL}.{self.MODULES.get(name)}")
        if not m:
            self.x.gap(None, 0, "boundary of NIXL", f"there is no module {NIXL}.{name} that can be parsed")
        return m

    def read(self):
        metadata = self.module("metadata")
        modules = [self.module(name) for name in self.MODULES]
        if not metadata or None in modules:
            return
        scheduler, worker, pull_scheduler, pull_worker = modules
        self.declared(metadata)
        self.hash(metadata)
        self.handshake(scheduler, worker)
        self.notifications(worker, pull_worker)
        self.produced(pull_scheduler)
        self.consumed(metadata)
        self.x.drain()
        found, what = self.x.profile, "boundary of NIXL"
        for name in ("handshake request", "handshake reply", "kv_transfer_params", "kv_transfer_params read"):
            if name not in found["messages"]:
                self.x.gap(metadata, 0, what, f"message {name} cannot be found in the form that is known")
        for name in ("hash formula", "notification of a read", "notification of a heartbeat"):
            if name not in found["constants"]:
                self.x.gap(metadata, 0, what, f"the {name} cannot be found in the form that is known")

    def declared(self, m):
        """Take the structs of the handshake, and the constants that both sides must agree on."""
        for name in ("NixlAgentMetadata", "NixlHandshakePayload", "GET_META_MSG", "NIXL_CONNECTOR_VERSION"):
            ref = self.library.resolve(m, name)
            if ref.kind == "class":
                self.x.reach(ref, m, ref.definition.line, "class " + name)
            elif ref.kind == "value":
                self.x.constant(ref)
            else:
                self.x.gap(m, 0, name, ref.why())

    def text(self, m, node, name, value):
        self.x.profile["constants"][name] = {"module": m.path, "at": node.lineno, "value": value}

    def hash(self, m):
        """Take what the hash is computed from, each with its expression, and what it is of them."""
        for n in m.of(ast.Dict):
            function = enclosing_function(n)
            if function is not None and function.name == "compute_nixl_compatibility_hash":
                for key, value in zip(n.keys, n.values):
                    self.text(m, key, "hash of " + (plain_text(key) or text_of(key)), text_of(value))
        ref = self.library.resolve(self.library.load(OURS + ".config.utils"), "hash_factors")
        for n in each(*ref.definition.node.body) if ref.kind == "function" else []:
            if isinstance(n, ast.Return) and n.value is not None:
                self.text(ref.module, n, "hash formula", text_of(n.value))

    def handshake(self, scheduler, worker):
        for n in worker.of(ast.Call):
            names = encoded_tuple(n)
            if "GET_META_MSG" in names:
                self.x.sequence(worker, n, "handshake request", "array", names)
        for n in scheduler.of(ast.Call):
            if last_name(n.func) == "send_multipart" and isinstance(sole_argument(n), ast.Tuple):
                parts = [e.value if isinstance(e, ast.Subscript) else e for e in sole_argument(n).elts]
                self.x.sequence(scheduler, n, "handshake reply", "frames", [frame_name(e) for e in parts])

    def notifications(self, worker, pull):
        for m, variable, name in ((pull, "notif_id", "notification of a read"), (worker, "hb_msg", "notification of a heartbeat")):
            for n in m.of(ast.Assign):
                if variable in [dotted(t) for t, _ in bindings(n)]:  # the last is that of the read itself
                    self.text(m, n, name, text_of(n.value))

    def produced(self, m):
        """Take the keys that a prefill engine returns, and those that its scheduler adds."""
        for n in m.of(ast.Call):
            function = enclosing_function(n)
            if dotted(n.func) == "dict" and n.keywords and function is not None and function.name == "request_finished":
                keys = [{"name": k.arg, "at": k.lineno if hasattr(k, "lineno") else n.lineno} for k in n.keywords if k.arg]
                scheduler = self.library.load_whole(SCHEDULER)
                for s in scheduler.of(ast.Subscript) if scheduler else []:
                    if dotted(s.value) == "kv_transfer_params" and isinstance(s.ctx, ast.Store) and plain_text(s.slice):
                        keys.append({"name": s.slice.value, "at": 0, "optional": True})
                self.x.message(m, n, "kv_transfer_params", "map", keys)

    def consumed(self, m):
        """Take the keys that a decode engine reads; those that it reads with get have a default."""
        keys = {}
        for n in m.of(ast.Subscript, ast.Call):
            match n:
                case ast.Subscript(value=value, slice=index) if dotted(value) == "kv_transfer_params":
                    name, more = plain_text(index), {}
                case ast.Call(args=[index, *_]) if dotted(n.func) == "kv_transfer_params.get":
                    name, more = plain_text(index), {"optional": True}
                case _:
                    continue
            if name:
                keys.setdefault(name, {"name": name, **more, "at": n.lineno})
        if keys:
            first = min(keys.values(), key=lambda k: k["at"])
            self.x.profile["messages"]["kv_transfer_params read"] = {
                "encoding": "map", "module": m.path, "at": first["at"], "keys": list(keys.values()),
            }  # fmt: skip


# What makes a metric: the classes of prometheus_client, and the attributes by which the loggers of vLLM name them.
METRIC_CLASSES = {
    "Gauge": "gauge", "Counter": "counter", "Histogram": "histogram",
    "_gauge_cls": "gauge", "_counter_cls": "counter", "_histogram_cls": "histogram",
}  # fmt: skip


class Metrics:
    """A reader of the declarations of metrics, which have names, labels and buckets from variables."""

    def __init__(self, extractor):
        self.x, self.library = extractor, extractor.library
        self.variables = 0  # how many expressions were looked at
        self.followed = set()  # variables that are being followed, by their names

    def read(self, m):
        for n in m.of(ast.Call):
            kind = METRIC_CLASSES.get(last_name(n.func))
            if not kind:
                continue
            metric = {"kind": kind, "labels": self.texts(m, argument(n, "labelnames", 2)), "module": m.path, "at": n.lineno}
            if kind == "histogram":
                metric["buckets"] = self.buckets(m, argument(n, "buckets", None))
            for name in self.texts(m, argument(n, "name", 0)):
                if kind == "counter":  # prometheus_client adds it, once
                    name = name.removesuffix("_total") + "_total"
                self.x.profile["metrics"][name] = metric

    def texts(self, m, node):
        """The texts that an expression is: a text or a list of them, or two lists together, each once. What is known
        only when it runs is its source."""
        found = {}
        for value in self.follow(m, node):
            if isinstance(value, ast.BinOp):
                more = self.texts(m, value.left) + self.texts(m, value.right)
            elif isinstance(value, (ast.List, ast.Tuple)):
                more = [text for e in value.elts for text in self.texts(m, e)]
            else:
                try:
                    known = self.x.evaluate(m, value)
                    more = [] if known is None else [known if isinstance(known, str) else text_of(value)]
                except NotLiteral:
                    more = [text_of(value)]  # a variable is None until it is set
            found |= dict.fromkeys(more)
        return list(found)[:MAX_TEXTS]

    def follow(self, m, node):
        """Yield an expression; for a variable its values instead, as assignments of its function or a loop set it. The
        value of a parameter with the name labelnames is what the loggers pass. A variable that is made from itself is
        not followed once more."""
        if node is None:
            return
        name = dotted(node)
        self.variables += 1
        if not name or name in self.followed or self.variables > MAX_VARIABLES:
            yield node
            return
        self.followed.add(name)
        found, function = [], enclosing_function(node)
        while function is not None and not found:
            for at in each(*function.body):
                found += [v for target, v in bindings(at) if dotted(target) == name and v is not None]
                if isinstance(at, (*LOOPS, ast.comprehension)):
                    found += self.items(m, at.target, at.iter, name)
            function = enclosing_function(function)
        stats = self.library.load_whole(STATS)
        if not found and name == "labelnames" and stats:
            values = [v for at in stats.of(ast.Assign) for target, v in bindings(at) if dotted(target) == name]
            found = values[:1]
        yield from found or [node]
        self.followed.discard(name)

    def items(self, m, target, iterable, name):
        """What a loop over lists of tuples sets a variable to."""
        names = [dotted(e) for e in target.elts] if isinstance(target, (ast.Tuple, ast.List)) else []
        if name not in names:
            return []
        position, sequence = names.index(name), (ast.Tuple, ast.List)
        lists = [value.elts for value in self.follow(m, iterable) if isinstance(value, sequence)]
        items = [item.elts for elts in lists for item in elts if isinstance(item, sequence)]
        return [item[position] for item in items if position < len(item)]

    def buckets(self, m, node):
        """The bounds of a histogram: "0.3, 0.5". Bounds that depend on the configuration are the expression that
        computes them. It is "" for the bounds of prometheus_client."""
        bounds = ""
        for value in self.follow(m, node):
            try:
                bounds = number_list(self.x.evaluate(m, value)) or text_of(value)
            except NotLiteral:
                bounds = self.computed_buckets(m, value) if isinstance(value, ast.Call) else text_of(value)
        return bounds

    def computed_buckets(self, m, call):
        """The bounds that a function returns for the name of a family: what a dictionary of its module has under that
        name, else what it returns on the condition that it is this name."""
        ref, text = self.library.resolve(m, dotted(call.func)), text_of(call)
        family = plain_text(argument(call, "family", 0))
        if ref.kind != "function" or family is None or text in self.followed:
            return text
        self.followed.add(text)
        try:
            for n in ref.module.of(ast.Dict, ast.If):
                if isinstance(n, ast.Dict):
                    value = next((v for k, v in zip(n.keys, n.values) if plain_text(k) == family), None)
                    if value is not None:
                        return self.buckets(ref.module, value)
                elif enclosing_function(n) is ref.definition.node and compares_with(n.test, family):
                    returned = [s.value for s in n.body if isinstance(s, ast.Return) and s.value is not None]
                    if returned:
                        return text_of(returned[0])
        finally:
            self.followed.discard(text)
        return text


def compares_with(test, text):
    match test:
        case ast.Compare(ops=[ast.Eq()], comparators=[other]):
            return plain_text(other) == text
    return False


# --- The program ---


def limit():
    """Limit what the script can do: processor time, memory, and no file or connection beyond the three that it has. A
    system without one of these limits goes without it; vllm-vcr ends a script that takes too long."""
    import unicodedata  # noqa: F401  the parser needs it for "\N{…}", and no file can be opened any more

    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in (
        ("RLIMIT_CPU", CPU_SECONDS),
        ("RLIMIT_AS", MEMORY),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NOFILE", 3),
    ):
        try:
            resource.setrlimit(getattr(resource, what), (most, most))
        except (AttributeError, ValueError, OSError):
            pass


def send(message):
    print(json.dumps(message, ensure_ascii=False, separators=(",", ":")), flush=True)


def read_files(paths):
    send({"read": paths})
    files = json.loads(sys.stdin.buffer.readline())
    return {path: base64.b64decode(text) for path, text in files.items()}


def main():
    warnings.simplefilter("ignore")  # about escapes in the sources
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    limit()
    try:
        result = Extractor(read_files).run()
    except Failure as error:
        result = {"error": str(error)}
    except RecursionError:
        result = {"error": "an expression of the sources is nested too deeply"}
    except MemoryError:
        result = {"error": f"the sources need more than {MEMORY >> 20} MB of memory"}
    send(result)


if __name__ == "__main__":
    main()
