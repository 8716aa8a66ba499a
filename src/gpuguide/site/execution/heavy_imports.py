"""Imported by the process that kernels are forked from: has what pages commonly import ready."""

from gpuguide.site.execution import kernels

kernels.import_heavy()
