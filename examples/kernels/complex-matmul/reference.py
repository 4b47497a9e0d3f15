"""What the kernels compute, in NumPy."""

import numpy as np


def _complex(re, im):
    return np.asarray(re, np.float32) + 1j * np.asarray(im, np.float32)


def complex_matmul(a_re_t, a_im_t, b_re, b_im):
    """The complex product."""
    c = _complex(a_re_t, a_im_t).T @ _complex(b_re, b_im)
    return c.real, c.imag


def complex_multiply(a_re, a_im, b_re, b_im):
    """The elementwise product."""
    c = _complex(a_re, a_im) * _complex(b_re, b_im)
    return c.real, c.imag
