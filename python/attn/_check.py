"""_check.py: somebody else's results beside the library's, as `attn check` has it.
SPDX-License-Identifier: MIT
"""
import ctypes
import json
from typing import Any, Dict, List, Optional, Tuple

from . import _describe, _library, _view

PARTS = ("out", "lse", "weights")


class Check:
    """What check() found: prints as a report, in a notebook too. data is the object that `attn check --json` prints.

    ok: whether all results agree; also bool(check). causes: the names of the known mistakes that give exactly those results.
    """

    def __init__(self, data: Dict[str, Any]) -> None:
        self.data = data

    @property
    def ok(self) -> bool:
        """Whether every result that was handed in agrees."""
        return all(self.data[part]["agree"] for part in PARTS if part in self.data)

    @property
    def causes(self) -> List[str]:
        """The known mistakes that explain the results, the likelier first; empty if they agree or no known mistake gives them."""
        return [cause["cause"] for cause in self.data["causes"]]

    def __bool__(self) -> bool:
        return self.ok

    def to_dict(self) -> Dict[str, Any]:
        """The object of `attn check --json`; a number that is not finite is a string in it."""
        return json.loads(json.dumps(self.data))

    def _lines(self):
        lines = []
        for part in PARTS:
            p = self.data.get(part)
            if p is None:
                continue
            lines.append("%s: %s, largest error %s, accepted %g * largest + %g * |want|" % (
                part, "agrees" if p["agree"] else "DIFFERENT", p["largest_error"], p["tolerance"]["absolute"], p["tolerance"]["relative"]))
            if not p["agree"]:
                lines.append("  %d of %d rows are wrong (%d elements), the first at batch %d, head %d, query %d" % (
                    p["wrong_rows"], p["rows"], p["wrong_elements"], *p["first_wrong_rows"][0]["at"][:3]))
            if p["hint"]:
                lines.append("  " + p["hint"])
        for n, cause in enumerate(self.data["causes"]):
            lines.append("%s %s: %s" % ("or:   " if n else "cause:", cause["cause"], cause["said"]))
        if not self.ok and not self.data["causes"]:
            lines.append("cause: none that is known; %d were tried" % self.data["causes_tried"])
        return lines

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _view.html_lines(self._lines())


def check(q: Any, k: Any, v: Any, out: Optional[Any] = None, *, lse: Optional[Any] = None, weights: Optional[Any] = None,
          tolerance: Optional[Tuple[float, float]] = None, **options: Any) -> Check:
    """Compares somebody else's results of a call with the library's, and names the known mistake that gives them.

    q, k, v and options are attention()'s: the call as it is meant. out, lse, weights: what another system gave for it, in attention()'s
    shapes, at least one of them; float32, float64, float16 or bfloat16. tolerance: (absolute, relative), accepted is |got - want| <=
    absolute * the largest |want| + relative * |want|; None is what the types promise.

    The causes that are tried (an inverted mask, causal from the other corner, a scale applied twice, heads grouped the other way, ...) are
    those of `attn check`, whose manual page lists them.

    >>> import attn, numpy as np
    >>> q, k, v = np.random.default_rng(4).standard_normal((3, 2, 4, 6, 8))
    >>> mask = np.tri(6, dtype=bool)
    >>> theirs = attn.attention(q, k, v, allow=~mask)           # somebody took True for "hidden"
    >>> found = attn.check(q, k, v, theirs, allow=mask)
    >>> bool(found), found.causes
    (False, ['inverted-mask'])
    >>> bool(attn.check(q, k, v, attn.attention(q, k, v, causal=True), allow=mask))
    True
    """
    c = _describe.describe(q, k, v, **options)
    rows = c.q.shape[:-1]
    shapes = {"out": rows + c.v.shape[-1:], "lse": rows, "weights": rows + c.k.shape[-2:-1]}
    want = (_library.View * 3)()
    for n, (name, value) in enumerate(zip(PARTS, (out, lse, weights))):
        if value is None:
            continue
        x = _describe.floats(name, value)
        if x.shape != shapes[name]:
            raise ValueError("%s has shape %s, and must have %s" % (name, x.shape, shapes[name]))
        c.keep.append(x)
        want[n] = _describe.view(x, missing=1 if name == "lse" else 0)
    if out is None and lse is None and weights is None:
        raise ValueError("out, lse and weights are None; at least one result is needed to compare with")
    c.result("out", shapes["out"], c.q.dtype)  # nothing is written to it
    _library.call(_library.lib.attn_check, ctypes.byref(c.desc))
    bound = None if tolerance is None else (ctypes.c_double * 2)(*tolerance)
    return Check(_view.parse(_view.load().attn_view_check(ctypes.byref(c.desc), want, bound)))
