"""What `import sanderling` shows: public names and nothing else."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import sanderling


def shown(module: ModuleType) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["sanderling", "sanderling.types", "sanderling.torch", "sanderling.torch.models"])
def test_a_module_shows_only_its_public_names(name: str) -> None:
    if "torch" in name:
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    assert shown(module) == {entry for entry in module.__all__ if not entry.startswith("_")}
    for entry in module.__all__:
        assert getattr(module, entry) is not None


def test_an_import_brings_no_module_of_others() -> None:
    program = (
        "import sanderling, types; "
        "print([name for name, value in vars(sanderling).items() "
        "if isinstance(value, types.ModuleType) and not name.startswith('_')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['types']")


def test_names_are_of_the_package() -> None:
    for name in shown(sanderling):
        entry = getattr(sanderling, name)
        if isinstance(entry, type):
            assert entry.__module__.startswith("sanderling"), name
