"""Models on disk: every bit comes back, a failing write keeps the old file, no damage passes."""

import errno
import json
import multiprocessing
import os
import signal
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import unsoftmax as us
from unsoftmax.models import files

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def dense(seed=0, d=4):
    rng = np.random.default_rng(seed)
    return us.SingleHead(rng.standard_normal((d, d)), rng.standard_normal(d), c=0.1)


def factored():
    K, Q = np.random.default_rng(0).standard_normal((2, 2, 5))
    return us.SingleHead.from_factors(K, Q, np.ones(5), np.ones(5))


def written(path, tensors, metadata):
    """A safetensors file by its specification: name to (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    if metadata is not None:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def header_of(path):
    """Header of a safetensors file, read by its specification."""
    content = path.read_bytes()
    [length] = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def assert_same_bits(one, other):
    assert type(one) is type(other)
    assert one.arrays().keys() == other.arrays().keys()
    for name, array in one.arrays().items():
        assert array.shape == other.arrays()[name].shape
        assert array.tobytes() == other.arrays()[name].tobytes()


# -- there and back


@given(data=st.data())
def test_any_floats_come_back(data, tmp_path):
    d = data.draw(st.integers(1, 3))
    W = data.draw(arrays_of.arrays(float, (d, d), elements=finite))
    v, w = (data.draw(arrays_of.arrays(float, d, elements=finite)) for _ in "vw")
    model = us.SingleHead(W, v, w, data.draw(finite))
    file = tmp_path / "model.safetensors"
    model.save(file)
    assert_same_bits(us.load(file), model)


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_order_does_not_change_the_answers(order, path):
    rng = np.random.default_rng(0)
    K, Q = (np.asarray(x, order=order) for x in rng.standard_normal((2, 16, 64)))
    model = us.SingleHead.from_factors(K, Q, rng.standard_normal(64))
    model.save(path)
    X = rng.standard_normal((5, 3, 64))
    np.testing.assert_array_equal(us.load(path)(X), model(X))
    np.testing.assert_array_equal(us.load(path).W, model.W)


def test_a_rank_of_zero_comes_back(path):
    us.SingleHead.from_factors(np.zeros((0, 3)), np.zeros((0, 3)), np.ones(3)).save(path)
    assert us.load(path).arrays()["K"].shape == (0, 3)


@pytest.mark.parametrize("model", [dense(), factored(), us.MultiHead(np.ones((1, 2, 2)), [[1, 2]])])
def test_a_model_saved_twice_is_one_file(model, tmp_path):
    """To the last byte, so that its hash names it; an even chance of two orders each time."""
    saved = set()
    for k in range(24):
        model.save(tmp_path / f"{k}.safetensors")
        saved.add((tmp_path / f"{k}.safetensors").read_bytes())
    us.load(tmp_path / "0.safetensors").save(tmp_path / "again.safetensors")
    assert saved == {(tmp_path / "again.safetensors").read_bytes()}


def test_the_file_says_what_it_is(path):
    dense().save(path)
    header = header_of(path)
    assert header.pop("__metadata__") == {"class": "SingleHead", "format_version": "1"}
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()} == {
        "W": ("F64", [4, 4]),
        "v": ("F64", [4]),
        "w": ("F64", [4]),
        "c": ("F64", []),
    }
    factored().save(path)
    assert set(header_of(path)) == {"K", "Q", "v", "w", "c", "__metadata__"}


def test_paths_are_strings_or_paths(path):
    dense().save(str(path))
    assert_same_bits(us.load(path), us.load(str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


# -- refused, by name


def test_a_missing_file_is_named(path):
    with pytest.raises(FileNotFoundError, match=r"There is no model file at .*model\.safetensors"):
        us.load(path)
    with pytest.raises(FileNotFoundError, match="no model file"):
        us.load(path.parent)


def refused(path, says):
    with pytest.raises(ValueError, match=says) as refusal:
        us.load(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"short", b"PK\x03\x04" + bytes(200), bytes(300)])
def test_another_kind_of_file(path, content):
    path.write_bytes(content)
    refused(path, "not a readable safetensors file")


def test_every_truncation(path):
    dense().save(path)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        refused(path, "not a readable safetensors file")


V = {"v": ("F64", [1], struct.pack("<d", 1.0))}
OURS = {"class": "SingleHead", "format_version": "1"}


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"format": "pt"},
        {"class": "SingleHead"},
        {"format_version": "1"},
        {"class": "SingleHead", "format_version": "one"},
        {"class": "SingleHead", "format_version": "-1"},
        {"class": "SingleHead", "format_version": "²"},
    ],
)
def test_tensors_of_somebody_else(path, metadata):
    written(path, V, metadata)
    refused(path, "holds tensors but no unsoftmax model")


@pytest.mark.parametrize("dtype", ["BF16", "F16", "I16"])
def test_weights_of_somebody_else_in_any_format(path, dtype):
    weights = {"layer.0.weight": (dtype, [2], bytes(4))}
    written(path, weights, {"format": "pt"})
    refused(path, "holds tensors but no unsoftmax model")
    written(path, weights, OURS)
    refused(path, f"is damaged: layer.0.weight is {dtype}")


def test_a_newer_format(path):
    written(path, V, {"class": "SingleHead", "format_version": "2"})
    refused(path, r"format 2, this program reads up to 1: upgrade")


def test_a_format_of_5000_digits_is_newer(path):
    written(path, V, {"class": "SingleHead", "format_version": "2" * 5000})
    refused(path, "format 222222222, this program reads up to 1: upgrade")


def test_a_tensor_that_is_there_twice(path):
    us.SingleHead(np.eye(2), np.ones(2)).save(path)
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    entry = json.dumps(header_of(path)["v"])
    header = content[8:end].rstrip()[:-1] + f',"v":{entry}}}'.encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[end:])
    refused(path, "'v' is there twice")
    with pytest.raises(ValueError, match="'v' is there twice"):
        files.load_weights(path)


def test_an_unknown_class(path):
    written(path, V, {"class": "Oracle9", "format_version": "1"})
    refused(path, "holds a Oracle9, which this program does not know: upgrade")


def float64(shape, fill=1.0):
    return ("F64", list(shape), np.full(shape, fill).tobytes())


@pytest.mark.parametrize(
    "tensors",
    [
        {"v": float64((2,))},
        {"W": float64((2, 2))},
        {"W": float64((2, 2)), "v": float64((3,)), "w": float64((3,)), "c": float64(())},
        {"W": float64((2, 2)), "v": float64((2,)), "w": float64((1,)), "c": float64(())},
        {"W": float64((2, 2)), "v": float64((2,)), "w": float64((2,)), "c": float64((1,))},
        {"W": float64((2, 2), np.nan), "v": float64((2,))},
        {"W": float64((2, 2)), "v": float64((2,)), "z": float64((2,))},
        {"K": float64((1, 2)), "v": float64((2,))},
        {"K": float64((1, 2)), "Q": float64((2, 2)), "v": float64((2,))},
        {"K": float64((2,)), "Q": float64((1, 2)), "v": float64((2,))},
        {},
    ],
    ids=lambda tensors: " ".join(f"{name}{entry[1]}" for name, entry in tensors.items()) or "none",
)
def test_tensors_that_are_no_head(path, tensors):
    written(path, tensors, OURS)
    refused(path, "is damaged")


# -- a failing write


class DiskFull(OSError):
    pass


def half_written(path, data):
    with path.open("wb") as stream:
        stream.write(data[:12])
    raise DiskFull


@pytest.mark.parametrize("failing", ["pathlib.Path.write_bytes", "os.replace", "os.chmod"])
def test_the_old_file_survives_a_failing_write(path, monkeypatch, failing):
    def fail(*_, **__):
        raise DiskFull

    dense(1).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(failing, half_written if "write" in failing else fail)
    with pytest.raises(DiskFull):
        dense(2).save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def killed_while_writing(path):
    def write_half_and_die(temporary, data):
        with temporary.open("wb") as stream:
            stream.write(data[:12])
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Path, "write_bytes", write_half_and_die)  # noqa: B010  (typed otherwise)
    dense(2).save(path)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_the_old_file_survives_kill_9_and_the_next_save_leaves_no_other(path):
    dense(1).save(path)
    child = multiprocessing.get_context("spawn").Process(target=killed_while_writing, args=(path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert_same_bits(us.load(path), dense(1))
    assert len(os.listdir(path.parent)) == 2
    dense(3).save(path)
    assert_same_bits(us.load(path), dense(3))
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_being_written_is_not_taken_for_one_that_was_left(path):
    with files.temporary_beside(path) as temporary:
        temporary.write_bytes(b"half")
        dense(1).save(path)
        assert temporary.read_bytes() == b"half"
        dense(2).save(temporary)
        os.replace(temporary, path)
    assert_same_bits(us.load(path), dense(2))
    assert os.listdir(path.parent) == [path.name]


def test_where_there_are_no_locks_models_are_written_and_nothing_is_deleted(path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    left = path.with_name(f".{path.name}.a1b2c3d4.new")
    left.write_bytes(b"half")
    monkeypatch.setattr("fcntl.flock", unsupported)
    dense(1).save(path)
    monkeypatch.undo()
    assert sorted(os.listdir(path.parent)) == [left.name, path.name]
    dense(2).save(path)
    assert os.listdir(path.parent) == [path.name]


def test_a_folder_is_not_replaced(path):
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        dense().save(path)
    assert os.listdir(path.parent) == [path.name]


def test_a_missing_folder_is_an_error(path):
    with pytest.raises(FileNotFoundError):
        dense().save(path.parent / "missing" / "model.safetensors")
