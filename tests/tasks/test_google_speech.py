from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.config.loading import resolve
from pfl_bench.data import Store
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, DataFacts, TransformsBatches
from tasks.common.fedscale.streaming import SampleError
from tasks.google_speech import generate, models, prepare, task
from tasks.google_speech.prepare import SAMPLE_RATE, WORDS, read_wav, write_wav
from tasks.google_speech.task import LogMel, mel_filters, mel_frequencies
from tests.contracts.small_stores import write_google_speech
from tests.helpers import REPOSITORY


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "raw"
    options = generate.Options(num_users=10, examples_per_user=5, num_labels=3)
    generate.generate(folder, options, silent)
    return folder


@pytest.fixture(scope="module")
def store(raw: Path) -> Path:
    prepare.prepare(raw, raw.parent / "speech.h5", prepare.Options(), silent)
    return raw.parent / "speech.h5"


def open_task(store: Path, **options: Any) -> task.GoogleSpeechTask:
    return task.build(task.Options(data=str(store), **options))


def clip(seed: int, length: int = SAMPLE_RATE) -> np.ndarray:
    return generate.say(seed, np.random.default_rng(1), np.random.default_rng(seed))[:length]


def batch(*clips: np.ndarray) -> torch.Tensor:
    padded = [np.pad(sound, (0, SAMPLE_RATE - len(sound))) for sound in clips]
    return torch.from_numpy(np.stack(padded))


def test_the_mel_scale_is_slaneys() -> None:
    # 40 frequencies to 11,025 Hz are in librosa's documentation of mel_frequencies.
    documented = {1: 85.317, 11: 938.49, 12: 1024.856, 13: 1119.114, 38: 10096.408, 39: 11025.0}
    ours = mel_frequencies(40, 11_025.0)
    assert {place: round(float(ours[place]), 3) for place in documented} == documented
    filters = mel_filters()
    assert filters.shape == (32, 1025)
    # Triangles of area 1, but for the grid of 7.8 Hz.
    assert np.allclose(filters.sum(axis=1) * SAMPLE_RATE / 2048, 1.0, atol=0.05)


def slow_log_mel(samples: np.ndarray) -> np.ndarray:
    """The same by the definitions: one frame, one triangle after another."""
    sound = np.pad(samples / 32768.0, 1024)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(2048) / 2048)
    edges = mel_frequencies(34, 8000.0)
    power = np.zeros((32, 32))
    for frame in range(32):
        part = sound[512 * frame : 512 * frame + 2048] * window
        spectrum = np.abs(np.fft.rfft(part)) ** 2
        for mel in range(32):
            low, centre, high = edges[mel : mel + 3]
            for place, energy in enumerate(spectrum):
                hertz = place * 8000.0 / 1024
                if low < hertz < high:
                    near = (hertz - low) / (centre - low) if hertz < centre else None
                    weight = (high - hertz) / (high - centre) if near is None else near
                    power[mel, frame] += weight * 2 / (high - low) * energy
    decibels = 10 * np.log10(np.maximum(power, 1e-10))
    return np.maximum(decibels - decibels.max(), -80.0)


def test_spectrograms_agree_with_their_definition() -> None:
    clips = [clip(3), clip(4)]
    ours = LogMel(augment=True)(batch(*clips), None)
    assert ours.shape == (2, 1, 32, 32)
    assert ours.dtype == torch.float32
    wanted = slow_log_mel(batch(clips[1])[0].numpy())
    assert np.allclose(ours[1, 0].numpy(), wanted, atol=0.02)
    # Silence has no loudest part, and no infinity.
    assert not LogMel(augment=False)(batch(np.zeros(3, np.int16)), None).any()


def test_augmentation_changes_speed_and_moves_in_time() -> None:
    transform = LogMel(augment=True)
    inputs = batch(clip(5), clip(5), clip(5))
    plain = transform(inputs[:1], None)
    nothing, fast, late = transform(inputs, torch.tensor([[10**6, 0], [1_250_000, 0], [10**6, -3]]))
    assert torch.equal(nothing, plain[0])
    # Three frames of silence, then the clip; decibels count from the loudest of what is left.
    assert (late[0, :, :3] == -80).all()
    moved, kept = late[0, :, 3:], plain[0, 0, :, :-3]
    heard = (moved > -70) & (kept > -70)
    assert heard.sum() > 200
    assert (moved - kept)[heard].std() < 1e-3
    played = np.interp(np.arange(0, SAMPLE_RATE, 1.25), np.arange(SAMPLE_RATE), inputs[0].numpy())
    wanted = transform(batch(np.rint(played).astype(np.int16)), None)
    loud = wanted[0] > -50
    assert (fast - wanted[0])[loud].abs().max() < 1.0


def test_draws_are_the_clients_own() -> None:
    draws = LogMel(augment=True).draw(2000, np.random.default_rng(0))
    again = LogMel(augment=True).draw(2000, np.random.default_rng(0))
    assert torch.equal(draws, again)
    speed, shift = draws.unbind(1)
    assert 0.45 < float((speed == 10**6).float().mean()) < 0.55
    assert (int(speed.min()), int(speed.max())) == pytest.approx((833_333, 1_250_000), rel=0.01)
    assert (int(shift.min()), int(shift.max())) == (-8, 8)
    rng = np.random.default_rng(0)
    assert LogMel(augment=False).draw(2, rng).tolist() == [[10**6, 0], [10**6, 0]]
    assert rng.random() == np.random.default_rng(0).random()


def wav(rate: int = SAMPLE_RATE, channels: int = 1, width: int = 2, frames: int = 100) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes(frames * channels * width))
    return buffer.getvalue()


def test_wav_files_come_back() -> None:
    samples = clip(2)
    assert np.array_equal(read_wav(write_wav(samples)), samples)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wav(rate=8000), "8000 Hz, 1 channels, 16 bits; it must be 16000 Hz"),
        (wav(channels=2), "2 channels"),
        (wav(width=1), "8 bits"),
        (wav(frames=0), "0 samples; it must have 1 to"),
        (wav()[:-60], "cut: 70 of 100 samples"),
        (wav()[:30], "no WAV file"),
        (b"", "no WAV file"),
        (b"ID3 an MP3, by its name alone a WAV file", "no WAV file"),
    ],
)
def test_what_is_no_such_wav_file_is_told(content: bytes, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        read_wav(content)


def test_clips_are_padded_to_a_second(raw: Path, store: Path) -> None:
    opened = open_task(store)
    assert isinstance(opened, TransformsBatches)
    assert opened.facts.num_classes == 35
    assert opened.facts.input_shape == (1, 32, 32)
    assert opened.facts.variant == "google-speech-generated"
    split = opened.split("test")
    examples = split.read_range(0, 1)
    assert examples.inputs.shape == (1, SAMPLE_RATE)
    client = split.client_ids()[0]
    content = read_wav((raw / "test" / f"{int(client):05d}_0000.wav").read_bytes())
    assert len(content) < SAMPLE_RATE
    assert np.array_equal(examples.inputs[0, : len(content)].numpy(), content)
    assert not examples.inputs[0, len(content) :].any()


SPEAKERS = {"train": "8a28231e", "val": "a69b9b3e", "test": "0ab3b47d"}


def release_files() -> dict[str, bytes]:
    """Speech Commands as published, in small."""
    files = {"README.md": b"", "_background_noise_/pink_noise.wav": wav(frames=9)}
    listed: dict[str, list[str]] = {"val": [], "test": [], "train": []}
    for split, speaker in SPEAKERS.items():
        for number, word in enumerate(("right", "bed", "bed")):
            name = f"{word}/{speaker}_nohash_{number}.wav"
            files[name] = write_wav(clip(number, 300 + number))
            listed[split].append(name)
    files["validation_list.txt"] = "\n".join(listed["val"]).encode() + b"\n"
    files["testing_list.txt"] = "\n".join(listed["test"]).encode() + b"\n"
    return files


def write_archive(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / prepare.ARCHIVE, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return folder / prepare.ARCHIVE


def test_the_release_is_read_packed_and_unpacked(tmp_path: Path) -> None:
    write_archive(tmp_path / "packed", release_files())
    for name, content in release_files().items():
        path = tmp_path / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    clips = []
    for form in ("packed", "unpacked"):
        out = tmp_path / f"{form}.h5"
        facts = prepare.prepare(tmp_path / form, out, prepare.Options(), silent)
        assert facts["variant"] == "speech-commands-partial"
        assert facts["split_by"] == "user"
        assert facts["splits"] == {s: {"users": 1, "examples": 3} for s in ("train", "val", "test")}
        with Store(out) as opened:
            audio = opened.split("train").read("audio", 0, 3)
            clips.append(sorted(sound.tobytes() for sound in audio))
            assert opened.split("val").client_ids() == [SPEAKERS["val"]]
            words = opened.split("val").read("targets", 0, 3)
            assert sorted(WORDS[word] for word in words) == ["bed", "bed", "right"]
    assert clips[0] == clips[1]


def test_a_damaged_release_is_named(tmp_path: Path) -> None:
    def refused(message: str, files: dict[str, bytes] | None = None) -> None:
        if files is not None:
            write_archive(tmp_path / "raw", files)
        with pytest.raises(DataError, match=message):
            prepare.prepare(tmp_path / "raw", tmp_path / "s.h5", prepare.Options(), silent)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]

    files = release_files()
    refused(r"tar.gz has no testing_list.txt", {n: c for n, c in files.items() if "test" not in n})
    refused("of the word 'rigth'", {**files, "rigth/8a28231e_nohash_9.wav": wav()})
    refused(
        r"bed/a69b9b3e_nohash_1.wav \(and 0 more\) is listed and is not there",
        {n: c for n, c in files.items() if n != "bed/a69b9b3e_nohash_1.wav"},
    )
    refused(
        r"tar.gz: bed/8a28231e_nohash_1.wav: the sample cannot be read \(no WAV",
        {**files, "bed/8a28231e_nohash_1.wav": b"nothing"},
    )
    clips = "\n".join(name for name in files if "_nohash_" in name)
    refused(
        "tar.gz: all clips are listed for validation or testing, and none is left for train",
        {**files, "testing_list.txt": clips.encode()},
    )
    archive = write_archive(tmp_path / "raw", files)
    archive.write_bytes(archive.read_bytes()[:-400])
    refused("fetches it whole")
    archive.unlink()
    refused("holds no public form of Google Speech")
    (tmp_path / "raw" / "client_data_mapping").mkdir()
    write_archive(tmp_path / "raw", files)
    refused("holds several forms")


def test_an_unknown_word_in_a_mapping_is_named(raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "client_data_mapping"
    folder.mkdir(parents=True)
    (tmp_path / "raw" / "train").mkdir()
    name = next((raw / "train").iterdir()).name
    (tmp_path / "raw" / "train" / name).write_bytes((raw / "train" / name).read_bytes())
    header = "client_id,sample_path,label_name,label_id"
    (folder / "train.csv").write_text(f"{header}\n0,{name},marvim,3\n")
    with pytest.raises(DataError, match=r"line 2: label_name 'marvim' .*did you mean 'marvin'\?"):
        prepare.prepare(tmp_path / "raw", tmp_path / "s.h5", prepare.Options(), silent)


@pytest.mark.parametrize(("name", "parameters"), [("resnet34", 21_296_355), ("small_cnn", 25_795)])
def test_models_take_one_channel_and_keep_no_statistics(name: str, parameters: int) -> None:
    facts = DataFacts("made", "v", "sha256:0", 35, (1, 32, 32), "user")
    model = models.build(models.Options(name=name), facts)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert list(model.buffers()) == []
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 35)
    other = DataFacts("made", "faces", "sha256:0", 2, (3, 84, 84), "user")
    with pytest.raises(ConfigError, match="takes inputs of shape"):
        models.build(models.Options(name=name), other)


def test_engines_agree_and_a_private_row_runs(store: Path, tmp_path: Path) -> None:
    tree = {
        "version": 1,
        "name": "small",
        "device": "cpu",
        "task": {"name": "google_speech", "data": str(store)},
        "model": {"name": "small_cnn"},
        "federated": {
            "num_rounds": 1,
            "cohort_size": 3,
            "local_epochs": 2,
            "local_steps": 2,
            "local_batch_size": 4,
            "local_learning_rate": 0.1,
        },
        "privacy": {
            "mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "population_size": "training_users",
            "noise_multiplier": 1.0,
        },
        "evaluation": {"every": 1, "splits": ["val"]},
    }
    losses = []
    for engine in ("sequential", "vectorized"):
        overrides = [f"federated.engine={engine}"]
        summary = run(resolve(tree, Path("small.yaml"), overrides), tmp_path / engine)
        losses.append(summary["metrics"]["test/loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


SCRIPT = """
import sys
from pathlib import Path
import torch
from pfl_bench.config.loading import load_config
from pfl_bench.runs.runner import run
from tests.contracts.small_rows import CONFIGS, shortened

torch.set_num_threads(1)
row, store = CONFIGS / "fedscale/table4/speech-fedyogi.yaml", Path(sys.argv[1])
overrides = shortened(load_config(row).tree, {"google_speech": store})
run(load_config(row, overrides), store.parent / "run")
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_row_with_the_most_vectors_fits_two_gigabytes(tmp_path: Path) -> None:
    """ResNet-34 under FedYogi: 21 million numbers in each of a dozen vectors."""
    write_google_speech(tmp_path / "small.h5")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "small.h5")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # In one process with all other rows, what those leave behind comes to it: over 100 MB. Python
    # 3.13 and its packages take 150 MB more than 3.11 does.
    assert int(done.stdout) < 2 * 2**20
