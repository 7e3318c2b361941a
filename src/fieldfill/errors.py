"""The exception for wrong input, with what is wrong, which value and what to do, and the warning beside it."""

__all__ = ["InputError", "InputWarning", "MissingPackage"]


class InputError(ValueError):
    """Bad user input. The command line prints its single line and exits with code 2."""


class InputWarning(UserWarning):
    """Part of the input is ignored or changed, and the result is not affected. The command line prints one line."""


class MissingPackage(InputError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: "
            f'pip install -c constraints.txt "fieldfill[{extra}]"'
        )
