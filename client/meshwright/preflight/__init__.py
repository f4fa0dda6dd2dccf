"""Preflight: many hosts checked in one JAX job before a training job starts; the slow or faulty host is named."""

from meshwright.preflight.check import check_hosts, wait_for_verdict
from meshwright.preflight.report import HostFinding, HostReport, PreflightReport

__all__ = ["HostFinding", "HostReport", "PreflightReport", "check_hosts", "wait_for_verdict"]
