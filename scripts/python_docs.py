#!/usr/bin/env python3
"""python_docs.py: writes docs/python.md, the reference of the Python package, from its docstrings and signatures.
SPDX-License-Identifier: MIT

usage: scripts/python_docs.py [--check]

--check compares and writes nothing; it exits with 1 where the file is not what would be written. The sources are read, not imported,
so that no framework needs to be there.
"""
import ast
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = os.path.join(ROOT, "python", "attn")
TARGET = os.path.join(ROOT, "docs", "python.md")
MODULES = ("torch", "hf", "onnx")
ITEM = re.compile(r"([a-z_]+(?:, [a-z_]+)*): ")


def read(name):
    with open(os.path.join(PACKAGE, name + ".py"), encoding="utf-8") as file:
        return ast.parse(file.read())


def public(tree):
    """__all__ of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def find(tree, name, seen=()):
    """The definition of a name, here or in the module of the package that it is imported from."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module and node.module not in seen:
            if any((alias.asname or alias.name) == name for alias in node.names):
                return find(read(node.module), name, (*seen, node.module))
    return None


def markdown(doc, first=None):
    """A docstring: examples in fences, "name: what it is" as items of a list."""
    lines, out, fenced = doc.strip().splitlines(), [], False
    lines = [line for line in lines if "SPDX-License-Identifier" not in line]
    if first is not None:
        lines[0] = first
    for n, line in enumerate(lines):
        if line.lstrip().startswith(">>> ") and not fenced:
            out.append("```python")
            fenced = True
        if fenced and not line.strip():
            out.append("```")
            fenced = False
        before = lines[n - 1].rstrip() if n else ""
        item = ITEM.match(line) if not fenced and (not before or before[-1] in ".:;") else None
        if item:
            names = ", ".join("`%s`" % name for name in item.group(1).split(", "))
            starts = n and not (out and out[-1].startswith(("- ", "  ")))
            out += [""] * bool(starts and out and out[-1]) + ["- %s: %s" % (names, line[item.end():])]
        elif not fenced and out and out[-1].startswith(("- ", "  ")) and line.strip():
            out.append("  " + line.strip())
        else:
            out.append(line if fenced else re.sub(r"^ {4}(?=\S)", "", line))
    return "\n".join(out + ["```"] * fenced)


def signature(name, node, method=False):
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, )?", "", arguments) if method else arguments
    returns = " -> " + ast.unparse(node.returns) if node.returns else ""
    text = "%s(%s)%s" % (name, arguments, returns)
    if len(text) > 110:  # an argument a line
        text = re.sub(r", (?=[a-z_*]+(?::|$|,| ?=))", ",\n    ", arguments)
        text = "%s(\n    %s\n)%s" % (name, text, returns)
    return "```python\n%s\n```" % text


def section(prefix, name, node):
    said = ["### %s%s" % (prefix, name), ""]
    if isinstance(node, ast.FunctionDef):
        return said + [signature(prefix + name, node), "", markdown(ast.get_docstring(node) or ""), ""]
    said += [markdown(ast.get_docstring(node) or ""), ""]
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__call__"):
            doc = ast.get_docstring(member)
            if doc and not doc.startswith("The class's text"):
                kinds = {getattr(d, "id", "") for d in member.decorator_list}
                owner = prefix + name if "classmethod" in kinds else name.lower()
                shown = owner if member.name == "__call__" else owner + "." + member.name
                said += ["`%s`" % shown if "property" in kinds else signature(shown, member, method=True), "", markdown(doc), ""]
    return said


def title(doc):
    """The first line of a module's docstring, without the name before it."""
    text = doc.splitlines()[0].partition(": ")[2]
    return text[:1].upper() + text[1:]


def build():
    package = read("__init__")
    doc = ast.get_docstring(package)
    out = ["<!-- python.md: written by scripts/python_docs.py from the docstrings; change those. -->", "", "# The Python package", "",
           markdown(doc, first=title(doc)), ""]
    out += ["Optional parts, imported by name: " + ", ".join("[`attn.%s`](#attn%s)" % (m, m) for m in MODULES) + ".", "", "## attn", ""]
    for name in public(package):
        node = find(package, name)
        if node is not None:
            out += section("attn.", name, node)
    for module in MODULES:
        tree = read(module)
        doc = ast.get_docstring(tree)
        out += ["## attn.%s" % module, "", markdown(doc, first=title(doc)), ""]
        for name in public(tree):
            node = find(tree, name)
            if node is not None and ast.get_docstring(node):
                out += section("attn.%s." % module, name, node)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in "\n".join(out).split("\n"))).rstrip() + "\n"


def main():
    text = build()
    if "--check" not in sys.argv[1:]:
        with open(TARGET, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with open(TARGET, encoding="utf-8") as file:
        if file.read() != text:
            sys.exit("docs/python.md is not what the docstrings say: run scripts/python_docs.py")


if __name__ == "__main__":
    main()
