"""Buffers laid out element by element: offsets, strides of any sign, fills, sizes beyond 2^31 elements.
SPDX-License-Identifier: MIT
"""
import mmap

import numpy as np

NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named by Python from 3.13 on; this is Linux's number


def reserve(elements, dtype):
    """Zeros of which only the pages in use cost memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return np.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype)


def aligned(elements, dtype, boundary):
    """Memory that starts at a multiple of `boundary` bytes."""
    room = np.empty(elements * dtype.itemsize + boundary, np.uint8)
    start = -room.__array_interface__["data"][0] % boundary
    return room[start:start + elements * dtype.itemsize].view(dtype)


def view(flat, shape, strides, offset):
    """Element (i, ...) lies at offset + sum(i * stride), all in elements."""
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [step * flat.itemsize for step in strides])


class Untouched:
    """Remembers a buffer, to assert later that only the elements of a view in it have changed."""

    def __init__(self, flat, shape, strides, offset):
        places = offset + sum(np.arange(n).reshape(-1, *[1] * (len(shape) - 1 - axis)) * step
                              for axis, (n, step) in enumerate(zip(shape, strides)))
        self.flat, self.rest = flat, np.ones(flat.size, bool)
        self.rest[places] = False
        self.before = flat[self.rest].tobytes()

    def check(self):
        assert self.flat[self.rest].tobytes() == self.before, "an element outside the output was written"
