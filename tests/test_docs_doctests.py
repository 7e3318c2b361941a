"""The examples in docstrings give what they show."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import fieldfill

MODULES = ["fieldfill", *(module.name for module in pkgutil.walk_packages(fieldfill.__path__, "fieldfill."))]
MODULES.remove("fieldfill.__main__")
EXAMPLES = [test for name in MODULES for test in doctest.DocTestFinder().find(import_module(name)) if test.examples]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_in_docstrings_run(example: doctest.DocTest) -> None:
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_the_names_that_people_begin_with_have_examples() -> None:
    shown = {example.name.rpartition(".")[2] for example in EXAMPLES}
    assert shown >= {"fieldfill", "Filler", "check", "hide", "score", "LinearTime", "BlockMask", "MaskSwap"}
