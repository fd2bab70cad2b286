import gzip
import hashlib
import struct
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

from neuralfde.errors import InputError
from neuralfde_experiments.data import files, images


def idx(tensor):
    return (
        b"\x00\x00\x08"
        + bytes([tensor.dim()])
        + struct.pack(f">{tensor.dim()}I", *tensor.shape)
        + bytes(tensor.view(-1).tolist())
    )


@pytest.fixture
def tiny(monkeypatch):
    """A four-image MNIST: its packed files by name; the checksums in the library are set to theirs."""
    draw = torch.Generator().manual_seed(0)
    plain = {
        "train-images-idx3-ubyte": idx(torch.randint(0, 256, (4, 3, 3), generator=draw)),
        "train-labels-idx1-ubyte": idx(torch.tensor([1, 0, 2, 9])),
        "t10k-images-idx3-ubyte": idx(torch.randint(0, 256, (2, 3, 3), generator=draw)),
        "t10k-labels-idx1-ubyte": idx(torch.tensor([7, 8])),
    }
    packed = {stem: gzip.compress(content) for stem, content in plain.items()}
    sums = {s: tuple(hashlib.sha256(c[s]).hexdigest() for c in (packed, plain)) for s in plain}
    source = images._Source("MNIST", ("https://first/", "https://second/"), sums, images.DIGIT_NAMES)
    monkeypatch.setitem(images.SOURCES, "mnist", source)
    return packed


def write(root, packed, unpack=False):
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for stem, content in packed.items():
        if unpack:
            (raw / stem).write_bytes(gzip.decompress(content))
        else:
            (raw / f"{stem}.gz").write_bytes(content)
    return raw


@pytest.mark.parametrize("unpack", [False, True])
def test_reads_torchvision_layout_packed_and_unpacked(tiny, tmp_path, unpack):
    write(tmp_path, tiny, unpack)
    data = images.load_images("mnist", tmp_path)
    assert data.train_images.shape == (4, 3, 3)
    assert data.train_images.dtype == torch.uint8
    assert data.train_labels.tolist() == [1, 0, 2, 9]
    assert data.test_labels.dtype == torch.int64
    scaled = data.train_images.double() / 255
    assert data.mean == pytest.approx(scaled.mean().item(), abs=1e-12)
    assert data.std == pytest.approx(scaled.std(correction=0).item(), abs=1e-12)


def test_root_may_come_from_the_environment(tiny, tmp_path, monkeypatch):
    write(tmp_path, tiny)
    monkeypatch.setenv("NEURALFDE_DATA", str(tmp_path))
    assert len(images.load_images("mnist").test_images) == 2
    monkeypatch.delenv("NEURALFDE_DATA")
    with pytest.raises(InputError, match="NEURALFDE_DATA"):
        images.load_images("mnist")


def test_missing_files_say_where_and_what_to_do(tiny, tmp_path):
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz.*download=True"):
        images.load_images("mnist", tmp_path)


def test_altered_files_are_refused(tiny, tmp_path):
    raw = write(tmp_path, tiny)
    path = raw / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="not the published file"):
        images.load_images("mnist", tmp_path)


def test_misspelt_names_get_a_hint():
    with pytest.raises(InputError, match="Did you mean 'fashion-mnist'"):
        images.load_images("fashion_mnist")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x0d\x01", "not an idx file"),
        (idx(torch.tensor([1, 2, 3]))[:-1], "cut short"),
    ],
)
def test_idx_parser_refuses_what_is_no_idx_file(content, message, tmp_path):
    with pytest.raises(InputError, match=message):
        images.parse_idx(content, tmp_path / "file")


@pytest.fixture
def mirror(tiny, monkeypatch):
    """A server on this machine that has the tiny files, and does with them what a test asks; it stands for https."""
    state = SimpleNamespace(asked=[], change=lambda content: content, announce=None)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append(self.path)
            if self.path.startswith("/first/"):
                self.send_error(503)
                return
            content = state.change(tiny[self.path.rsplit("/", 1)[1].removesuffix(".gz")])
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) if state.announce is None else state.announce))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/"

    def opener(url, timeout):
        answer = urllib.request.urlopen(url.replace("https://", here), timeout=timeout)
        monkeypatch.setattr(answer, "geturl", lambda: state.leads_to if hasattr(state, "leads_to") else url)
        return answer

    monkeypatch.setattr(files, "urlopen", opener)
    yield state
    server.shutdown()
    server.server_close()


def test_download_tries_the_mirrors_in_turn(mirror, tmp_path):
    assert len(images.load_images("mnist", tmp_path, download=True).train_images) == 4
    assert len(mirror.asked) == 8
    images.load_images("mnist", tmp_path, download=True)
    assert len(mirror.asked) == 8, "what is there is not fetched again"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"change": lambda content: b"<html>"}, "wrong checksum"),
        ({"change": lambda content: content[:-3]}, "wrong checksum"),
        ({"change": lambda content: content[:-3], "announce": 10**6}, "wrong checksum|IncompleteRead"),
        ({"leads_to": "http://elsewhere/"}, "away from https"),
        ({"change": lambda content: bytes(4096)}, "sends more"),
    ],
    ids=["another page", "cut short", "connection lost", "not https", "endless"],
)
def test_download_never_keeps_a_wrong_file(mirror, tmp_path, monkeypatch, change, words):
    vars(mirror).update(change)
    monkeypatch.setattr(files, "LARGEST", 2000)
    with pytest.raises(InputError, match=f"503.*({words}).*by hand"):
        images.load_images("mnist", tmp_path, download=True)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_downloads_are_https_and_say_where_they_cannot_be_kept(tmp_path):
    with pytest.raises(InputError, match="not https"):
        files.download(["http://first/x"], tmp_path / "x", ["0" * 64])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        files.download(["https://first/x"], tmp_path / "file" / "x", ["0" * 64])
    for source in images.SOURCES.values():
        assert all(mirror.startswith("https://") for mirror in source.mirrors)
        assert all(len(digest) == 64 for sums in source.files.values() for digest in sums)


def test_digits_split_is_deterministic_and_stratified():
    pytest.importorskip("sklearn")
    data = images.load_images("digits")
    assert data.train_images.shape == (1442, 8, 8)
    assert data.test_images.shape == (355, 8, 8)
    assert data.train_images.max() == 255
    assert data.test_labels.bincount().min() >= 34
    assert torch.equal(images.load_digits().test_images, data.test_images)


@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_real_files(data_folder, name, mean, std):
    data = images.load_images(name, data_folder)
    assert data.train_images.shape == (60000, 28, 28)
    assert data.test_images.shape == (10000, 28, 28)
    assert data.mean == pytest.approx(mean, abs=5e-5)
    assert data.std == pytest.approx(std, abs=5e-5)
    assert data.train_labels.bincount().min() > 5000
