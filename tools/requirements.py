"""Prints the requirements of pyproject.toml, one a line, so that `make setup` can install them before framefuse."""

import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(extra: str) -> list[str]:
    """The run-time requirements and those of `extra`."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


if __name__ == "__main__":
    print("\n".join(f"'{line}'" for line in requirements("dev")))
