"""What is installed: the package, its metadata, its lazy facade and its command."""

import importlib
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import omniwire
from omniwire import contracts, runtime, serialization

CHECKOUT = Path(__file__).parents[2]
FOLDERS = {
    "omniwire": "omniwire",
    "contracts": "omniwire/contracts",
    "runtime": "omniwire/runtime",
    "serialization": "omniwire/serialization",
}
"""The folders of the package and what they are published as."""


@pytest.fixture(scope="module")
def dist() -> Path:
    """The folder with the built wheel and sdist, which `make test` names."""
    if "OMNIWIRE_DIST" not in os.environ:
        pytest.skip("nothing was built: OMNIWIRE_DIST is not set, as it is by make test")
    return CHECKOUT / os.environ["OMNIWIRE_DIST"]


def run_python(*arguments: str, cwd: Path, safe_path: bool = True) -> str:
    """Run a new interpreter and return what it printed; it must succeed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    if safe_path:
        environment["PYTHONSAFEPATH"] = "1"
    result = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def files_below(folder: Path) -> set[str]:
    """Every file below a folder of the checkout, caches apart, relative to the folder."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        str(path)
        for path in paths
        if not any(part == "__pycache__" or part.startswith(".") for part in path.parts)
    }


def test_the_installed_wheel_is_what_the_tests_import(dist: Path) -> None:
    assert dist.is_dir()
    folder = Path(omniwire.__file__).parent
    assert folder.parent.name == "site-packages"
    assert {Path(module.__file__).parent.parent for module in (contracts, runtime)} == {folder}


def test_the_wheel_holds_every_file_of_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("omniwire-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        built = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{package}/{name}"
        for folder, package in FOLDERS.items()
        for name in files_below(CHECKOUT / folder)
    }
    assert built == expected


def test_the_sdist_holds_everything_that_is_needed_to_test_it(dist: Path) -> None:
    (sdist,) = dist.glob("omniwire-*.tar.gz")
    with tarfile.open(sdist) as archive:
        built = {member.name.partition("/")[2] for member in archive if member.isfile()}
    for folder in (*FOLDERS, "tests", "docs", "benchmarks", ".ci"):
        assert {f"{folder}/{name}" for name in files_below(CHECKOUT / folder)} <= built
    assert {
        "CHANGELOG.md",
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "README.md",
        "conftest.py",
        "constraints.txt",
        "pyproject.toml",
    } <= built


@pytest.mark.parametrize("name", ["contracts", "runtime", "serialization"])
def test_no_folder_is_importable_as_a_top_level_module(name: str, tmp_path: Path) -> None:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    assert run_python("-c", code, cwd=tmp_path).strip() == "None"


def test_py_typed_is_installed() -> None:
    assert (Path(omniwire.__file__).parent / "py.typed").is_file()


def test_importing_omniwire_does_not_import_torch(tmp_path: Path) -> None:
    code = "import sys, omniwire; omniwire.__version__; print('torch' in sys.modules)"
    assert run_python("-c", code, cwd=tmp_path).strip() == "False"


def test_importing_hypothesis_does_not_import_torch(tmp_path: Path) -> None:
    code = "import sys, hypothesis; print('omniwire' in sys.modules, 'torch' in sys.modules)"
    assert run_python("-c", code, cwd=tmp_path).strip() == "True False"


def test_hypothesis_finds_the_strategies_by_entry_point() -> None:
    (entry_point,) = entry_points(group="hypothesis", name="omniwire")
    assert callable(entry_point.load())


def test_the_facade_has_every_name_of_the_three_packages() -> None:
    for subpackage in (contracts, runtime, serialization):
        for name in subpackage.__all__:
            assert getattr(omniwire, name) is getattr(subpackage, name)
            assert name in dir(omniwire)


def test_no_two_packages_share_a_public_name() -> None:
    names = [*contracts.__all__, *runtime.__all__, *serialization.__all__]
    assert sorted(names) == sorted(set(names))


def test_a_star_import_brings_exactly_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from omniwire import *", namespace)
    del namespace["__builtins__"]
    assert set(namespace) == {*contracts.__all__, *runtime.__all__, *serialization.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'omniwire' has no attribute 'no_such_name'"):
        omniwire.no_such_name  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec("from omniwire import no_such_name")


def test_the_package_works_at_the_top_of_a_checkout() -> None:
    """Where the folder omniwire/, which lacks the other three, comes first on the path."""
    code = "import omniwire; print(omniwire.__file__, omniwire.Problem.__module__)"
    printed = run_python("-c", code, cwd=CHECKOUT, safe_path=False).split()
    assert printed == [str(CHECKOUT / "omniwire/__init__.py"), "omniwire.contracts.errors"]


def test_every_module_can_be_imported_first(tmp_path: Path) -> None:
    """No package depends on another having been imported before it."""
    for name in ("contracts", "serialization", "runtime", "testing"):
        run_python("-c", f"import omniwire.{name}", cwd=tmp_path)


class TestCommand:
    def test_the_module_prints_the_version(self, tmp_path: Path) -> None:
        printed = run_python("-m", "omniwire", "--version", cwd=tmp_path)
        assert printed == f"omniwire {version('omniwire')}\n"

    def test_the_script_does_the_same(self, tmp_path: Path) -> None:
        script = Path(sys.executable).with_name("omniwire")
        result = subprocess.run(
            [script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert result.stdout == f"omniwire {version('omniwire')}\n"

    def test_help_lists_the_demo_without_importing_torch(self, tmp_path: Path) -> None:
        code = (
            "import sys\n"
            "from omniwire.cli import main\n"
            "sys.argv = ['omniwire', '--help']\n"
            "try:\n"
            "    main()\n"
            "finally:\n"
            "    print('torch' in sys.modules)"
        )
        *help_text, torch_imported = run_python("-c", code, cwd=tmp_path).splitlines()
        assert any(line.split()[:1] == ["demo"] for line in help_text)
        assert torch_imported == "False"

    def test_without_click_one_line_names_the_extra(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "click", None)
        monkeypatch.delitem(sys.modules, "omniwire.commands", raising=False)
        cli = importlib.import_module("omniwire.cli")
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert exit_.value.code == 2
        assert capsys.readouterr().err == (
            "omniwire: the command line needs click: pip install 'omniwire[cli]'\n"
        )
