"""What is installed: the package, its metadata, its lazy facade and its command."""

import ast
import importlib
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path

import pytest
from lower_bounds import UNBOUNDED_EXTRAS, lower_bounds, requirements

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
EXTRAS = {
    "bench": ("bench", "ray"),
    "cli.py": ("cli",),
    "commands.py": ("cli",),
    "demo": ("demo", "ray"),
    "inspector": ("cli",),
    "replay.py": ("cli",),
    "testing": ("testing",),
}
"""What of omniwire/ may import more than the required dependencies: the extras that it needs."""
DISTRIBUTIONS = {
    module: {name.lower() for name in names} for module, names in packages_distributions().items()
}
"""What is installed: top-level modules, and the distributions that they are in."""


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


def test_the_metadata_name_everything_that_is_offered(dist: Path) -> None:
    (wheel,) = dist.glob("omniwire-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        assert archive.read(f"{folder}/licenses/LICENSE") == (CHECKOUT / "LICENSE").read_bytes()
    assert metadata["Name"] == "omniwire"
    assert metadata["Version"] == version("omniwire")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (CHECKOUT / "README.md").read_text()
    assert all(metadata[key] for key in ("Author", "Classifier", "Keywords", "Summary"))
    extras = {*requirements(), *UNBOUNDED_EXTRAS} - {""}
    assert set(metadata.get_all("Provides-Extra")) == extras
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(required) == sorted(requirements()[""])


def test_every_requirement_of_users_has_one_lower_bound() -> None:
    bounds = lower_bounds()
    assert {"torch", "msgpack", "ray"} <= bounds.keys()
    assert all(bounds.values())


def imported_by(path: Path) -> Iterator[str]:
    """The distributions that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [str(node.module)]
        else:
            continue
        for name in {module.partition(".")[0] for module in modules}:
            if name not in sys.stdlib_module_names and name != "omniwire":
                yield from DISTRIBUTIONS.get(name, {name})


def declared(*extras: str) -> set[str]:
    """The distributions that these extras ask for; "" is the package itself."""
    return {line.partition(">=")[0] for extra in extras for line in requirements()[extra]}


@pytest.mark.parametrize(
    "path",
    [
        path
        for folder in FOLDERS
        for path in sorted((CHECKOUT / folder).iterdir())
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    ],
    ids=lambda path: str(path.relative_to(CHECKOUT)),
)
def test_what_is_imported_is_declared(path: Path) -> None:
    """By the package itself, or by an extra of the part that imports it."""
    modules = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    imported = {name for module in modules for name in imported_by(module)}
    extras = EXTRAS.get(path.name, ()) if path.parent.name == "omniwire" else ()
    assert imported <= declared("", *extras)


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


def without_extras() -> str:
    """Code after which nothing can be imported that only extras ask for."""
    only_extras = lower_bounds().keys() - declared("")
    modules = [name for name, found in DISTRIBUTIONS.items() if only_extras & found]
    return f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"


class TestWithoutExtras:
    """In an interpreter that has the required dependencies and nothing of the extras."""

    def test_a_request_crosses_a_channel(self, tmp_path: Path) -> None:
        code = (
            "import torch\n"
            "import omniwire as ow\n"
            "import omniwire.integrations.huggingface, omniwire.testing\n"
            "here, there = ow.Channel.pair()\n"
            "output = ow.OmniOutput(multimodal_outputs={'image': torch.arange(6.0)})\n"
            "with here, there:\n"
            "    here.send(output)\n"
            "    assert there.recv(60) == output == ow.decode(ow.encode(output))\n"
            "omniwire.testing.assert_equal(output, output)\n"
            "print(ow.MultimodalOutputProcessor.__name__)"
        )
        printed = run_python("-c", without_extras() + code, cwd=tmp_path)
        assert printed == "MultimodalOutputProcessor\n"

    @pytest.mark.parametrize(
        "code",
        [
            "from omniwire.testing import RequestLifecycle",
            "from omniwire.testing import strategies",
        ],
    )
    def test_what_draws_names_the_extra(self, code: str, tmp_path: Path) -> None:
        catch = (
            f"try:\n    {code}\nexcept ModuleNotFoundError as error:\n    print(error.name, error)"
        )
        printed = run_python("-c", without_extras() + catch, cwd=tmp_path)
        assert printed.startswith("hypothesis ")
        assert printed.endswith(" hypothesis: pip install 'omniwire[testing]'\n")


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

    @pytest.mark.parametrize(
        ("arguments", "extra"),
        [
            ([], "cli"),
            (["bench"], "bench"),
            (["check", "bench"], "cli"),
            (["demo", "--save", "x"], "demo"),
            (["inspect", "x"], "cli"),
        ],
    )
    def test_without_click_one_line_names_the_extra(
        self,
        arguments: list[str],
        extra: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["omniwire", *arguments])
        monkeypatch.setitem(sys.modules, "click", None)
        monkeypatch.delitem(sys.modules, "omniwire.commands", raising=False)
        cli = importlib.import_module("omniwire.cli")
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert exit_.value.code == 2
        assert capsys.readouterr().err == (
            f"omniwire: the command line needs click: pip install 'omniwire[{extra}]'\n"
        )
