"""Which files of a Hugging Face repository make up the model that a name asks for.

A name is ``org/repo``, ``org/repo:Q4_K_M`` or ``org/repo/path/file.gguf``. Of a repository with
GGUF files one quantization is taken, with all parts of a split file; of any other the files that a
Hugging Face folder needs. Pickled weights (``.bin``, ``.pt``, ``.pth``, ``.ckpt``) are never
taken: reading them runs code. Nothing here touches the network.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from rml.errors import DownloadError, printable
from rml.files.limits import MAX_PATH_BYTES, MAX_REPO_NAME

__all__ = ["HubName", "RepoFile", "choose", "parse"]

_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+)|/(?P<file>.+\.gguf))?", re.ASCII
)
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.(?:gguf|safetensors)")
# Tried in this order when a repository has several quantizations and none was asked for.
_DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
# How names of quantizations begin; "K_M" alone is none.
_QUANT = re.compile(r"(?:UD-)?(?:I?Q|TQ|B?F|FP|MXFP|NVFP)\d")
_FOLDER_FILES = re.compile(
    r"config\.json|generation_config\.json|tokenizer[^/]*\.(json|model)|special_tokens_map\.json"
    r"|added_tokens\.json|vocab\.(json|txt)|merges\.txt|chat_template[^/]*\.(jinja|json)"
    r"|additional_chat_templates/[\w.-]+\.jinja|(?!consolidated|adapter_)[^/]*\.safetensors"
    r"|model\.safetensors\.index\.json"
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class HubName:
    """A parsed name; `quant` and `file` are empty where the name has none."""

    repo: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        return self.repo + (
            f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        )


@dataclass(frozen=True, slots=True)
class RepoFile:
    """One file of a repository: path in it, bytes, SHA-256 (empty where the Hub states none)."""

    name: str
    size: int
    sha256: str = ""


def parse(name: str) -> HubName | None:
    """Parse a Hub name; None if `name` cannot be one."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name or "--" in match["repo"] or name.startswith("."):
        return None
    if match["repo"].endswith((".gguf", ".safetensors")):  # a path to a file
        return None
    if len(match["repo"]) > MAX_REPO_NAME or len(name) > MAX_PATH_BYTES or printable(name) != name:
        return None
    return HubName(match["repo"], (match["quant"] or "").upper(), match["file"] or "")


def choose(name: HubName, files: list[RepoFile]) -> tuple[RepoFile, ...]:
    """Pick the files that make up the model called `name`.

    Parameters
    ----------
    name : HubName
        What was asked for.
    files : list of RepoFile
        Every file of the repository.

    Returns
    -------
    tuple of RepoFile
        The parts of one GGUF model in order, or the files of a Hugging Face folder.

    Raises
    ------
    DownloadError
        If there is no such model, several fit, a part is missing, or only pickles are there.
    """
    models = _gguf_models(files)
    if name.file:
        for stem, parts in models.items():
            if name.file in (f"{stem}.gguf", *(part.name for part in parts)):
                return _complete(name, stem, parts)
        raise DownloadError(f"{name.repo} has no file {name.file}; it has: {_listed(models)}")
    if name.quant:
        return _of_quant(name, models, name.quant)
    if not models:
        return _folder(name, files)
    if len(models) == 1:
        return _complete(name, *next(iter(models.items())))
    for quant in _DEFAULT_QUANTS:
        if any(_has_quant(stem, quant) for stem in models):
            return _of_quant(name, models, quant)
    raise DownloadError(
        f"{name.repo} has several GGUF files; name one, as {name.repo}:QUANT or "
        f"{name.repo}/FILE: {_listed(models)}"
    )


def _gguf_models(files: list[RepoFile]) -> dict[str, list[RepoFile]]:
    """GGUF files by name without suffix and part number; vision and importance files left out."""
    models: dict[str, list[RepoFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        base = PurePosixPath(file.name).name.lower()
        if not base.endswith(".gguf") or base.startswith("mmproj") or "imatrix" in base:
            continue
        split = _SPLIT.fullmatch(file.name)
        stem = split["stem"] if split else file.name.removesuffix(".gguf")
        models.setdefault(stem, []).append(file)
    return models


def _has_quant(stem: str, quant: str) -> bool:
    """Whether a file's name without suffix ends in the quantization's name."""
    head = stem.upper().removesuffix(quant)
    return bool(_QUANT.match(quant)) and head != stem.upper() and head[-1:] in ("", *"-._/")


def _of_quant(name: HubName, models: dict[str, list[RepoFile]], quant: str) -> tuple[RepoFile, ...]:
    fitting = [stem for stem in models if _has_quant(stem, quant)]
    # "UD-Q4_K_M" is another recipe than "Q4_K_M": it is meant only where there is no plain one.
    plain = [s for s in fitting if not s.upper().removesuffix(quant).rstrip("-._").endswith("UD")]
    fitting = plain or fitting
    if len(fitting) == 1:
        return _complete(name, fitting[0], models[fitting[0]])
    found = "several GGUF files" if fitting else "no GGUF file"
    raise DownloadError(
        f"{name.repo} has {found} of quantization {quant}; it has: {_listed(models)}"
    )


def _complete(name: HubName, stem: str, parts: list[RepoFile]) -> tuple[RepoFile, ...]:
    """Return the parts in order, if all of them are there."""
    split = _SPLIT.fullmatch(parts[0].name)
    if split:
        total = int(split["parts"])
        present = {part.name for part in parts}
        wanted = (f"{stem}-{i:05d}-of-{total:05d}.gguf" for i in range(1, total + 1))
        missing = [part for part in wanted if part not in present]
        if missing or len(parts) != total:
            lacks = ", ".join(map(_short, missing[:8])) or "a part"
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            raise DownloadError(f"{name.repo}: {_short(stem)} lacks {lacks}{more}")
    return tuple(parts)


def _folder(name: HubName, files: list[RepoFile]) -> tuple[RepoFile, ...]:
    by_name = {file.name: file for file in files}
    chosen = [file for file in files if _FOLDER_FILES.fullmatch(file.name)]
    if "adapter_config.json" in by_name and "config.json" not in by_name:
        raise DownloadError(f"{name.repo} is an adapter (LoRA), not a model: pull its base model")
    if not any(file.name.endswith(".safetensors") for file in chosen):
        pickles = [file.name for file in files if file.name.endswith(_PICKLES)]
        if pickles:
            raise DownloadError(
                f"{name.repo} has its weights only as pickles ({_short(pickles[0])}), which run "
                "code when read: look for a repository with safetensors or GGUF files, or convert "
                "them"
            )
        raise DownloadError(f"{name.repo} has no GGUF and no safetensors file: not a model for rml")
    if "config.json" not in by_name:
        raise DownloadError(f"{name.repo} has safetensors files, but no config.json")
    # One file that holds everything makes the shards beside it superfluous.
    if "model.safetensors" in by_name:
        chosen = [f for f in chosen if not f.name.endswith(".safetensors") or "/" in f.name]
        chosen.append(by_name["model.safetensors"])
    return tuple(sorted(chosen, key=lambda file: (file.name != "config.json", file.name)))


def _listed(models: dict[str, list[RepoFile]]) -> str:
    names = sorted(f"{stem}.gguf" for stem in models)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(map(_short, names[:20])) or "no GGUF file") + more


def _short(name: str) -> str:
    """Show the name of a file in a message that has several."""
    return name if len(name) <= 200 else f"{name[:100]}...{name[-60:]}"
