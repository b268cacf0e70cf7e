"""Voices: codes, speaker and mel of a recording, cached by content.

A folder with a fixed voice needs neither speech tokenizer nor speaker encoder; that voice replaces
every recording's.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.kernels.device import is_small_card
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ, mel_filter_bank
from MiniCPMO45.token2wav.config import UPSAMPLING
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, load_speech_tokenizer
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import (
    LARGEST_VOICE_FRAMES,
    SpeechStream,
    VoiceBase,
    VoicePrompt,
)

TOKENIZER_HOP_SAMPLES = 160
TOKENIZER_FFT_SAMPLES = 400
TOKENIZER_MELS = 128
# Source: docs/specification/model.md#1.8, row "speech tokenizer".
TOKENIZER_POWER_FLOOR = 1e-10
TOKENIZER_RANGE_DECADES = 8.0

VOICE_RATE_HZ = 24_000  # sample rate of the vocoder
VOICE_HOP_SAMPLES = 480
VOICE_FFT_SAMPLES = 1_920
VOICE_MELS = 80
VOICE_MAX_HZ = 8_000.0
# Source: docs/specification/model.md#7.1.
VOICE_MAGNITUDE_OFFSET = 1e-9
VOICE_MEL_FLOOR = 1e-5

# Source: Kaldi, feat/feature-window.h and feat/mel-computations.h, defaults of FbankOptions,
# with 80 bins, no dither and the waveform in -1 ... 1.
FBANK_WINDOW_SAMPLES = 400  # 25 ms
FBANK_HOP_SAMPLES = 160  # 10 ms
FBANK_FFT_SAMPLES = 512  # the window, rounded up to a power of two
FBANK_BINS = 80
FBANK_LOW_HZ = 20.0
FBANK_PREEMPHASIS = 0.97
POVEY_EXPONENT = 0.85
KALDI_MEL_SCALE = 1127.0
KALDI_MEL_BREAK_HZ = 700.0


def tokenizer_log_mel(audio: Tensor) -> Tensor:
    """Return the log-mel of the speech tokenizer [128, n // 160] for 16 kHz audio [n], n > 200."""
    window = torch.hann_window(TOKENIZER_FFT_SAMPLES, device=audio.device)
    spectrum = torch.stft(
        audio, TOKENIZER_FFT_SAMPLES, TOKENIZER_HOP_SAMPLES, window=window, return_complex=True
    )  # [201, n // 160 + 1]
    power = spectrum[:, :-1].abs().square()  # [201, n // 160]
    filters = mel_filter_bank(
        SAMPLE_RATE_HZ, TOKENIZER_FFT_SAMPLES, TOKENIZER_MELS, 0.0, SAMPLE_RATE_HZ / 2
    )
    log_mel = (filters.to(audio.device) @ power).clamp(min=TOKENIZER_POWER_FLOOR).log10()
    log_mel = torch.maximum(log_mel, log_mel.max() - TOKENIZER_RANGE_DECADES)
    return (log_mel + 4.0) / 4.0  # [128, n // 160]


def speaker_filter_bank(audio: Tensor) -> Tensor:
    """Return Kaldi's log filter bank with each bin's mean over time removed.

    The audio is float32 [n] at 16 kHz in -1 ... 1, n >= 400; the result [1 + (n - 400) // 160, 80].
    """
    power = speaker_power(audio)
    energies = power @ kaldi_filters().to(power).T  # [T, 80]
    log_energies = energies.clamp(min=torch.finfo(torch.float32).eps).log()
    return log_energies - log_energies.mean(dim=0, keepdim=True)


def speaker_power(audio: Tensor) -> Tensor:
    """Return Kaldi's power spectrum of each frame of a signal [n], [T, 257]."""
    frames = audio.unfold(0, FBANK_WINDOW_SAMPLES, FBANK_HOP_SAMPLES)  # [T, 400]
    frames = frames - frames.mean(dim=1, keepdim=True)
    previous = F.pad(frames.unsqueeze(1), (1, 0), mode="replicate").squeeze(1)[:, :-1]
    frames = frames - FBANK_PREEMPHASIS * previous
    window = torch.hann_window(FBANK_WINDOW_SAMPLES, periodic=False, device=audio.device)
    frames = frames * window.pow(POVEY_EXPONENT)
    return torch.fft.rfft(frames, n=FBANK_FFT_SAMPLES).abs().square()


@lru_cache(maxsize=1)
def kaldi_filters() -> Tensor:
    """Triangular filters on the mel axis, float32 [80, 257].

    Computed in float32 like Kaldi's: nearly silent bins depend on the rounding of the edges.
    """
    low, high = (
        KALDI_MEL_SCALE * math.log(1.0 + hz / KALDI_MEL_BREAK_HZ)
        for hz in (FBANK_LOW_HZ, SAMPLE_RATE_HZ / 2)
    )
    edges = low + torch.arange(FBANK_BINS + 2)[:, None] * ((high - low) / (FBANK_BINS + 1))
    bins_hz = torch.arange(FBANK_FFT_SAMPLES // 2) * (SAMPLE_RATE_HZ / FBANK_FFT_SAMPLES)
    bins = KALDI_MEL_SCALE * (1.0 + bins_hz / KALDI_MEL_BREAK_HZ).log()  # [256]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])  # [80, 256]
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rising, falling).clamp(min=0.0)
    return F.pad(filters, (0, 1))  # Kaldi omits the Nyquist bin


def voice_log_mel(audio: Tensor) -> Tensor:
    """Return the log-mel the flow continues from [80, n // 480] for 24 kHz audio [n], n > 720."""
    margin = (VOICE_FFT_SAMPLES - VOICE_HOP_SAMPLES) // 2
    padded = F.pad(audio[None, None], (margin, margin), mode="reflect")[0, 0]
    spectrum = torch.stft(
        padded,
        VOICE_FFT_SAMPLES,
        VOICE_HOP_SAMPLES,
        window=torch.hann_window(VOICE_FFT_SAMPLES, device=audio.device),
        center=False,
        return_complex=True,
    )  # [961, n // 480]
    power = torch.view_as_real(spectrum).square().sum(dim=-1)
    magnitude = (power + VOICE_MAGNITUDE_OFFSET).sqrt()
    filters = mel_filter_bank(VOICE_RATE_HZ, VOICE_FFT_SAMPLES, VOICE_MELS, 0.0, VOICE_MAX_HZ)
    return (filters.to(audio.device) @ magnitude).clamp(min=VOICE_MEL_FLOOR).log()


# Source: the defaults of torchaudio.transforms.Resample (method "sinc_interp_hann").
HALF_WIDTH_CROSSINGS = 6  # zero crossings of the sinc on each side
ROLLOFF = 0.99  # cut-off as a share of the lower of the two half rates


@lru_cache(maxsize=8)
def _filters(step_in: int, step_out: int) -> tuple[NDArray[np.float32], int]:
    """Return one filter per output phase [step_out, taps] and the samples it needs on the left."""
    cutoff = min(step_in, step_out) * ROLLOFF
    reach = math.ceil(HALF_WIDTH_CROSSINGS * step_in / cutoff)
    taps = np.arange(-reach, reach + step_in) / step_in  # in periods of the common rate
    # The reference rounds only the phases to float32 before computing the filter, which is
    # visible in a log spectrogram at the end of the pass band.
    phases = (np.arange(step_out, dtype=np.float32) / np.float32(step_out))[:, None]
    crossings = np.clip(
        (taps - phases) * cutoff, -HALF_WIDTH_CROSSINGS, HALF_WIDTH_CROSSINGS
    )  # [step_out, taps]
    hann = np.cos(crossings * np.pi / HALF_WIDTH_CROSSINGS / 2) ** 2
    filters = np.sinc(crossings) * hann * cutoff / step_in
    return filters.astype(np.float32), reach


def resample(audio: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """Convert audio between sample rates.

    Returns:
        float32 [ceil(n * to_hz / from_hz)].

    Raises:
        ValueError: a rate is not positive, or `audio` is not one channel.
    """
    if from_hz <= 0 or to_hz <= 0 or audio.ndim != 1:
        raise ValueError(f"cannot resample shape {audio.shape} from {from_hz} Hz to {to_hz} Hz")
    if from_hz == to_hz:
        return audio
    common_hz = math.gcd(from_hz, to_hz)
    step_in, step_out = from_hz // common_hz, to_hz // common_hz
    filters, reach = _filters(step_in, step_out)
    padded = np.pad(audio.astype(np.float32), (reach, reach + step_in))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters.shape[1])[::step_in]
    interleaved = (windows @ filters.T).reshape(-1)  # [periods, step_out] -> [samples]
    return interleaved[: math.ceil(audio.size * step_out / step_in)]


SPEAKER_SIZE = 192
UNREADABLE_GRAPH = (
    onnxruntime_errors.NoSuchFile,
    onnxruntime_errors.InvalidProtobuf,
    onnxruntime_errors.InvalidGraph,
    onnxruntime_errors.Fail,
)


class SpeakerEncoder:
    """Runs `campplus.onnx`."""

    def __init__(self, path: Path) -> None:
        """Load the graph.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        self.path = path
        options = onnxruntime.SessionOptions()
        # A run is short, happens once per voice and competes with the model's thread.
        options.intra_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except UNREADABLE_GRAPH as error:
            raise CheckpointError(f"the speaker encoder cannot be read: {error}") from error

    def embed(self, filter_bank: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the embedding of one speaker, float32 [1, 192], not normalised."""
        # The published graph's input is named "input"; a re-exported one may differ.
        name = self._session.get_inputs()[0].name
        embedding = self._session.run(None, {name: filter_bank[None]})[0]
        if embedding.shape != (1, SPEAKER_SIZE):
            raise ValueError(
                f"{self.path} gives {embedding.shape}, a speaker is (1, {SPEAKER_SIZE})"
            )
        return embedding


TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_FILE = "campplus.onnx"

SAMPLES_PER_CODE = SAMPLE_RATE_HZ // 25
MIN_VOICE_S = 0.5
MAX_VOICE_CODES = LARGEST_VOICE_FRAMES // UPSAMPLING
MAX_VOICE_SAMPLES = MAX_VOICE_CODES * SAMPLES_PER_CODE
MAX_VOICE_S = MAX_VOICE_SAMPLES / SAMPLE_RATE_HZ  # the rest of a recording is ignored


class VoiceSampleError(ValueError):
    """A recording is not usable as a voice; the message names the limit and the value."""


class VoiceEncoder:
    """Converts recordings to voices on the speech tokenizer's device."""

    def __init__(self, tokenizer: SpeechTokenizer, speaker: SpeakerEncoder) -> None:
        self.tokenizer = tokenizer
        self.speaker = speaker

    @classmethod
    def from_folder(cls, folder: Path, device: torch.device) -> VoiceEncoder:
        """Load both models from the checkpoint's `assets/token2wav`.

        A small card leaves the speech tokenizer's 0.5 GB to the CPU, which is slower but needed
        once per voice.

        Raises:
            CheckpointError: a file is missing or unusable.
        """
        if device.type == "cuda" and is_small_card(device):
            device = torch.device("cpu")
        speaker = SpeakerEncoder(folder / SPEAKER_FILE)
        return cls(load_speech_tokenizer(folder / TOKENIZER_FILE, device), speaker)

    @torch.no_grad()
    def prepare_voice(self, audio: NDArray[np.float32]) -> VoicePrompt:
        """Convert a recording to a voice.

        Args:
            audio: float32 [n] at 16 kHz in -1 ... 1, from 0.5 s; its first 16.88 s are used.

        Raises:
            VoiceSampleError: the recording is too short or not a finite waveform.
        """
        duration_s = audio.size / SAMPLE_RATE_HZ
        if audio.ndim != 1:
            raise VoiceSampleError(f"a voice sample has one channel; found shape {audio.shape}")
        if duration_s < MIN_VOICE_S:
            raise VoiceSampleError(
                f"a voice sample lasts at least {MIN_VOICE_S} s; found {duration_s:.2f} s"
            )
        if not np.isfinite(audio).all():
            raise VoiceSampleError("a voice sample holds finite numbers; found NaN or infinity")
        audio = audio[:MAX_VOICE_SAMPLES]
        device = self.tokenizer.encoder.conv1.weight.device
        wave = torch.from_numpy(np.ascontiguousarray(audio, dtype=np.float32))
        codes = self.tokenizer.encode(tokenizer_log_mel(wave).to(device))[None]  # [1, P]
        speaker = torch.from_numpy(self.speaker.embed(speaker_filter_bank(wave).numpy()))
        upsampled = torch.from_numpy(resample(wave.numpy(), SAMPLE_RATE_HZ, VOICE_RATE_HZ))
        mel = fit_frames(voice_log_mel(upsampled), UPSAMPLING * codes.shape[1])
        return VoicePrompt(codes, speaker.to(device), mel.T[None].contiguous().to(device))


def fit_frames(mel: Tensor, n_frames: int) -> Tensor:
    """Crop a spectrogram [80, T] to `n_frames`, or pad it with its last frame."""
    missing = n_frames - mel.shape[1]
    return mel[:, :n_frames] if missing <= 0 else F.pad(mel, (0, missing), mode="replicate")


def voice_key(audio: NDArray[np.float32]) -> str:
    """Return a cache key of the recording's content."""
    return hashlib.sha256(audio.astype("<f4").tobytes()).hexdigest()


FIXED_VOICE_FILE = "fixed_voice.safetensors"


def read_fixed_voice(folder: Path) -> VoicePrompt | None:
    """Read a checkpoint's fixed voice; None if it accepts any voice.

    Raises:
        CheckpointError: the file is damaged or holds something else.
    """
    path = folder / FIXED_VOICE_FILE
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        return VoicePrompt(
            tensors["codes"].to(torch.int64), tensors["speaker"].float(), tensors["mel"].float()
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} holds no voice: {error}") from error


T = TypeVar("T")

ONLY_VOICE = "the only voice"
MAX_VOICES = 8


class VoiceLibrary:
    """LRU cache of the vocoder's starting points by voice, smaller where memory is short.

    A voice takes 0.1 to 0.28 GB on a card at the published size. A `VoicePrompt` in place of the
    encoder is used for every recording.
    """

    def __init__(self, encoder: VoiceEncoder | VoicePrompt, vocoder: Token2Wav) -> None:
        self.has_one_voice = isinstance(encoder, VoicePrompt)
        self._encoder = encoder
        self._vocoder = vocoder
        self._bases: OrderedDict[str, VoiceBase] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bases)

    def base_of(self, audio: np.ndarray) -> VoiceBase:
        """Return the starting point of a voice, computed if it is not cached.

        `audio` and errors are those of `VoiceEncoder.prepare_voice`.
        """
        encoder = self._encoder
        key = ONLY_VOICE if isinstance(encoder, VoicePrompt) else voice_key(audio)

        def compute() -> VoiceBase:
            voice = encoder if isinstance(encoder, VoicePrompt) else encoder.prepare_voice(audio)
            return self._vocoder.set_up(voice)

        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = self._with_memory(compute, kept=0)
            if len(self._bases) > MAX_VOICES:
                self._bases.popitem(last=False)
        self._bases.move_to_end(key)
        return base

    def open(self, audio: np.ndarray, generator: torch.Generator | None = None) -> SpeechStream:
        """Return a new stream of a voice; arguments and errors are those of `base_of`."""
        base = self.base_of(audio)
        return self._with_memory(lambda: self._vocoder.new_state(base, generator), kept=1)

    def _with_memory(self, work: Callable[[], T], *, kept: int) -> T:
        """Retry `work` without the voice unused longest while memory is short and `kept` remain."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                if len(self._bases) <= kept:
                    raise
            # Outside of the handler, whose traceback holds the tensors of the attempt.
            self._bases.popitem(last=False)
