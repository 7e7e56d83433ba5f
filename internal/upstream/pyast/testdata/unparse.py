"""Say of each Python file named on stdin what the ast module reads in it: a line of JSON each.

{"file": …, "error": …, "classes": [[name, line]…], "expressions": [[line, column, end line, end column, text]…],
 "parameters": [[name, line, text]…]}

Lines are counted from 1 and columns in bytes from 0. The expressions are those that are in no other; parameters are
those of functions.
"""

import ast
import json
import sys


def outermost(tree):
    """Yield the expressions that no other expression holds, but for those that the grammar has no node for."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Match):  # its subject may be a tuple without parentheses
            stack += node.cases
            continue
        if isinstance(node, ast.pattern) or isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
            continue
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                stack.append(child)
            else:
                yield child


def describe(path):
    out = {"file": path, "classes": [], "expressions": [], "parameters": []}
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError) as error:
        return out | {"error": f"{type(error).__name__}: {error}"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            out["classes"].append([node.name, node.lineno])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            out["parameters"].append([node.name, node.lineno, "(" + ast.unparse(node.args) + ")"])
    for node in outermost(tree):
        if isinstance(node, ast.Starred):
            node = node.value
        if any(isinstance(n, ast.JoinedStr) for n in ast.walk(node)) and sys.version_info[:2] != (3, 11):
            continue  # each release writes f-strings in its own way
        try:
            text = ast.unparse(node)
        except ValueError:
            continue
        position = [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset]
        out["expressions"].append(position + [text])
    return out


for line in sys.stdin:
    print(json.dumps(describe(line.rstrip("\n"))), flush=True)
