"""Every form of path, stable module names, and one-line errors that say what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slime.errors import PluginError
from slime.plugins.hooks import LOSS, ROLLOUT, load_hook
from slime.plugins.loading import load_file, load_object


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A method folder with a dash in its name, a sibling, and a relative import."""
    method = tmp_path / "my-method"
    method.mkdir()
    (method / "wording.py").write_text("GREETING = 'mine'\n")
    (method / "custom_loss.py").write_text(
        "import wording\n"
        "from .wording import GREETING\n\n\n"
        "def compute_loss(advantages):\n"
        "    return GREETING, wording.GREETING\n"
    )
    yield method
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_method"]:
        del sys.modules[name]


def refusal(path: object, names: tuple[str, ...] = ("compute_loss",)) -> str:
    with pytest.raises(PluginError) as caught:
        load_object(str(path), names, flag="--flag")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_file_with_and_without_a_name(folder):
    by_default = load_object(f"{folder}/custom_loss.py", ("compute_loss",))
    by_name = load_object(f"{folder}/custom_loss.py:compute_loss", ("other",))
    assert by_default is by_name
    assert by_default(0) == ("mine", "mine")


def test_module_with_colon_dot_and_default():
    import json.decoder

    assert load_object("json.decoder:JSONDecoder", ()) is json.decoder.JSONDecoder
    assert load_object("json.decoder.JSONDecoder", ()) is json.decoder.JSONDecoder
    assert load_object("json.decoder", ("JSONDecoder",)) is json.decoder.JSONDecoder


def test_a_folder_with_a_dash_is_a_package_under_its_own_name(folder):
    module = load_file(folder / "custom_loss.py")
    assert module.__name__ == "my_method.custom_loss"
    assert sys.modules["my_method.custom_loss"] is module


def test_our_own_method_folder_has_its_installed_name():
    root = Path(__file__).parents[2]
    assert load_file(root / "openclaw-rl/__init__.py").__name__.startswith("openclaw_rl")


def test_a_folder_named_like_somebody_elses_package_does_not_shadow_it(tmp_path):
    import json

    (tmp_path / "json").mkdir()
    (tmp_path / "json/custom_loss.py").write_text("def compute_loss(advantages): ...\n")
    module = load_file(tmp_path / "json/custom_loss.py")
    assert module.__name__.startswith("plugin_json_")
    assert sys.modules["json"] is json
    assert load_file(tmp_path / "json/custom_loss.py") is module


def test_two_folders_may_have_siblings_of_one_name(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prompts_of_mine.py").write_text(f"TEXT = {name!r}\n")
        (tmp_path / name / "custom_rm.py").write_text(
            "import prompts_of_mine\n\ndef reward():\n    return prompts_of_mine.TEXT\n"
        )
    rewards = [load_object(f"{tmp_path}/{name}/custom_rm.py", ("reward",)) for name in ("one", "two")]
    assert [reward() for reward in rewards] == ["one", "two"]
    assert str(tmp_path / "one") not in sys.path


def test_a_wrong_path_names_the_nearest_file(folder):
    message = refusal(f"{folder}/custom_los.py")
    assert message == f"--flag {folder}/custom_los.py: no such file; did you mean {folder}/custom_loss.py?"


def test_a_wrong_name_lists_what_is_there(folder):
    message = refusal(f"{folder}/custom_loss.py:compute_los")
    assert message.endswith("no compute_los in it; it has compute_loss; did you mean compute_loss?")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_package.losses:clipped", "no module 'no_such_package.losses'"),
        ("custom_loss", "no module 'custom_loss'; a file is written with its .py: folder/file.py"),
        ("a b", "write folder/file.py"),
        ("json:no_such", "no no_such in it"),
    ],
)
def test_wrong_module_paths(path, words):
    assert words in refusal(path)


def test_a_file_that_does_not_load_is_explained_by_its_line(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ny = 1 / 0\n")
    assert refusal(file) == f"--flag {file}: line 2: ZeroDivisionError: division by zero"
    file.write_text("def compute_loss(:\n")
    assert refusal(file).startswith(f"--flag {file}: line 1: ")
    file.write_text("import no_such_library\n")
    assert "line 1: ModuleNotFoundError: No module named 'no_such_library'" in refusal(file)


def test_a_parameter_that_is_not_on_offer_is_named_with_the_nearest(tmp_path):
    file = tmp_path / "custom_loss.py"
    file.write_text("def compute_loss(policy_logprob, advantages): ...\n")
    with pytest.raises(PluginError) as caught:
        load_hook(LOSS, str(file))
    message = str(caught.value)
    assert message.startswith(
        f"--custom-loss-function-path {file}: custom_loss.py:compute_loss asks for 'policy_logprob'"
    )
    assert message.endswith("did you mean policy_logprobs?")
    assert "advantages, " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("hook", "source", "words"),
    [
        (
            ROLLOUT,
            "def generate_rollout(store):\n    yield 1\n",
            "is a generator function; this hook takes async generator",
        ),
        (ROLLOUT, "async def generate_rollout(store): ...\n", "is an async function; this hook takes async generator"),
        (LOSS, "async def compute_loss(advantages): ...\n", "is an async function; this hook takes plain"),
        (LOSS, "compute_loss = 3\n", "3 is not a function"),
    ],
)
def test_the_wrong_kind_of_function_is_refused_at_start_up(tmp_path, hook, source, words):
    file = tmp_path / "hook.py"
    file.write_text(source)
    with pytest.raises(PluginError, match=words):
        load_hook(hook, str(file))


async def test_hooks_are_called_with_what_they_ask_for_and_nothing_else_is_read(tmp_path):
    file = tmp_path / "custom_rollout.py"
    file.write_text(
        "async def generate_rollout(store, /, config, *rest, owner='nobody', mine=7, **more):\n"
        "    yield store, config, owner, mine, rest, more\n"
    )
    call = load_hook(ROLLOUT, str(file))
    assert call.asks_for == {"store", "config", "owner"}

    class Lazy(dict):
        def __missing__(self, name):
            raise AssertionError(f"{name} was read")

    found = [item async for item in call(Lazy(store=1, config=2, owner="me"))]
    assert found == [(1, 2, "me", 7, (), {})]


def test_a_name_that_is_on_offer_but_not_in_this_run_is_said(tmp_path):
    file = tmp_path / "custom_loss.py"
    file.write_text("def compute_loss(teacher_logprobs): ...\n")
    with pytest.raises(PluginError, match="compute_loss asks for 'teacher_logprobs', which this run does not have"):
        load_hook(LOSS, str(file))({})
