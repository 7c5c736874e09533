"""Puts single mistakes into a C++ source, each behind a condition that a process may switch on: a statement
left out, a condition that holds always or never, an operand that is dropped, a border moved, a sum that is a
difference, a field forgotten, a result turned round. Needs libclang (single_mistakes_requirements.txt)."""
import pathlib
import re
import shlex
import subprocess

from clang.cindex import CursorKind, Index, TypeKind

FUNCTIONS = (CursorKind.CXX_METHOD, CursorKind.FUNCTION_DECL, CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR,
             CursorKind.FUNCTION_TEMPLATE, CursorKind.CONVERSION_FUNCTION)
MACROS = re.compile(r"(LOG|CHECK|DCHECK|VLOG|ABSL_|TANDEM_)")
BORDERS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SIGNS = {"+": "-", "-": "+", "*": "/", "/": "*"}
NUMBERS = (TypeKind.INT, TypeKind.UINT, TypeKind.LONG, TypeKind.ULONG, TypeKind.LONGLONG, TypeKind.ULONGLONG,
           TypeKind.FLOAT, TypeKind.DOUBLE)
FIELD = re.compile(r"(?<=[{,\s])\.(\w+) = ")
KEPT_ARGUMENTS = ("-I", "-D", "-std")


class Instrumented:
    """One source: its mistakes, and its text with them."""

    def __init__(self, root, name, command, first_id):
        self.name, self.path, self.first_id = name, root / name, first_id
        self.bytes = self.path.read_bytes()
        self.command = [word for word in shlex.split(command) if word != "-Werror"]
        self.mistakes = []    # {file, line, end, what}
        self.insertions = []  # (offset, closes, size, text, mistake)
        self._parse()
        self._add_fields()
        self.unfit = self._drop_unfit()

    def text_of(self, node):
        return self.bytes[node.extent.start.offset:node.extent.end.offset].decode()

    # ---- Finding ----

    def _parse(self):
        words, arguments = iter(self.command[1:]), []
        for word in words:
            if word in ("-isystem", "-include"):
                arguments += [word, next(words)]
            elif word.startswith(KEPT_ARGUMENTS):
                arguments.append(word)
        resources = subprocess.run(["clang++", "-print-resource-dir"], capture_output=True, text=True,
                                   check=True).stdout.strip()
        unit = Index.create().parse(str(self.path), args=[*arguments, "-resource-dir", resources], options=1)
        mine = [node for node in unit.cursor.get_children()
                if node.location.file and pathlib.Path(node.location.file.name) == self.path]
        self.macros = [(node.extent.start.offset, node.extent.end.offset) for node in mine
                       if node.kind == CursorKind.MACRO_INSTANTIATION]
        for node in mine:
            self._visit(node, result=None)

    def _usable(self, node):
        start, end = node.extent.start.offset, node.extent.end.offset
        at = node.extent.start.file
        return (at is not None and pathlib.Path(at.name) == self.path and end > start
                and not MACROS.match(self.text_of(node))
                and not any(first <= start < last for first, last in self.macros))

    def _visit(self, node, result):
        """`result` is the type that the function around it returns, if there is one."""
        if node.kind in FUNCTIONS:
            head = self.text_of(node).split("{")[0]
            if "constexpr" in head or "consteval" in head:
                return
            result = node.result_type.get_canonical().spelling
        if node.kind == CursorKind.LAMBDA_EXPR:
            result = "?"
        if node.kind == CursorKind.STATIC_ASSERT or (
                node.kind == CursorKind.VAR_DECL and "constexpr" in self.text_of(node).split("=")[0]):
            return
        if result is not None and self._usable(node):
            self._add(node, result)
        for child in node.get_children():
            self._visit(child, result)

    def _add(self, node, result):
        children = list(node.get_children())
        if node.kind == CursorKind.COMPOUND_STMT:
            for child in children:
                if child.kind.is_expression() and self._usable(child):
                    self._insert(child, "left out", "if (!{}) ", "")
        elif node.kind == CursorKind.IF_STMT:
            self._add_condition(children)
        elif node.kind == CursorKind.CONDITIONAL_OPERATOR and self._usable(children[0]):
            self._insert(children[0], "the other one", "({} != static_cast<bool>(", "))")
        elif node.kind == CursorKind.BINARY_OPERATOR and all(map(self._usable, children)):
            self._add_operator(node, *children)
        elif node.kind == CursorKind.RETURN_STMT and children and self._usable(children[0]):
            self._add_result(node, children[0], result)

    def _add_condition(self, children):
        for child in children:
            before = self.bytes[:child.extent.start.offset].rstrip()[-1:]
            if child.kind.is_expression() and before in (b"(", b";") and self._usable(child):
                self._insert(child, "never", "!{} && (", ")")
                self._insert(child, "always", "({} || static_cast<bool>(", "))")
                return

    def _add_operator(self, node, left, right):
        between = self.bytes[left.extent.end.offset:right.extent.start.offset].decode()
        operator = re.sub(r"//.*", "", between).strip()
        if operator == "&&":
            for operand in (left, right):
                self._insert(operand, "operand of && dropped", "({} || static_cast<bool>(", "))")
        elif operator == "||":
            for operand in (left, right):
                self._insert(operand, "operand of || dropped", "(!{} && static_cast<bool>(", "))")
        elif operator in ("==", "!="):
            self._insert(node, "turned round", "({} != (", "))")
        elif "//" not in self.text_of(node) and (
                operator in BORDERS or (operator in SIGNS and node.type.get_canonical().kind in NUMBERS)):
            other = (BORDERS | SIGNS)[operator]
            changed = f"{self.text_of(left)} {other} {self.text_of(right)}".replace("\n", " ")
            self._insert(node, f"{operator} is {other}", f"({{}} ? ({changed}) : (", "))")

    def _add_result(self, node, value, result):
        if result == "bool":
            self._insert(value, "turned round", "{} != static_cast<bool>(", ")")
        elif result.endswith("absl::Status") and "Ok" not in self.text_of(value):
            self._insert(value, "is OK", "{} ? absl::OkStatus() : (", ")")
        elif result.startswith("std::optional") and self.text_of(value) != "std::nullopt":
            self._insert(node, "is nullopt", "if ({}) return std::nullopt; else ", "")

    def _add_fields(self):
        text = self.bytes.decode()
        for found in FIELD.finditer(text):
            start = found.end()
            value = _value_at(text, start)
            if not value.startswith(("{", "[")) and len(value) <= 200 and text.isascii():
                flat = value.replace("\n", " ")
                self._insert_at(start, start + len(value), text.count("\n", 0, start) + 1,
                                f".{found.group(1)} forgotten: {flat[:80]}",
                                f"({{}} ? std::decay_t<decltype({flat})>{{{{}}}} : (", "))", 0.5)

    # ---- Writing ----

    def _insert(self, node, what, before, after):
        self._insert_at(node.extent.start.offset, node.extent.end.offset, node.extent.start.line,
                        f"{what}: {' '.join(self.text_of(node).split())[:90]}", before, after, 0)

    def _insert_at(self, start, end, line, what, before, after, outer):
        index = len(self.mistakes)
        lines = self.bytes[start:end].count(b"\n")
        self.mistakes.append({"file": self.name, "line": line, "end": line + lines, "what": what})
        size = end - start + outer
        call = f"SingleMistake({self.first_id + index})"
        self.insertions.append((start, False, -size, index, before.format(call), index))
        self.insertions.append((end, True, size, -index, after, index))

    def write(self, without):
        """Lines stay where they are."""
        out, at = ['#include "tools/dev/single_mistake.h"\n#line 1\n'], 0
        # At one place what ends closes before what begins opens; the outer one opens first and closes last.
        for offset, _, _, _, text, index in sorted(self.insertions,
                                                   key=lambda i: (i[0], not i[1], i[2], i[3])):
            if index not in without:
                out += [self.bytes[at:offset].decode(), text]
                at = offset
        out.append(self.bytes[at:].decode())
        self.path.write_text("".join(out))

    def _drop_unfit(self):
        """Those that do not compile where they stand."""
        words = self.command[:self.command.index("-o")] + self.command[self.command.index("-o") + 2:]
        without = set()
        while True:
            self.write(without)
            done = subprocess.run([*words, "-fsyntax-only", "-w", "-O0"], cwd=self.path.parent, text=True,
                                  capture_output=True)
            if done.returncode == 0:
                return without
            lines = {int(line) for line in
                     re.findall(re.escape(str(self.path)) + r":(\d+):\d+: error", done.stderr)}
            bad = {i for i, m in enumerate(self.mistakes) if any(m["line"] <= n <= m["end"] for n in lines)}
            if bad <= without:
                raise RuntimeError(f"{self.name} does not compile with its mistakes:\n{done.stderr[:2000]}")
            without |= bad


def _value_at(text, start):
    """The expression there, up to the comma or brace that ends it."""
    depth, quote, end = 0, None, start
    while end < len(text):
        c = text[end]
        if quote:
            if c == "\\":
                end += 1
            elif c == quote:
                quote = None
        elif c == '"' or (c == "'" and not text[end - 1].isdigit()):
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                break
            depth -= 1
        elif c == "," and depth == 0:
            break
        end += 1
    return text[start:end]
