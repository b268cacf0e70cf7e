"""Stages of the vision encoder: attributes, word embeddings, questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from training.nano import shapes
from training.nano.augment import Augmenter
from training.nano.batches import loader
from training.nano.listening import SIDE_FOLDER, load_model, to_device
from training.nano.model import NanoModel
from training.nano.optimizing import Optimizer, Recipe, fast
from training.nano.vision.asked import PicturedConversations, SeeingModel
from training.nano.vision.encoder import (
    CAMERA_WEIGHTS,
    CAMERAS,
    SERVED_RESOLUTION,
    VisionEncoder,
    served_size,
)
from training.nano.vision.pictures import Painter
from training.nano.vision.places import (
    NAMES,
    EmbeddingReaders,
    PatchReaders,
    Readers,
    is_right,
    patch_labels,
    patch_loss,
    reading_loss,
    targets_of,
    word_ids,
)
from training.nano.vision.scenes import Labels, Placing
from training.nano.vision.stencils import Stencils
from training.nano.voice.stage_clock import Average, StageClock, Tick, resume, save

FILE = "vision.pt"
FILES = {"vision": FILE, "readers": "vision_readers.pt", "patch_readers": "vision_patches.pt"}
# Small windows first: end as a share of the stage, resolution, multiple of the batch size.
CURRICULUM = ((0.4, 112, 8), (0.55, 168, 4), (0.75, 224, 2), (1.1, SERVED_RESOLUTION, 1))
LEAST_RADIUS_PX = 8.5  # of things, at every resolution
PATCHES_SHARE = 0.5  # of the loss
REPORT_EVERY_STEPS = 200
RECIPE = Recipe(
    inside=("vpm.encoder.", "resampler.attn.", "resampler.kv_proj"),
    weight_decay=0.05,
    warm_up_steps=40,
)
SHARPNESS = 8.0  # inverse temperature of classification by distance
FITTED_BATCHES, FIT_DAMPING = 12, 1e-4


@dataclass(frozen=True)
class Setting:
    stencils: Path
    out: Path  # folder of `FILE`, from which a stage resumes
    clock: StageClock
    device: torch.device
    batch: int = 192  # pictures of the served size per step
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures of one size with their labels."""

    labels: Labels
    placing: Placing
    pictures: Tensor  # float32 [B, 3, H, W] in 0..1
    whole: tuple[int, int]  # width and height of the pictures of which these are windows


class Teaching(nn.Module):
    """The vision encoder with classifiers, for training without a language model."""

    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__()
        self.vision = VisionEncoder(config)
        self.readers = Readers(config.hidden_size)
        self.patch_readers = PatchReaders(config.vision_config.hidden_size)

    @classmethod
    def load(cls, setting: Setting) -> Teaching:
        """Load the weights of earlier stages, or initialise them."""
        torch.manual_seed(setting.seed)
        teaching = cls(shapes.config()).to(setting.device)
        teaching.vision.begin(
            _draw(_painter(setting, held_out=False), setting, None, Random(0)).pictures
        )
        for name, part in teaching.named_children():
            resume(part, setting.out / FILES[name])
        return teaching

    def forward(self, drawn: Drawn, random: Random) -> tuple[Tensor, Tensor]:
        """Encode a batch at a random position of the whole pictures.

        Returns:
            The rows [B, 64, width], and the loss of the patches.
        """
        vision, size = self.vision, self.vision.patches(drawn.pictures)
        width, height = drawn.whole
        whole = height // vision.patch_side, width // vision.patch_side
        start = random.randint(0, whole[0] - size[0]), random.randint(0, whole[1] - size[1])
        features = vision.features(drawn.pictures, vision.positions(size, whole, start))
        wanted = patch_labels(drawn.labels, drawn.placing, size, vision.patch_side)
        return vision.resample(features, size), patch_loss(self.patch_readers(features), wanted)


def learn_attributes(setting: Setting) -> None:
    """Train the encoder with classifiers of the attributes; needs no language model."""
    teaching = Teaching.load(setting)
    average, optimizer = Average(teaching), Optimizer(teaching, setting.rate, RECIPE)
    painter, random = _painter(setting, held_out=False), Random(setting.seed)
    for tick in setting.clock.ticks("see"):
        drawn = _draw(painter, setting, tick, random)
        wanted = targets_of(drawn.labels)
        with fast(setting.device):
            rows, by_patch = teaching(drawn, random)
            read = [scores.float() for scores in teaching.readers(rows)]
        loss = reading_loss(read, wanted) + PATCHES_SHARE * by_patch
        optimizer.step(loss, tick)
        average.update(tick.step)
        _report("see", tick, loss, read, wanted)
        if tick.is_save_due:
            _save(average, setting.out)
    _load(average, teaching)
    _examine(teaching.vision, teaching.readers, setting)


def learn_words(setting: Setting, llm_folder: Path) -> None:
    """Train the encoder to output the embeddings of caption words."""
    teaching = Teaching.load(setting)
    model = load_model(llm_folder, None).to(setting.device)
    words = _words(model, llm_folder)
    painter, random = _painter(setting, held_out=False), Random(setting.seed + 1)
    _fit(teaching.vision, words, painter, setting, random)
    average, optimizer = Average(teaching), Optimizer(teaching, setting.rate, RECIPE)
    for tick in setting.clock.ticks("tell"):
        drawn = _draw(painter, setting, None, random)
        wanted = targets_of(drawn.labels)
        with fast(setting.device):
            rows, by_patch = teaching(drawn, random)
        apart, read = words.apart(rows, wanted), words(rows)
        reading = reading_loss([SHARPNESS * scores for scores in read], wanted)
        optimizer.step(apart + reading + PATCHES_SHARE * by_patch, tick)
        average.update(tick.step)
        _report("tell", tick, apart, read, wanted)
        if tick.is_save_due:
            _save(average, setting.out)
    _load(average, teaching)
    _examine(teaching.vision, words, setting)


def learn_questions(
    setting: Setting, llm_folder: Path, banks: Sequence[Path], encoder: Path, processes: int
) -> None:
    """Train the encoder on questions about pictures, through the frozen language model."""
    torch.manual_seed(setting.seed)
    vision = VisionEncoder(shapes.config())
    resume(vision, setting.out / FILE)
    model = load_model(llm_folder, encoder).requires_grad_(False)
    painter = _painter(setting, held_out=False)
    seeing = SeeingModel(model, vision, painter, word_ids(_tokenizer(llm_folder)), setting.seed)
    seeing.to(setting.device).eval()
    words = _words(seeing, llm_folder)
    average, optimizer = Average(vision), Optimizer(vision, setting.rate, RECIPE)
    conversations = PicturedConversations(
        banks, llm_folder / SIDE_FOLDER, setting.batch, setting.seed
    )
    batches = iter(loader(conversations, processes))
    augment = Augmenter(torch.Generator(device=setting.device).manual_seed(setting.seed))
    for tick in setting.clock.ticks("asked"):
        batch = to_device(next(batches), setting.device)
        with fast(setting.device):
            predicted = seeing(batch, augment)
        rows, wanted = seeing.newest
        apart = words.apart(rows, wanted)
        optimizer.step(predicted.loss + 0.3 * apart, tick)
        average.update(tick.step)
        if tick.step % REPORT_EVERY_STEPS == 0 or tick.is_save_due:
            print(
                f"asked {tick.step} loss {float(predicted.loss.detach()):.3f}"
                f" right {float(predicted.accuracy):.3f} apart {float(apart.detach()):.3f}",
                flush=True,
            )
        if tick.is_save_due:
            save(average.state_dict(), setting.out / FILE)
    _load(average, vision)
    _examine(vision, words, setting)


def examine(setting: Setting, llm_folder: Path) -> None:
    """Print the accuracies on pictures with held-out fonts."""
    vision = VisionEncoder(shapes.config()).to(setting.device)
    resume(vision, setting.out / FILE)
    model = load_model(llm_folder, None).to(setting.device)
    _examine(vision, _words(model, llm_folder), setting)


@torch.no_grad()
def _fit(
    vision: VisionEncoder,
    words: EmbeddingReaders,
    painter: Painter,
    setting: Setting,
    random: Random,
) -> None:
    """Fit the resampler's output projection to the word embeddings by least squares."""
    rows, targets = [], []
    for _ in range(FITTED_BATCHES):
        drawn = _draw(painter, setting, None, random)
        rows.append(vision(drawn.pictures).flatten(0, 1))
        targets.append(words.targets(targets_of(drawn.labels)).flatten(0, 1))
    seen, wanted = torch.cat(rows).double(), torch.cat(targets).double()
    power = seen.T @ seen
    power += FIT_DAMPING * power.diagonal().mean() * torch.eye(len(power), device=power.device)
    turn = torch.linalg.solve(power, seen.T @ wanted)
    vision.resampler.proj.copy_((vision.resampler.proj.double() @ turn).float())


@torch.no_grad()
def _examine(
    vision: VisionEncoder, readers: Callable[[Tensor], list[Tensor]], setting: Setting
) -> None:
    painter, random = _painter(setting, held_out=True), Random(setting.seed + 77)
    right = []
    for _ in range(4 if setting.device.type == "cpu" else 24):
        drawn = _draw(painter, setting, None, random)
        with fast(setting.device):
            read = readers(vision(drawn.pictures))
        right.append(is_right(read, targets_of(drawn.labels)))
    columns = torch.cat(right).float()
    shares = dict(zip(NAMES, columns.mean(0).tolist(), strict=True))
    shares["all four"] = float(columns.prod(1).mean())
    formatted = " ".join(f"{name} {share:.1%}" for name, share in shares.items())
    print(f"held-out pictures ({len(columns)}): {formatted}", flush=True)


def _draw(painter: Painter, setting: Setting, tick: Tick | None, random: Random) -> Drawn:
    resolution, times = SERVED_RESOLUTION, 1
    if tick is not None:
        resolution, times = next(
            (side, times) for until, side, times in CURRICULUM if tick.progress < until
        )
    [camera] = random.choices(CAMERAS, CAMERA_WEIGHTS)
    width, height = served_size(camera, resolution)
    labels = painter.draw_labels(setting.batch * times)
    placing = painter.place(labels, width, height, LEAST_RADIUS_PX)
    pictures = painter.paint(labels, width, height, placing)
    return Drawn(labels, placing, pictures, served_size(camera, SERVED_RESOLUTION))


def _painter(setting: Setting, *, held_out: bool) -> Painter:
    stencils = Stencils.load(setting.stencils, setting.device, held_out=held_out)
    seed = setting.seed + (1_000_003 if held_out else 0)
    return Painter(stencils, torch.Generator(device=setting.device).manual_seed(seed))


def _words(model: NanoModel, folder: Path) -> EmbeddingReaders:
    embeddings = model.llm.model.embed_tokens.weight
    return EmbeddingReaders(embeddings, word_ids(_tokenizer(folder)))


def _tokenizer(folder: Path) -> MiniCPMOTokenizerFast:
    side = folder / SIDE_FOLDER
    side.mkdir(parents=True, exist_ok=True)
    shapes.write_side_files(side)
    return MiniCPMOTokenizerFast.from_pretrained(side)


def _report(name: str, tick: Tick, loss: Tensor, read: list[Tensor], wanted: Tensor) -> None:
    if tick.step % REPORT_EVERY_STEPS and not tick.is_save_due:
        return
    shares = is_right(read, wanted).float().mean(0).tolist()
    figures = " ".join(f"{part} {share:.3f}" for part, share in zip(NAMES, shares, strict=True))
    value = float(loss.detach())
    print(f"{name} {tick.step} ({tick.progress:.0%}) loss {value:.4f} {figures}", flush=True)


def _save(average: Average, out: Path) -> None:
    state = average.state_dict()
    for part, name in FILES.items():
        prefix = f"{part}."
        own = {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}
        save(own, out / name)


def _load(average: Average, model: nn.Module) -> None:
    model.load_state_dict(average.state_dict())
    model.eval()
