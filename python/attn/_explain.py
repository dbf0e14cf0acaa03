"""_explain.py: one row of attention with every number of it, as `attn explain` has it.
SPDX-License-Identifier: MIT
"""
import ctypes
import json
from typing import Any, Dict, Optional, Sequence

import numpy as np

from . import _describe, _library, _view

_SORTS = {"key": 0, "weight": 1, "score": 2, "share": 3}
_STAGES = {None: 0, "weight": 1, "scaled": 2, "capped": 3, "biased": 4}
_TITLES = {"dot": "q.k", "less_max": "s-max", "value_size": "|v|", "contribution_size": "w|v|"}
_ADDS = ("exp", "weight", "share")


class Explanation:
    """One row of attention: prints as a table, in a notebook too. data is the object that `attn explain --json` prints."""

    def __init__(self, data: Dict[str, Any]) -> None:
        self.data = data

    def to_dict(self) -> Dict[str, Any]:
        """The object of `attn explain --json`; a number that is not finite is a string in it: "inf", "-inf", "nan"."""
        return json.loads(json.dumps(self.data))

    def to_numpy(self) -> np.ndarray:
        """The keys as a structured array: key, seen, and a column of float64 for every number of a key, contribution included."""
        keys = self.data["keys"]
        columns = [name for name in (keys[0] if keys else ()) if name not in ("key", "token", "seen", "hidden_by", "contribution")]
        kinds = [("key", np.int64), ("seen", np.bool_)] + [(name, np.float64) for name in columns]
        if keys and "contribution" in keys[0]:
            kinds.append(("contribution", np.float64, (len(keys[0]["contribution"]),)))
        table = np.empty(len(keys), kinds)
        for name in table.dtype.names:
            read = (lambda x: [_view.real(c) for c in x]) if name == "contribution" else _view.real if name in columns else (lambda x: x)
            table[name] = [read(key[name]) for key in keys]
        return table

    def _columns(self):
        """What is worth showing: every number of a key but those that this call has no use for."""
        data = self.data
        absent = {"capped": data["softcap"] is None, "bias": not data["bias"], "alibi": data["alibi_slope"] is None,
                  "score": data["softcap"] is None and not data["bias"] and data["alibi_slope"] is None}
        first = data["keys"][0] if data["keys"] else {}
        return [name for name in first
                if name not in ("key", "token", "seen", "hidden_by", "contribution", "contribution_size") and not absent.get(name)]

    def _table(self, digits=3):
        data, columns = self.data, self._columns()
        named = any(key["token"] is not None for key in data["keys"])
        titles = ["key"] + ["token"] * named + ["seen"] + [_TITLES.get(name, name) for name in columns]
        rows = []
        for key in data["keys"]:
            shown = {name: "-" if not key["seen"] and name in ("score", "less_max", "exp", "share") else _view.number(key[name], digits)
                     for name in columns}
            if not key["seen"] and "weight" in shown:
                shown["weight"] = "0"
            rows.append([str(key["key"])] + [key["token"] or ""] * named + ["yes" if key["seen"] else "no: " + ", ".join(key["hidden_by"])]
                        + list(shown.values()))
        left = (1, 2) if named else (1,)
        return titles, rows, left, [n for n, key in enumerate(data["keys"]) if not key["seen"]]

    def _said(self, digits=3):
        """The lines around the table: before it and after it."""
        d = self.data
        first = "Query %d%s of head %d%s%s, %s" % (
            d["query"], " (%s)" % d["token"] if d["token"] is not None else "", d["head"],
            " of batch entry %d" % d["batch"] if d["sizes"]["batch"] > 1 else "",
            ", which reads key head %d" % d["kv_head"] if d["kv_head"] != d["head"] else "", d["dtype"])
        masks = [said for said, given in (("causal", d["causal"]), ("window %s" % (d["window"],), d["window"]),
                                          ("a mask, %s" % d["mask"], d["mask"]), ("a bias", d["bias"])) if given]
        before = [first, "scale     %s, %s" % (_view.number(d["scale"], digits), d["scale_from"]),
                  "masks     " + (", ".join(masks) or "none")]
        if d["position"]["align"] != "not needed":
            before.append("position  %s: the query stands at place %d" % (d["position"]["align"], d["position"]["position"]))
        after = []
        if d["left_out"]:
            after.append("left out  %d keys" % d["left_out"])
        if "lse" in d:
            if d["sink"] is not None:
                after.append("sink      score %s takes weight %s" % tuple(
                    _view.number(d["sink"][name], digits) for name in ("score", "weight")))
            after += ["softmax   max %s, sum %s, lse %s" % tuple(_view.number(d[name], digits) for name in ("max", "sum", "lse")),
                      "entropy   %s nats: as spread out as %s keys of equal weight" % tuple(
                          _view.number(d[name], digits) for name in ("entropy", "effective_keys"))]
        if "output" in d:
            after.append("output    " + ", ".join(_view.number(x, digits) for x in d["output"][:16]) + (", ..." * (len(d["output"]) > 16)))
        for one in d["check"]:
            after.append("check     %s kernel in %s: %s" % (one["kernel"], one["dtype"], "ok" if one["ok"] else "DIFFERENT"))
        if "why" in d:
            after.append("key %d     q.k = " % d["why"]["key"] + " + ".join(
                "%s * %s" % (_view.number(t["q"], digits), _view.number(t["k"], digits)) for t in d["why"]["terms"]))
        return before, after + [d["note"][0].upper() + d["note"][1:] + "."]

    def __str__(self) -> str:
        before, after = self._said()
        titles, rows, left, _ = self._table()
        return "\n".join([before[0], *("  " + line for line in before[1:]), "", _view.text_table(titles, rows, left), "",
                          *("  " + line for line in after)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        before, after = self._said()
        titles, rows, left, faint = self._table()
        return _view.html_table("\n".join(before), titles, rows, left, faint) + _view.html_lines(after)


def place(c, entry, head, row):
    """(batch entry, head, query): said, or the only one there is."""
    found = []
    for name, said, count in (("entry", entry, c.shape[0]), ("head", head, c.shape[1]), ("row", row, c.shape[2])):
        if said is None and count != 1:
            raise ValueError("%s is not said: there are %d" % (name, count))
        at = _describe.integer(name, said or 0)
        if not 0 <= at < count:
            raise ValueError("%s is %d; there are %d, from 0 on" % (name, at, count))
        found.append(at)
    return found


def explain(q: Any, k: Any, v: Any, *, entry: Optional[int] = None, head: Optional[int] = None, row: Optional[int] = None,
            top: Optional[int] = None, sort: str = "key", stage: Optional[str] = None, why: Optional[int] = None,
            tokens: Optional[Sequence[str]] = None, query_tokens: Optional[Sequence[str]] = None, **options: Any) -> Explanation:
    """One row of attention with every number of it: scores, who is hidden and why, weights, output, and a check of the kernels.

    q, k, v and options are attention()'s. entry, head, row: which batch entry, query head and query; needed where there are several.
    tokens, query_tokens: names of the keys and queries. top: only so many keys, the heaviest. sort: "key", "weight", "score" or "share".
    stage: no further than "scaled", "capped", "biased" or "weight". why: a key to write out, term by term.

    The result prints as a table, is one in a notebook, and has to_dict(), the object that `attn explain --json` prints, and to_numpy().
    Weights tell where values were read, not why a model decided.

    >>> import attn, numpy as np
    >>> q, k = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> print(attn.explain(q, k, 10 * k, allow=[True, False]))
    Query 0 of head 0, f64
      scale     0.707, 1 / sqrt(dim) by default
      masks     a mask, true = may be seen
    <BLANKLINE>
      key  seen        q.k  scaled  s-max    exp  weight     |v|  share
        0  yes       1.000   0.707  0.000  1.000   1.000  10.000  1.000
        1  no: mask  0.000   0.000      -      -       0  10.000      -
    <BLANKLINE>
      softmax   max 0.707, sum 1.000, lse 0.707
      entropy   0.000 nats: as spread out as 1.000 keys of equal weight
      output    10.000, 0.000
      check     ... kernel in f64: ok
      check     ... kernel in f64: ok
      Weights tell where values were read, not why a model decided.
    >>> attn.explain(q, k, 10 * k).to_numpy()["weight"].round(2).tolist()
    [0.67, 0.33]
    """
    c = _describe.describe(q, k, v, **options)
    for name, said, allowed in (("sort", sort, _SORTS), ("stage", stage, _STAGES)):
        if said not in allowed:
            raise ValueError("%s is %r; it must be one of %s" % (name, said, ", ".join(map(str, allowed))))
    at = place(c, entry, head, row)
    keys, queries = c.shape[3], c.shape[2]
    why = -1 if why is None else _describe.integer("why", why)
    if why >= keys or why < -1:
        raise ValueError("why is %d; there are %d keys, from 0 on" % (why, keys))
    key_names = _view.names("tokens", tokens, keys)
    query_names = _view.names("query_tokens", query_tokens, queries) or (key_names if queries == keys else None)
    c.result("out", c.q.shape[:-1] + c.v.shape[-1:], c.q.dtype)  # nothing is written to it
    _library.call(_library.lib.attn_check, ctypes.byref(c.desc))
    text = _view.load().attn_view_explain(ctypes.byref(c.desc), (ctypes.c_int64 * 3)(*at), _describe.integer("top", top or 0), why,
                                          _SORTS[sort], _STAGES[stage], key_names, query_names)
    return Explanation(_view.parse(text))
