"""Configurations as text: bombs, tags, aliases, depth and noise, in a run's folder and on the command line."""

import string

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bad_values import TEXTS
from outcomes import cases, ends_well, tried
from torchmcl._utils import plain_yaml
from torchmcl.serialization import model_files

pytestmark = pytest.mark.slow

BOMB = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
TEXT = [
    BOMB,
    BOMB + "members: *a11\n",
    "a: &a\n  <<: *a\n",
    "&a [*a]",
    "[" * 100_000,
    "{a: " * 5000,
    "- " * 5000,
    "members: " + "9" * 100_000,
    "when: 2020-99-99",
    "a: !!float x",
    "a: !!int ''",
    "a: !!timestamp x",
    "a: !!binary '%'",
    "a: !!python/object/apply:os.system ['true']",
    "a: !!python/name:os.system",
    "!!python/module:os",
    "? [a, b]\n: c",
    "? {a: b}\n: c",
    "a: b: c",
    "a: |\n b\n\tc",
    "%YAML 9.9\n---\na: 1",
    "--- a\n--- b",
    "a: 1\na: 2",
    "a: .nan",
    "\x00",
    "\ufeffa: 1",
    "a: 190:20:30:59:59",
    "=: =",
    "<<: 1",
    "a: !<tag:yaml.org,2002:set> {b}",
    "1: 2",
    "#",
    "x" * 2_000_000,
]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS.filter(lambda text: "\udcff" not in text)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=8,
)
NOISE = st.text(alphabet=st.sampled_from(string.ascii_letters[:6] + "0123 \n\t:-[]{},&*!|>'\"%@`#?<=.~"), max_size=60)


@st.composite
def written(draw):
    """A configuration that PyYAML wrote, with something put into it."""
    text = yaml.safe_dump(draw(st.dictionaries(st.text(max_size=5), VALUES, max_size=4)))
    at = draw(st.integers(0, len(text)))
    return (
        text[:at]
        + draw(st.sampled_from(["", "", "&a ", "*a", "!!python/object:os.system ", "[", "}", "\n", "'"]))
        + text[at:]
    )


@cases(300)
@given(st.one_of(written(), written(), NOISE))
def test_parsed_or_refused(text):
    """What is accepted is what PyYAML's own safe loader makes of it."""
    tried()
    try:
        found = plain_yaml.parse(text)
    except yaml.YAMLError:
        return
    assert repr(found) == repr(yaml.safe_load(text))


@pytest.mark.parametrize("text", TEXT, ids=range(len(TEXT)))
def test_in_a_folder(tmp_path, text):
    (tmp_path / "config.yaml").write_bytes(text.encode())
    config = ends_well(lambda: model_files.read_config(tmp_path))
    assert config is None or isinstance(config, dict)


@cases(60)
@given(st.binary(max_size=60))
@example(b"\xff\xfe")
def test_bytes_in_a_folder(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_bytes(content)
    config = ends_well(lambda: model_files.read_config(folder))
    assert config is None or all(isinstance(name, str) for name in config)
