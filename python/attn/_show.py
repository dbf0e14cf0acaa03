"""_show.py: weights as pictures and as a page to click through, as `attn show` draws them.
SPDX-License-Identifier: MIT
"""
import ctypes
import html
import os
import tempfile
from typing import Any, Optional, Sequence, Union

from . import _describe, _library, _view

_KINDS = (".png", ".svg", ".html")


class Page:
    """The page that show() makes: html is its text, which needs nothing else; a notebook shows it; save(path) writes it."""

    def __init__(self, text: str) -> None:
        self.html = text

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the page to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)

    def __repr__(self) -> str:
        return "<attn.Page of %d bytes: a notebook shows it, save(path) writes it>" % len(self.html)

    def _repr_html_(self) -> str:
        # a frame of its own: the page's style and script touch nothing of the notebook's
        return '<iframe sandbox="allow-scripts" style="width:100%%;height:44em;border:0" srcdoc="%s"></iframe>' % html.escape(self.html)


def show(q: Any = None, k: Any = None, v: Optional[Any] = None, *, weights: Optional[Any] = None, entry: int = 0,
         head: Optional[int] = None, tokens: Optional[Sequence[str]] = None, query_tokens: Optional[Sequence[str]] = None,
         log: bool = False, largest: bool = False, name: str = "attention",
         path: Union[None, str, "os.PathLike[str]"] = None, **options: Any) -> Optional[Page]:
    """Draws the weights of attention(q, k, v, **options): a page to click through, or a picture in a file.

    q is (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), or of rank 3 or 2; v (batch, kv_heads, keys, value_dim) is for what
    the page says of values, and may be left out. Or weights, in place of them and options: (batch, heads, queries, keys), or fewer axes
    from the left, as another system gave them. entry: the batch entry. head: only that one; None = all. tokens, query_tokens: names of
    the keys and queries (the keys' where there are as many). log: colours count powers of ten. largest: a cell that stands for many
    places shows the largest weight, not the mean. name: for the title.

    path: a .png, .svg or .html to write. None: a Page is returned, which a notebook shows.

    >>> import attn, numpy as np
    >>> q, k = np.random.default_rng(6).standard_normal((2, 4, 12, 8))
    >>> page = attn.show(q, k, causal=True, tokens=["token %d" % n for n in range(12)])
    >>> page.html.startswith("<!DOCTYPE html>"), "token 11" in page.html
    (True, True)
    """
    c = None
    if (weights is None) == (q is None) or (q is None) != (k is None) or (v is not None and q is None):
        raise ValueError("q and k go together, or weights in place of both")
    if weights is None:
        c = _describe.describe(q, k, k[..., :0] if v is None else v, **options)
        c.result("out", c.q.shape[:-1] + c.v.shape[-1:], c.q.dtype)  # nothing is written to it
        _library.call(_library.lib.attn_check, ctypes.byref(c.desc))
        desc, stored, size = ctypes.byref(c.desc), None, c.shape
    else:
        if options:
            raise ValueError("%s goes with q and k, not with weights" % next(iter(options)))
        x = _describe.floats("weights", weights)
        if not 2 <= len(x.shape) <= 4:
            raise ValueError("weights has %d axes, and must have 2 to 4: (batch, heads, queries, keys)" % len(x.shape))
        desc, stored, size = None, ctypes.byref(_describe.view(x)), (1,) * (4 - len(x.shape)) + x.shape
    for what, at, count in (("entry", entry, size[0]), ("head", 0 if head is None else head, size[1])):
        if not 0 <= _describe.integer(what, at) < count:
            raise ValueError("%s is %d; there are %d, from 0 on" % (what, at, count))
    if 0 in size:
        raise ValueError("there is nothing to show: (batch, heads, queries, keys) is %s" % (size,))
    key_names = _view.names("tokens", tokens, size[3])
    query_names = _view.names("query_tokens", query_tokens, size[2]) or (key_names if size[2] == size[3] else None)

    def draw(to, kind):
        paths = (ctypes.c_char_p * 3)(*(os.fsencode(to) if kind == one else None for one in _KINDS))
        _view.parse(_view.load().attn_view_show(
            desc, stored, (ctypes.c_int64 * 4)(*size), (ctypes.c_int64 * 2)(entry, -1 if head is None else head),
            (ctypes.c_int32 * 2)(bool(log), bool(largest)), name.encode(), paths, key_names, query_names), OSError)

    if path is not None:
        kind = os.path.splitext(os.fspath(path))[1].lower()
        if kind not in _KINDS:
            raise ValueError("path is %r; it must end in .png, .svg or .html" % os.fspath(path))
        draw(path, kind)
        return None
    with tempfile.TemporaryDirectory() as folder:
        draw(os.path.join(folder, "page.html"), ".html")
        with open(os.path.join(folder, "page.html"), encoding="utf-8") as file:
            return Page(file.read())
