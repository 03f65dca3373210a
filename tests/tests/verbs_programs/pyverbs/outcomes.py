"""Runs the tests of pyverbs in a folder, and prints a line for each: its name, and ok, skipped or what failed."""

import importlib
import os
import sys
import unittest

folder, device = sys.argv[1:]
sys.path.insert(0, os.path.dirname(folder))
sys.path.insert(0, folder)
sys.argv = [sys.argv[0], "--dev", device, "--port", "1"]

from args_parser import parser

parser.parse_args()


class Outcomes(unittest.TestResult):
    """Prints each outcome once."""

    def tell(self, test, outcome):
        print(test.id().removeprefix("tests."), outcome, flush=True)

    def addSuccess(self, test):
        self.tell(test, "ok")

    def addSkip(self, test, reason):
        self.tell(test, f"skipped: {reason}")

    def addFailure(self, test, error):
        self.tell(test, f"failed: {error[1]}")

    def addError(self, test, error):
        self.tell(test, f"failed: {error[1]}")


# Those of other devices ask for their own providers.
others = ("test_mlx5", "test_efa")
modules = sorted(
    name.removesuffix(".py")
    for name in os.listdir(folder)
    if name.startswith("test_") and not name.startswith(others)
)
load = unittest.defaultTestLoader.loadTestsFromModule
for name in modules:
    load(importlib.import_module(f"tests.{name}")).run(Outcomes())
