"""_view.py: the library attn_view, which holds the command's own tables, and how tables are printed.
SPDX-License-Identifier: MIT
"""
import ctypes
import functools
import html
import json
import math

from . import _library


@functools.lru_cache(maxsize=None)
def load():
    names = ctypes.POINTER(ctypes.c_char_p)
    return _library.beside("libattn_view", "explain, check and show", (
        ("attn_view_explain", ctypes.c_void_p, ctypes.POINTER(_library.Desc), ctypes.POINTER(ctypes.c_int64), ctypes.c_int64,
         ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, names, names),
        ("attn_view_check", ctypes.c_void_p, ctypes.POINTER(_library.Desc), ctypes.POINTER(_library.View), ctypes.POINTER(ctypes.c_double)),
        ("attn_view_show", ctypes.c_void_p, ctypes.POINTER(_library.Desc), ctypes.POINTER(_library.View), ctypes.POINTER(ctypes.c_int64),
         ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int32), ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), names, names),
        ("attn_view_free", None, ctypes.c_void_p)))


def parse(pointer, failure=RuntimeError):
    """The object of a text that the library made, which is JSON or, after "!", the sentence why there is none."""
    if not pointer:
        raise MemoryError("no memory for the table")
    text = ctypes.string_at(pointer).decode()
    load().attn_view_free(pointer)
    if text.startswith("!"):
        raise failure(text[1:].partition("\n")[0])
    return json.loads(text)


def names(field, given, count):
    """Names of positions as the library takes them: an array of strings, or None."""
    if given is None:
        return None
    given = [str(name).encode() for name in given]
    if len(given) != count:
        raise ValueError("%s holds %d names; there are %d positions" % (field, len(given), count))
    return (ctypes.c_char_p * (count + 1))(*given)


def real(x):
    """A number of a JSON text, in which one that is not finite is a string."""
    return float(x)


def number(x, digits):
    x = real(x)
    return ("%.*f" % (digits, x)).replace("nan", "NaN") if math.isfinite(x) else repr(x).replace("nan", "NaN")


def text_table(titles, rows, left=()):
    """Columns under their titles, numbers flush right; those of `left`, by place, flush left."""
    widths = [max(len(row[n]) for row in [titles, *rows]) for n in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) if n in left else cell.rjust(width) for n, (cell, width) in enumerate(zip(row, widths))).rstrip()
             for row in [titles, *rows]]
    return "\n".join("  " + line for line in lines)


def html_table(caption, titles, rows, left=(), faint=()):
    """The same for a notebook; rows of `faint`, by place, in grey. No script, no style but its own."""
    def cells(kind, row):
        return "".join('<%s style="text-align:%s">%s</%s>' % (kind, "left" if n in left else "right", html.escape(cell), kind)
                       for n, cell in enumerate(row))

    body = "".join("<tr%s>%s</tr>" % (' style="color:#888"' if n in faint else "", cells("td", row)) for n, row in enumerate(rows))
    return '<table style="font-variant-numeric:tabular-nums"><caption style="text-align:left">%s</caption><thead><tr>%s</tr></thead>' \
           '<tbody>%s</tbody></table>' % (html.escape(caption).replace("\n", "<br>"), cells("th", titles), body)


def html_lines(lines):
    return "<p>%s</p>" % "<br>".join(html.escape(line) for line in lines)
